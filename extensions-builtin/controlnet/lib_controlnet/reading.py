"""Units in the forms in which callers give them: those of the ControlNet extension, those of Forge, old names."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np

from lib_controlnet.preprocessors import module_of
from lib_controlnet.resize_mode import ResizeMode
from lib_controlnet.units import (
    NO_MODEL,
    UNION_TYPES,
    UNKNOWN_TYPE,
    Array,
    ControlMode,
    Given,
    HiresOption,
    InputMode,
    Unit,
)
from modules.errors import InvalidValueError
from modules.images.reading import open_image
from modules.system.bounded import read_json

MAX_SIDE_PX = 16384
MAX_UNITS = 10
RESIZE_ALIASES = {
    "inner fit (scale to fit)": ResizeMode.CROP,
    "scale to fit (inner fit)": ResizeMode.CROP,
    "outer fit (shrink to fit)": ResizeMode.FILL,
    "envelope (outer fit)": ResizeMode.FILL,
}
LEGACY = {"input_image": "image", "lowvram": "low_vram", "guidance": "guidance_end", "mask_image": "mask"}
FOLDERS = (
    "the files of a folder are not read: give the images in batch_images, or use the tab Batch of img2img, where a "
)
FOLDERS += "unit without an image follows each image of the folder"
REFUSED = {
    "batch_image_dir": FOLDERS,
    "batch_mask_dir": FOLDERS,
    "output_dir": "images are saved where the settings say",
    "loopback": "no image follows the one before it: send a request for each, with that image in image",
    "animatediff_batch": "images are made one by one, and not as frames of an animation",
}
"""Fields of other programs that ask for something that is not done, with the reason; empty ones are accepted."""
LISTS = ("batch_images", "batch_input_gallery")
DRAWN = 5
"""What a value must be above to count as drawn, as a canvas leaves traces where nothing is."""


def read_units(text: str) -> list[Mapping[str, Any]]:
    """The units of a job, in the form of callers, of the script's own argument; those that are on."""
    if not text:
        return []
    return [unit for unit in read_json(text) if unit.get("enabled", True)]


def checked_list(args: Sequence[Any], title: str) -> list[Mapping[str, Any]]:
    """Check what a caller gives as the script's arguments. Raises `InvalidValueError` for what is no list of units."""
    found: list[Mapping[str, Any]] = []
    for number, value in enumerate(args):
        if value is None:
            continue
        if not isinstance(value, Mapping):
            raise InvalidValueError(
                f"{title}: unit {number} is {type(value).__name__} {str(value)[:40]!r}; a unit is an object such as "
                '{"module": "canny", "model": "...", "image": "BASE64"}.'
            )
        unit = dict(value)
        for guess in ("guessmode", "guess_mode"):
            if unit.pop(guess, False) and unit.get("control_mode") is None:
                unit["control_mode"] = ControlMode.CONTROL.value
        for old, new in LEGACY.items():
            value = unit.pop(old, None)
            if value is None:
                continue
            if unit.get(new) is not None:
                raise InvalidValueError(f"{title}: unit {number} has both {new} and {old}; give one of them.")
            unit[new] = value
        found.append(unit)
    if len(found) > MAX_UNITS:
        raise InvalidValueError(f"{title}: {len(found)} units were given; allowed are {MAX_UNITS}.")
    return found


def images_of_batches(given: Sequence[Mapping[str, Any]]) -> int:
    """How many images the units of a job follow one after the other, the shortest list counts; 1 where none does."""
    lists = [UnitReader(unit, "").listed() for unit in given if UnitReader(unit, "").mode() is InputMode.BATCH]
    return min((len(images) for images in lists), default=1)


