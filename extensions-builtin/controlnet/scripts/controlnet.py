"""ControlNet: images that steer what is made. Title, arguments, routes and infotexts are those of the ControlNet
extension of the reference UI, so that its callers need no change."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_controlnet.control_settings import ControlNetSettings  # noqa: E402
from lib_controlnet.detection import add_work  # noqa: E402
from lib_controlnet.files import Kind, ModelFile, find_model, kind_of_file, preprocessor_file  # noqa: E402
from lib_controlnet.grid_axes import add_axes  # noqa: E402
from lib_controlnet.maps import ControlMap, control_map, images_after_first, shown  # noqa: E402
from lib_controlnet.preprocessors import INPAINTING, RECOLORING  # noqa: E402
from lib_controlnet.reading import checked_list, images_of_batches, read_unit, read_units  # noqa: E402
from lib_controlnet.units import (  # noqa: E402
    NO_MODEL,
    ControlMode,
    HiresOption,
    Unit,
    check_use,
)
from modules import scripts  # noqa: E402
from modules.errors import FeatherweightError, InvalidValueError  # noqa: E402
from modules.processing.request.model_use import ModelUse  # noqa: E402
from modules.processing.request.result import GeneratedImage, ImageRole  # noqa: E402
from modules.scripts import program_now, script_callbacks  # noqa: E402
from modules.system.bounded import read_json  # noqa: E402

log = logging.getLogger(__name__)

TITLE = "ControlNet"
PREPARED = "controlnet"  # at a job: what its units have become, for each image that they follow in turn
BATCHES = "controlnet_batches"  # at a job: how many batches its units ask for
PLACE = "place in batch"  # among the script's values of a job: the image that what it makes inside of itself follows
PROGRAM = program_now()


script_callbacks.on_ui_settings(lambda settings: settings.add(ControlNetSettings))
add_axes(TITLE)
add_work(PROGRAM)


def _add_routes(page: object, app: Any) -> None:
    from lib_controlnet.routes import add_routes

    add_routes(app, PROGRAM)


script_callbacks.on_app_started(_add_routes)


@dataclass(eq=False)
class Prepared:
    """A unit of a running job."""

    number: int
    unit: Unit
    file: ModelFile | None
    kind: Kind | None
    map: ControlMap | None
    size_px: tuple[int, int]  # of the first pass
    shown_maps: dict[tuple[int, int], Any] = field(default_factory=dict)  # by size

    @property
    def name(self) -> str:
        return f"ControlNet unit {self.number}"

    @property
    def is_reference(self) -> bool:
        return self.unit.module.name.startswith("reference_")

    def takes_part(self, is_hires: bool) -> bool:
        """IP-adapters count in both passes, as their callers are used to."""
        return bool(self.kind and self.kind.is_ip) or self.unit.hires is not (
            HiresOption.LOW if is_hires else HiresOption.HIGH
        )

    def maps_to_show(self) -> list[Any]:
        """Return what callers get back: the map in the size of each pass, the largest first; of an IP-adapter its
        images."""
        if self.kind and self.kind.is_ip:
            return [] if self.map is None else [self.map.pixels, *images_after_first(self.unit)]
        return [pixels for _, pixels in sorted(self.shown_maps.items(), reverse=True)]


def _place(p: Any) -> int:
    """The place of the present batch's image among those that are followed in turn."""
    by_place = getattr(p, PREPARED, [])
    return int(p.iteration) // max(1, int(p.n_iter) // len(by_place))


def prepared_now(p: Any) -> list[Prepared]:
    """The units as they count for the present batch."""
    by_place: list[list[Prepared]] = getattr(p, PREPARED, [])
    return by_place[_place(p)] if by_place else []


