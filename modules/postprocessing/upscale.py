"""Upscale: by a factor or to a size, with one upscaler or a blend of two."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from typing import Any

from PIL import Image

from modules.errors import InvalidValueError, UnknownNameError
from modules.postprocessing.operation import UPSCALERS, Field, PostprocessedImage, ScriptPostprocessing
from modules.processing.request.upscaling import PIXEL_UPSCALERS
from modules.upscalers.limits import UpscalerLimits
from modules.upscalers.upscalers import Upscalers

BY, TO = 0, 1
NONE = "None"
MAX_SIDE_PX = 32768
MAX_RESULT_PX = 2**29
"""Half a billion pixels are 1.6 GB as RGB; beyond that a request is a mistake."""


def _side(name: str) -> Field:
    return Field(
        name=f"upscale_to_{name}",
        label=name.capitalize(),
        default=512,
        elem_id=f"extras_upscaling_resize_{name[0]}",
        low=1,
        high=MAX_SIDE_PX,
        slider_low=64,
        slider_high=8192,
        step=8,
    )


def _upscaler(number: int, infotext: str) -> Field:
    return Field(
        name=f"upscaler_{number}_name",
        label=f"Upscaler {number}",
        default=NONE,
        elem_id=f"extras_upscaler_{number}",
        choices=UPSCALERS,
        infotext=infotext,
    )


class UpscaleOperation(ScriptPostprocessing):
    """Enlarging by `upscale_by`, or so far that `upscale_to_width` x `upscale_to_height` is covered. Holds its last
    results, for a second look with another visibility."""

    name = "Upscale"
    order = 1000
    fields = (
        Field(name="upscale_enabled", label="Upscale", default=True, elem_id="extras_upscale", is_switch=True),
        Field(name="upscale_mode", label="Mode", default=BY, elem_id="extras_upscale_mode", low=BY, high=TO),
        Field(
            name="upscale_by",
            infotext="Postprocess upscale by",
            label="Resize",
            default=4.0,
            elem_id="extras_upscaling_resize",
            low=0.01,
            high=64.0,
            slider_low=1.0,
            slider_high=8.0,
            step=0.05,
        ),
        Field(
            name="max_side_length",
            infotext="Max side length",
            label="Max side length",
            default=0,
            elem_id="extras_upscale_max_side_length",
            low=0,
            high=MAX_SIDE_PX,
            hint="0: any",
        ),
        _side("width"),
        _side("height"),
        Field(name="upscale_crop", label="Crop to fit", default=True, elem_id="extras_upscaling_crop"),
        _upscaler(1, "Postprocess upscaler"),
        _upscaler(2, "Postprocess upscaler 2"),
        Field(
            name="upscaler_2_visibility",
            label="Upscaler 2 visibility",
            default=0.0,
            elem_id="extras_upscaler_2_visibility",
            low=0.0,
            high=1.0,
            step=0.001,
        ),
    )

    def __init__(self, upscalers: Upscalers) -> None:
        self._upscalers = upscalers
        self._lock = threading.Lock()
        self._results: OrderedDict[tuple[object, ...], Image.Image] = OrderedDict()

    def checked(self, args: dict[str, Any]) -> dict[str, Any]:
        """Also that the upscalers are there."""
        found = super().checked(args)
        for key in ("upscaler_1_name", "upscaler_2_name"):
            found[key] = self._canonical(found[key])
        return found

    def process_firstpass(self, pp: PostprocessedImage, **args: Any) -> None:
        if not _is_on(args):
            return
        if args["upscale_mode"] == TO:
            pp.shared.target_width, pp.shared.target_height = args["upscale_to_width"], args["upscale_to_height"]
        else:
            factor = args["upscale_by"]
            pp.shared.target_width = int(pp.image.width * factor)
            pp.shared.target_height = int(pp.image.height * factor)

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if not _is_on(args):
            return
        second, visibility = args["upscaler_2_name"], args["upscaler_2_visibility"]
        if second == NONE:
            visibility = 0.0
        first = self._upscaled(pp, args["upscaler_1_name"], args, (0.0, 0.5 if visibility else 1.0))
        pp.info["Postprocess upscaler"] = args["upscaler_1_name"]
        if visibility > 0:
            other = self._upscaled(pp, second, args, (0.5, 1.0))
            first = Image.blend(first, other.convert(first.mode), visibility)
            pp.info["Postprocess upscaler 2"] = second
        pp.image = first
        if pp.settings.saving.use_upscaler_name_as_suffix:
            pp.nametags.append(args["upscaler_1_name"])

    def image_changed(self) -> None:
        with self._lock:
            self._results.clear()

    def _canonical(self, name: str) -> str:
        """The name in its own case; a file that came meanwhile is found."""
        catalogue = self._upscalers.catalogue
        for _ in range(2):
            known: dict[str, str] = {one.lower(): one for one in (*PIXEL_UPSCALERS, *catalogue.names)}
            if name.lower() in known:
                return known[name.lower()]
            catalogue.refresh()
        raise UnknownNameError.of("upscaler", name, known.values())

    def _upscaled(
        self, pp: PostprocessedImage, name: str, args: dict[str, Any], part: tuple[float, float]
    ) -> Image.Image:
        """The image by one upscaler, cropped where that is asked for; `part`: of the progress, from and to."""
        is_to, crop = args["upscale_mode"] == TO, args["upscale_crop"]
        to_size = (args["upscale_to_width"], args["upscale_to_height"])
        if is_to:
            factor = max(to_size[0] / pp.image.width, to_size[1] / pp.image.height)
            pp.info["Postprocess upscale to"] = f"{to_size[0]}x{to_size[1]}"
        else:
            factor = args["upscale_by"]
            pp.info["Postprocess upscale by"] = factor
        longest, limit = max(pp.image.size), args["max_side_length"]
        if not is_to and limit and longest * factor > limit:
            factor = limit / longest
            pp.info["Max side length"] = limit
        result = self._cached(pp, name, factor, part)
        if is_to and crop:
            canvas = Image.new("RGB", to_size)
            canvas.paste(result, ((to_size[0] - result.width) // 2, (to_size[1] - result.height) // 2))
            result = canvas
            pp.info["Postprocess crop to"] = f"{to_size[0]}x{to_size[1]}"
        return result

    def _cached(self, pp: PostprocessedImage, name: str, factor: float, part: tuple[float, float]) -> Image.Image:
        """`_enlarged`, kept for the next time with everything that the result depends on."""
        info = self._upscalers.catalogue.find(name)
        file: tuple[object, ...] = ()
        if info is not None and info.path.is_file():
            file = (info.path, info.path.stat().st_mtime_ns, info.type.tiling(pp.settings))
        digest = hashlib.sha256(pp.image.tobytes()).hexdigest()
        key = (digest, pp.image.size, name, factor, file)
        kept = pp.settings.postprocessing.upscaling_max_images_in_cache
        with self._lock:
            found = self._results.get(key)
            if found is not None:
                self._results.move_to_end(key)
                return found.copy()
        result = self._enlarged(pp, name, factor, part)
        with self._lock:
            if kept > 0:
                self._results[key] = result.copy()
            while len(self._results) > kept:
                self._results.popitem(last=False)
        return result

    def _enlarged(self, pp: PostprocessedImage, name: str, factor: float, part: tuple[float, float]) -> Image.Image:
        """In the size that the reference UI gives: sides cut to multiples of 8, at least 8 pixels."""
        image = pp.image
        size = (max(int(image.width * factor) // 8 * 8, 8), max(int(image.height * factor) // 8 * 8, 8))
        if max(size) > MAX_SIDE_PX or size[0] * size[1] > MAX_RESULT_PX:
            raise InvalidValueError(
                f"Upscaling {image.width}x{image.height} by {factor:g} gives {size[0]}x{size[1]} pixels; allowed are "
                f"{MAX_SIDE_PX} a side and {MAX_RESULT_PX / 1e6:.0f} megapixels. Choose a smaller factor or size."
            )
        if name in PIXEL_UPSCALERS:
            if factor == 1 and image.size == size:
                return image.copy()
            # To the exact size first and then cut, as there: the second step shows in the last bits.
            exact = PIXEL_UPSCALERS.get(name)(
                image, max(int(image.width * factor), 1), max(int(image.height * factor), 1)
            )
            return exact if exact.size == size else exact.resize(size, Image.Resampling.LANCZOS)

        def on_tile(index: int, count: int) -> None:
            begin, end = part
            pp.on_progress(begin + (end - begin) * index / count, f"{name}, tile {index + 1} of {count}")

        from modules.processing.engine.recovery import recovering_upscaler
        from modules.processing.request.stages import Stage

        limits = UpscalerLimits()
        with recovering_upscaler(limits) as recovery:
            return recovery.run(
                Stage.ENLARGE,
                lambda: self._upscalers.enlarge(
                    image.convert("RGB"), name, size, pp.settings, on_tile, limits, at_least_once=factor == 1
                ),
            )


def _is_on(args: dict[str, Any]) -> bool:
    return bool(args["upscale_enabled"]) and args["upscaler_1_name"] != NONE