def read_unit(given: Mapping[str, Any], name: str) -> Unit:
    """A unit of a caller's object; `name` is for messages. Raises `InvalidValueError` and `UnknownNameError`."""
    read = UnitReader(given, name)
    read.check_refused()
    module_name = str(given.get("module") or "none")
    if read.flag("use_preview_as_input", False):
        module_name, read = "none", read.with_preview()
    module = module_of(module_name)
    first, second = module.numbers
    resolution = module.resolution or module.hidden_resolution
    start, end = read.number("guidance_start", 0.0, 0.0, 1.0), read.number("guidance_end", 1.0, 0.0, 1.0)
    if start > end:
        raise InvalidValueError(f"{name}: guidance_start {start:g} is after guidance_end {end:g}.")
    mode, images = read.mode(), read.images()
    if mode is InputMode.SIMPLE and len(images) > 1 and not module.averages_images:
        raise InvalidValueError(
            f"{name}: image has {len(images)} images, and {module.label} takes one. Give a unit for each; or set "
            "input_mode to merge, where they share the unit's weight, or to batch, where each makes images of its own."
        )
    return Unit(
        module=module,
        module_name=module_name,
        model=str(given.get("model") or NO_MODEL),
        weight=read.number("weight", 1.0, 0.0, 2.0),
        images=images,
        input_mode=mode,
        resize_mode=read.member("resize_mode", ResizeMode, ResizeMode.CROP, RESIZE_ALIASES),
        processor_res=resolution.read(read.number("processor_res", -1)),
        threshold_a=first.read(read.number("threshold_a", -1)),
        threshold_b=second.read(read.number("threshold_b", -1)),
        guidance_start=start,
        guidance_end=end,
        pixel_perfect=read.flag("pixel_perfect", False),
        control_mode=read.member("control_mode", ControlMode, ControlMode.BALANCED),
        inpaint_crop=read.flag("inpaint_crop_input_image", True),
        hires=read.member("hr_option", HiresOption, HiresOption.BOTH),
        saves_map=read.flag("save_detected_map", True),
        layer_weights=read.numbers("advanced_weighting"),
        region=read.mask("effective_region_mask"),
        union_type=read.name_in("union_control_type", (*UNION_TYPES, UNKNOWN_TYPE), UNKNOWN_TYPE),
        embeddings=read.files("ipadapter_input"),
    )