class ControlNet(scripts.Script):
    """The script. Its argument is the list of units as JSON, in the form of callers."""

    fold_id = "controlnet"

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        from lib_controlnet.page import build

        units, fields = build(self, is_img2img)
        self.infotext_fields = fields
        return [units]

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """Units as objects, one after the other; or this script's own argument."""
        if len(args) == 1 and (args[0] is None or isinstance(args[0], str)) and str(args[0] or "[").startswith("["):
            args = read_json(args[0]) if args[0] else []
        units = checked_list(args, title)
        for number, unit in enumerate(units):
            if unit.get("enabled", True):
                read_unit(unit, f"{title} unit {number}")
        return [json.dumps(units)]

    def auxiliary_files(self, args: Sequence[Any]) -> Sequence[Path]:
        wanted = (str(unit.get("model") or NO_MODEL) for unit in read_units(args[0]))
        return [find_model(self.program, name).path for name in wanted if name.lower() != "none"]

    def before_process(self, p: Any, *args: Any) -> None:
        """Make as many images for each image of units with several that count one after the other."""
        count = self._followed(p, read_units(args[0] if args else ""))
        if count > 1:
            if p.selected_script:
                raise InvalidValueError(
                    f"{TITLE}: input_mode batch goes through its images, and the script {p.selected_script} makes "
                    "images its own way. Use one of them."
                )
            p.n_iter *= count
            setattr(p, BATCHES, p.n_iter)

    @staticmethod
    def _followed(p: Any, given: Sequence[Mapping[str, Any]]) -> int:
        return 1 if PLACE in p.script_values.get(TITLE, {}) else images_of_batches(given)

    def process(self, p: Any, *args: Any) -> None:
        """Check every unit, and make its map, before anything is computed."""
        given = read_units(args[0] if args else "")
        if not given:
            return
        count = self._followed(p, given)
        if count > 1:
            self._repeat_seeds(p, count)
        of_axes = dict(p.script_values.get(TITLE, {}))
        first = of_axes.pop(PLACE, 0)
        read = [read_unit({**values, **of_axes}, f"{TITLE} unit {number}") for number, values in enumerate(given)]
        has_second_pass = bool(getattr(p, "enable_hr", False))
        units = [unit.for_job(has_second_pass) for each in read for unit in each.unmerged()]
        by_place: list[list[Prepared]] = []
        for place in range(first, first + count):
            prepared = []
            for number, unit in enumerate(units):
                if not unit.is_batch and by_place:
                    prepared.append(by_place[0][number])
                else:
                    one = unit.one_of_batch(place) if unit.is_batch else unit
                    prepared.append(self._prepared(number, one, p, hasattr(p, "init_images")))
            by_place.append(prepared)
        setattr(p, PREPARED, by_place)
        for each in by_place[0]:
            title = each.file.titled(each.unit.model) if each.file else each.unit.model
            p.extra_generation_params |= each.unit.infotext(f"{TITLE} {each.number}", title)
        border = ControlNetSettings.control_net_inpaint_blur_sigma.setting
        border_px = ControlNetSettings(p.settings).control_net_inpaint_blur_sigma
        if border_px != border.default and any(each.unit.module.name in INPAINTING for each in by_place[0]):
            p.extra_generation_params[border.infotext] = border_px

    @staticmethod
    def _repeat_seeds(p: Any, count: int) -> None:
        """Give the images of each image that is followed the same seeds."""
        wanted = getattr(p, BATCHES)
        if p.n_iter != wanted:
            raise InvalidValueError(
                f"{TITLE}: input_mode batch asks for {wanted} batches, and another script, such as one that makes all "
                f"combinations of a prompt, for {p.n_iter}. Use one of them."
            )
        own = len(p.all_seeds) // count
        p.all_seeds[:] = p.all_seeds[:own] * count
        p.all_subseeds[:] = p.all_subseeds[:own] * count

    def before_process_batch(self, p: Any, *args: Any, **facts: Any) -> None:
        """Tell what is made inside of this batch which image it follows."""
        by_place = getattr(p, PREPARED, [])
        if len(by_place) > 1:
            p.script_values = {**p.script_values, TITLE: {**p.script_values.get(TITLE, {}), PLACE: _place(p)}}

    def _prepared(self, number: int, unit: Unit, p: Any, is_img2img: bool) -> Prepared:
        name = f"{TITLE} unit {number}"
        file = kind = None
        if unit.needs_model:
            if unit.model.lower() == "none":
                raise InvalidValueError(f"{name} has no model. Choose one in models/ControlNet.")
            file = find_model(self.program, unit.model)
            kind = kind_of_file(file.path)
            is_ip = unit.module.name.startswith("ip-adapter")
            if is_ip != kind.is_ip:
                raise InvalidValueError(
                    f"{name}: {file.name} is {kind.value}, which does not go with the module {unit.module.label}."
                )
        check_use(unit, kind, name)
        detect = self.program.detect
        made = None if unit.embeddings else control_map(unit, p, is_img2img, name, self._weights, detect)
        return Prepared(number, unit, file, kind, made, (p.width // 8 * 8, p.height // 8 * 8))

    def _weights(self, names: Sequence[str]) -> Path:
        return preprocessor_file(self.program, names)

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        """Put what the units ask for around the model of a pass."""
        prepared = prepared_now(p)
        if prepared:
            from lib_controlnet.passes import begin_pass
            from modules.memory.recovery import is_out_of_memory

            try:
                begin_pass(prepared, p, use, self.program)
            except FeatherweightError:
                raise
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                log.exception("ControlNet failed")  # never an image without the control that was asked for
                raise InvalidValueError(f"ControlNet failed: {type(error).__name__}: {error}") from error

    def postprocess_batch(self, p: Any, *args: Any, **facts: Any) -> None:
        """Put back what a unit keeps of its image."""
        prepared = prepared_now(p)
        wanted = [each for each in prepared if each.unit.module.name in (*RECOLORING, *INPAINTING) and each.map]
        if wanted:
            from lib_controlnet.finishing import finish

            border_px = ControlNetSettings(p.settings).control_net_inpaint_blur_sigma
            for each in wanted:
                finish(each, facts["images"], border_px)

    def postprocess(self, p: Any, processed: Any, *args: Any) -> None:
        """Add the control maps to the images; those of images that were followed in turn would be as many."""
        by_place: list[list[Prepared]] = getattr(p, PREPARED, [])
        if len(by_place) != 1 or ControlNetSettings(p.settings).control_net_no_detectmap or not processed.generated:
            return
        first = processed.generated[0]
        for each in by_place[0]:
            if each.unit.saves_map:
                for pixels in each.maps_to_show():
                    processed.generated.append(
                        GeneratedImage(shown(pixels), first.infotext, first.seed, first.subseed, role=ImageRole.CONTROL)
                    )


__all__ = ["ControlMode", "ControlNet"]