@dataclass(frozen=True)
class UnitReader:
    """The fields of a caller's object; `name` is for messages. All raise `InvalidValueError`."""

    given: Mapping[str, Any]
    name: str

    def _wrong(self, key: str, wanted: str) -> InvalidValueError:
        return InvalidValueError(f"{self.name}: {key} is {str(self.given.get(key))[:60]!r}; {wanted}.")

    def check_refused(self) -> None:
        """Raise for what would otherwise be ignored."""
        for key, reason in REFUSED.items():
            if self.given.get(key):
                raise self._wrong(key, reason)
        for key in LISTS:
            if isinstance(self.given.get(key), str) and self.given[key]:
                raise self._wrong(key, FOLDERS)
            if self.given.get(key) and self.mode() is InputMode.SIMPLE:
                raise InvalidValueError(
                    f"{self.name}: {key} has images, and input_mode is simple, which takes one, in image. Set "
                    "input_mode to batch, where each makes images of its own, or to merge, where they count together."
                )

    def with_preview(self) -> UnitReader:
        """Return it with the map that the caller has already made in the place of its image."""
        if not self.given.get("generated_image"):
            raise self._wrong("generated_image", "use_preview_as_input needs the map there, as base64")
        return replace(self, given={**self.given, "image": self.given["generated_image"], "image_fg": None})

    def mode(self) -> InputMode:
        """How the images count."""
        value = self.given.get("input_mode")
        plain = value.rpartition(".")[2] if isinstance(value, str) else value
        found: InputMode = replace(self, given={"input_mode": plain or None}).member(
            "input_mode", InputMode, InputMode.SIMPLE
        )
        return found

    def number(self, key: str, usual: float, low: float = -1e6, high: float = 1e6) -> float:
        value = self.given.get(key)
        if value is None:
            return usual
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise self._wrong(key, "it takes a number") from error
        if not low <= number <= high:
            raise self._wrong(key, f"allowed is {low:g} to {high:g}")
        return int(value) if isinstance(value, int) and not isinstance(value, bool) and key[:1] in "pt" else number

    def numbers(self, key: str) -> tuple[float, ...] | None:
        value = self.given.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(isinstance(item, int | float) for item in value):
            raise self._wrong(key, "it takes a list of numbers, one for each block")
        return tuple(float(item) for item in value)

    def flag(self, key: str, usual: bool) -> bool:
        value = self.given.get(key)
        if value is None:
            return usual
        if isinstance(value, str):
            return value.strip().lower() in ("true", "1")
        return bool(value)

    def member(self, key: str, kind: type[Enum], usual: Any, aliases: Mapping[str, Any] | None = None) -> Any:
        """A member of an enum by its value in any case, an alias, or its number."""
        value = self.given.get(key)
        if value is None:
            return usual
        members = list(kind)
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < len(members):
            return members[int(value)]
        by_name = {member.value.lower(): member for member in members} | dict(aliases or {})
        found = by_name.get(str(value).strip().lower())
        if found is None:
            raise self._wrong(key, f"it takes one of: {', '.join(member.value for member in members)}")
        return found

    def name_in(self, key: str, names: Sequence[str], usual: str) -> str:
        """One of these names, in any case."""
        value = str(self.given.get(key) or usual).strip().lower()
        for name in names:
            if name.lower() == value:
                return name
        raise self._wrong(key, f"it takes one of: {', '.join(names)}")

    def listed(self) -> list[Any]:
        """List what there is of images, each as its caller gives it."""
        value = next((self.given[key] for key in LISTS if self.given.get(key)), self.given.get("image"))
        masks = self.given.get("batch_mask_gallery")
        if value is None or value == "":
            return []
        if not isinstance(value, list):
            return [value]
        if self.mode() is InputMode.SIMPLE and len(value) == 2 and all(isinstance(item, str) for item in value):
            return [{"image": value[0], "mask": value[1]}]
        if masks:
            if not isinstance(masks, list) or len(masks) != len(value):
                raise self._wrong("batch_mask_gallery", f"it takes a mask for each of the {len(value)} images")
            return [{"image": image, "mask": mask} for image, mask in zip(value, masks, strict=True)]
        return value

    def images(self) -> tuple[Given, ...]:
        """The images in all their forms, with their masks."""
        mask, drawn = self._drawn("mask_image_fg"), self._drawn("image_fg")
        if mask is None:
            mask = self.mask("mask")
        found = []
        for item in self.listed():
            own = mask
            if isinstance(item, Mapping):
                if item.get("mask"):
                    if mask is not None:
                        raise InvalidValueError(f"{self.name}: a mask is given twice, in image and as mask.")
                    own = self._gray(item["mask"], "mask")
                item = item.get("image")
            if item:
                pixels = self._pixels(item, "image")
                if drawn is not None and (pixels[..., :3] < DRAWN).all():
                    pixels = drawn  # on an empty canvas, what is drawn is the image
                elif own is None:
                    own = drawn
                given = Given(pixels, own)
                given.check(self.name)
                found.append(given)
        over = "image_fg is drawn over image" if drawn is not None else "a mask belongs to an image"
        what = f"input_mode is {self.mode().value}" if self.mode() is not InputMode.SIMPLE else over
        if not found and (drawn is not None or mask is not None or self.mode() is not InputMode.SIMPLE):
            raise InvalidValueError(f"{self.name}: {what}, and there is no image. Give it as base64.")
        return tuple(found)

    def _drawn(self, key: str) -> Array | None:
        """Return what is drawn on a canvas [H,W], by its opacity; None where nothing is."""
        value = self.given.get(key)
        if not value:
            return None
        pixels = self._pixels(value, key)
        if pixels.ndim != 3 or pixels.shape[2] != 4:
            raise self._wrong(key, "it takes what is drawn on a canvas, an image with transparency")
        return pixels[:, :, 3] if (pixels[:, :, 3] > DRAWN).any() else None

    def mask(self, key: str) -> Array | None:
        value = self.given.get(key)
        if isinstance(value, Mapping):  # a canvas of its own, where that is what lies below
            value = value.get("image")
        return None if value is None or value == "" else self._gray(value, key)

    def files(self, key: str) -> tuple[bytes, ...]:
        value = self.given.get(key)
        if not value:
            return ()
        return tuple(self._bytes(item, key) for item in (value if isinstance(value, list) else [value]))

    def _gray(self, value: Any, key: str) -> Array:
        pixels = self._pixels(value, key)
        found: Array = pixels if pixels.ndim == 2 else pixels[:, :, 0]
        return found

    def _bytes(self, value: Any, key: str) -> bytes:
        text = str(value)
        try:
            return base64.b64decode(text.partition(",")[2] if text.startswith("data:") else text, validate=False)
        except (binascii.Error, ValueError) as error:
            raise self._wrong(key, "it takes a file as base64") from error

    def _pixels(self, value: Any, key: str) -> Array:
        try:
            image = open_image(self._bytes(value, key))
        except InvalidValueError as error:
            raise self._wrong(key, "it takes an image as base64 or data URL") from error
        if max(image.size) > MAX_SIDE_PX:
            raise self._wrong(key, f"its sides may have {MAX_SIDE_PX} pixels, not {image.width}x{image.height}")
        if image.mode == "F":
            raise self._wrong(key, "its values are floating point: give a PNG of 8 or 16 bits")
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        if image.mode not in ("L", "RGB", "RGBA"):
            image = image.convert("RGBA" if "A" in image.mode else "RGB")
        return np.asarray(image)
