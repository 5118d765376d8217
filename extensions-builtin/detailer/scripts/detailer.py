"""Detailer: what a detector finds in a finished image, faces at first, is painted again in the full size of the job.

The name, the arguments in `alwayson_scripts`, the names in infotexts and the prompt grammar are those of the ADetailer
extension of the reference UI, so that its callers need no change.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from PIL import Image, ImageChops

from modules import scripts
from modules.detection.detection import Detection
from modules.errors import FeatherweightError, InvalidValueError
from modules.images.masks import flattened
from modules.processing.request.checking import check_names_of
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.names import split_legacy_name
from modules.scripts import script_callbacks
from modules.scripts.axes import Axis, add_axis
from modules.scripts.job import ImageJob
from modules.settings.group import SettingsGroup, choice, flag
from modules.settings.setting import Section
from modules.system.texts import page_text

log = logging.getLogger(__name__)

TITLE = "ADetailer"
UNITS = 2  # on the page; over HTTP there may be more
FIRST_MODEL, NOTHING = "face_mtcnn", "None"
SAME = "Use same "  # checkpoint, VAE, sampler or scheduler
MERGES = [NOTHING, "Merge", "Merge and Invert"]
FILTERS = ["Area", "Confidence"]
AS_FOUND, FROM_LEFT, FROM_MIDDLE, BY_AREA = (
    NOTHING,
    "Position (left to right)",
    "Position (center to edge)",
    "Area (large to small)",
)
SEPARATOR, SKIP, OWN_PROMPT = "[SEP]", "[SKIP]", "[PROMPT]"
ORIGINAL = 1  # masked content
WORDS = re.compile(r"<(segment:[^<>]+)>\s*")
"""In the prompt of a unit: what is painted is found by these words, instead of by its detector."""
OLD_NAMES = {"ad_mask_k_largest": "ad_mask_k"}
NOT_USED = (
    *("is_api", "ad_tap_enable", "ad_controlnet_module", "ad_controlnet_weight"),
    *("ad_controlnet_guidance_start", "ad_controlnet_guidance_end"),
)
"""Fields that callers send and that change nothing here."""
OWN_STEPS = "detailer_steps"  # at a job whose img2img is skipped: those that it was asked for
VALUES_OF_AXES = "detailer_values"  # at a job of a plot


class DetailerSettings(SettingsGroup):
    """For all units."""

    section = Section(id="ADetailer", title="ADetailer", category="Extensions")

    ad_bbox_sortby = choice(
        "Order of detections",
        AS_FOUND,
        (AS_FOUND, FROM_LEFT, FROM_MIDDLE, BY_AREA),
        hint="The order in which prompts separated by [SEP] are used.",
    )
    ad_same_seed_for_each_tab = flag("Use one seed for all detections in an image", False)


script_callbacks.on_ui_settings(lambda settings: settings.add(DetailerSettings))


@dataclass(frozen=True)
class Entry:
    """A field of a unit: its name for callers, its words on the page and in infotexts. `switch` names the field that
    has it count; `always`: infotexts have it also where it is as usual."""

    name: str
    label: str
    usual: bool | int | float | str
    key: str
    low: float | None = None
    high: float | None = None
    step: float | None = None
    slider: tuple[float, float] | None = None  # where that is less than what is allowed
    choices: Callable[[scripts.Program], list[str]] | None = None
    is_open: bool = False  # whether other values than the choices are allowed here, because somebody else knows them
    switch: str = ""
    always: bool = False

    def read(self, value: Any) -> Any:
        """A value of a caller or of an infotext. Raises `InvalidValueError`."""
        kind = type(self.usual)
        if isinstance(self.usual, bool):
            words = {"true": True, "1": True, "1.0": True, "false": False, "0": False, "0.0": False}
            if str(value).strip().lower() not in words:
                raise InvalidValueError(f"{self.name} is {value!r}; it takes true or false.")
            return words[str(value).strip().lower()]
        if isinstance(self.usual, str):
            text = NOTHING if value is None and self.choices else str(value or "")
            if not self.choices or self.is_open:
                return text
            allowed = {str(name).lower(): name for name in self.choices(scripts.Program())}
            if text.lower() not in allowed:
                raise InvalidValueError(f"{self.name} is {text!r}; it takes one of: {', '.join(allowed.values())}.")
            return allowed[text.lower()]
        try:
            number = float(value)
            found = kind(number)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValueError(f"{self.name} is {value!r}; it takes a number.") from error
        if found != number:
            raise InvalidValueError(f"{self.name} is {value!r}; it takes a whole number.")
        low = self.low if self.low is not None else number
        high = self.high if self.high is not None else number
        if not low <= number <= high:
            raise InvalidValueError(f"{self.name} is {value!r}; allowed is {low:g} to {high:g}.")
        return found


def _filters(_: scripts.Program) -> list[str]:
    return FILTERS


def _merges(_: scripts.Program) -> list[str]:
    return MERGES


def _samplers(_: scripts.Program) -> list[str]:
    return [SAME + "sampler", *SAMPLERS]


def _schedules(_: scripts.Program) -> list[str]:
    return [SAME + "scheduler", *(spec.label for _, spec in SCHEDULES.items())]


ROWS: dict[str, tuple[tuple[Entry, ...], ...]] = {
    "": (
        (
            Entry(
                "ad_model",
                "Detector",
                NOTHING,
                "model",
                choices=lambda program: [NOTHING, *program.detectors()],
                is_open=True,
                always=True,
            ),
            Entry("ad_model_classes", "Only these classes", "", "model classes"),
            Entry("ad_tab_enable", "Enable this tab", True, "tab enable"),
        ),
        (Entry("ad_prompt", "Prompt", "", "prompt"),),
        (Entry("ad_negative_prompt", "Negative prompt", "", "negative prompt"),),
    ),
    "Detection": (
        (Entry("ad_confidence", "Confidence threshold", 0.3, "confidence", 0, 1, 0.01, always=True),),
        (
            Entry("ad_mask_filter_method", "The best by", FILTERS[0], "method to decide top k masks", choices=_filters),
            Entry("ad_mask_k", "Only so many (0: all)", 0, "mask only top k", 0, 1000, 1, (0, 10)),
        ),
        (
            Entry("ad_mask_min_ratio", "Least share of the area", 0.0, "mask min ratio", 0, 1, 0.001),
            Entry("ad_mask_max_ratio", "Largest share of the area", 1.0, "mask max ratio", 0, 1, 0.001),
        ),
    ),
    "Mask": (
        (
            Entry("ad_x_offset", "To the right, pixels", 0, "x offset", -4096, 4096, 1, (-200, 200)),
            Entry("ad_y_offset", "Upwards, pixels", 0, "y offset", -4096, 4096, 1, (-200, 200)),
        ),
        (
            Entry(
                "ad_dilate_erode",
                "Larger (or smaller), pixels",
                4,
                "dilate erode",
                -1024,
                1024,
                4,
                (-128, 128),
                always=True,
            ),
            Entry("ad_mask_merge_invert", "Merge masks", MERGES[0], "mask merge invert", choices=_merges),
        ),
    ),
    "Inpainting": (
        (
            Entry("ad_mask_blur", "Mask blur", 4, "mask blur", 0, 1024, 1, (0, 64), always=True),
            Entry("ad_denoising_strength", "Denoising strength", 0.4, "denoising strength", 0, 1, 0.01, always=True),
        ),
        (
            Entry("ad_inpaint_only_masked", "Only masked", True, "inpaint only masked", always=True),
            Entry(
                "ad_inpaint_only_masked_padding",
                "Padding, pixels",
                32,
                "inpaint padding",
                0,
                4096,
                4,
                (0, 256),
                always=True,
            ),
        ),
        (
            Entry("ad_use_inpaint_width_height", "Own size", False, "use inpaint width height"),
            Entry(
                "ad_inpaint_width",
                "Width",
                512,
                "inpaint width",
                64,
                16384,
                8,
                (64, 2048),
                switch="ad_use_inpaint_width_height",
            ),
            Entry(
                "ad_inpaint_height",
                "Height",
                512,
                "inpaint height",
                64,
                16384,
                8,
                (64, 2048),
                switch="ad_use_inpaint_width_height",
            ),
        ),
        (
            Entry("ad_use_steps", "Own steps", False, "use separate steps"),
            Entry("ad_steps", "Steps", 28, "steps", 1, 1000, 1, (1, 150), switch="ad_use_steps"),
        ),
        (
            Entry("ad_use_cfg_scale", "Own CFG scale", False, "use separate CFG scale"),
            Entry("ad_cfg_scale", "CFG scale", 7.0, "CFG scale", 0, 100, 0.5, (0, 30), switch="ad_use_cfg_scale"),
        ),
        (
            Entry("ad_use_checkpoint", "Own checkpoint", False, "use separate checkpoint"),
            Entry(
                "ad_checkpoint",
                "Checkpoint",
                NOTHING,
                "checkpoint",
                choices=lambda program: [NOTHING, SAME + "checkpoint", *program.checkpoints()],
                is_open=True,
                switch="ad_use_checkpoint",
            ),
        ),
        (
            Entry("ad_use_vae", "Own VAE", False, "use separate VAE"),
            Entry(
                "ad_vae",
                "VAE",
                NOTHING,
                "VAE",
                choices=lambda program: [*dict.fromkeys((NOTHING, SAME + "VAE", *program.vaes()))],
                is_open=True,
                switch="ad_use_vae",
            ),
        ),
        (
            Entry("ad_use_sampler", "Own sampler", False, "use separate sampler"),
            Entry(
                "ad_sampler",
                "Sampler",
                SAME + "sampler",
                "sampler",
                choices=_samplers,
                is_open=True,
                switch="ad_use_sampler",
            ),
            Entry(
                "ad_scheduler",
                "Schedule type",
                SAME + "scheduler",
                "scheduler",
                choices=_schedules,
                is_open=True,
                switch="ad_use_sampler",
            ),
        ),
        (
            Entry("ad_use_noise_multiplier", "Own noise multiplier", False, "use separate noise multiplier"),
            Entry(
                "ad_noise_multiplier",
                "Noise multiplier",
                1.0,
                "noise multiplier",
                0,
                10,
                0.01,
                (0.5, 1.5),
                switch="ad_use_noise_multiplier",
            ),
        ),
        (
            Entry("ad_use_clip_skip", "Own CLIP skip", False, "use separate CLIP skip"),
            Entry("ad_clip_skip", "CLIP skip", 1, "CLIP skip", 1, 12, 1, switch="ad_use_clip_skip"),
        ),
        (Entry("ad_restore_face", "Restore faces afterwards", False, "restore face"),),
    ),
}
"""By the part of the form that they stand in, line by line."""
ENTRIES = tuple(entry for rows in ROWS.values() for row in rows for entry in row)
BY_NAME = {entry.name: entry for entry in ENTRIES}
Unit = dict[str, Any]
"""The value of every entry, by its name."""


class Detailer(scripts.Script):
    """The script; takes part in every job."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = f"script_{'img2img' if is_img2img else 'txt2img'}_adetailer"
        with gr.Row():
            enabled = gr.Checkbox(False, label="Enable ADetailer", elem_id=f"{prefix}_ad_enable")
            skips = gr.Checkbox(
                False,
                label="Skip img2img",
                info="Details the given image, without img2img first.",
                visible=is_img2img,
                elem_id=f"{prefix}_ad_skip_img2img",
            )
        components: list[Any] = [enabled, skips]
        sources: list[Any] = [(enabled, _pasted_switch), (skips, partial(_pasted_flag, "ADetailer skip img2img"))]
        for number in range(UNITS):
            with gr.Tab(_ordinal(number)):
                built = self._unit_fields(prefix, number)
            components += built
            sources += [
                (component, partial(_pasted, entry, number)) for component, entry in zip(built, ENTRIES, strict=True)
            ]
        self.infotext_fields = sources
        return components

    def _unit_fields(self, prefix: str, number: int) -> list[Any]:
        import gradio as gr

        suffix = f"_{_ordinal(number)}" if number else ""
        built: list[Any] = []
        for title, rows in ROWS.items():
            with gr.Accordion(title, open=False) if title else gr.Column():
                for row in rows:
                    beside: Any = gr.Row() if len(row) > 1 else nullcontext()
                    with beside:
                        built += [self._control(entry, number, f"{prefix}_{entry.name}{suffix}") for entry in row]
        return built

    def _control(self, entry: Entry, number: int, elem_id: str) -> Any:
        import gradio as gr

        usual = FIRST_MODEL if entry.name == "ad_model" and number == 0 else entry.usual
        common: dict[str, Any] = {"value": usual, "label": entry.label, "elem_id": elem_id}
        if isinstance(usual, bool):
            return gr.Checkbox(**common, min_width=140)
        if entry.choices is not None:
            return gr.Dropdown(list(entry.choices(self.program)), allow_custom_value=entry.is_open, **common)
        if entry.low is not None and entry.high is not None:
            low, high = entry.slider or (entry.low, entry.high)
            return gr.Slider(low, high, step=entry.step, **common)
        hint = "Separate prompts with [SEP]; [SKIP] leaves a detection unchanged." if "prompt" in entry.name else ""
        return gr.Textbox(placeholder=hint, lines=1, **common)

    def process(self, p: Any, *args: Any) -> None:
        units, skips = self._wanted(p, args)
        if not units:
            return
        blank = Image.new("RGB", (64, 64))
        skips = skips and isinstance(p, ImageJob) and p.image_mask is None
        for number, unit in units:
            try:
                self.program.detector(unit["ad_model"])
                job = p.redrawing(blank, Image.new("L", blank.size, 255))
                self._prepare(job, p, unit)
                check_names_of(job.to_request())
            except FeatherweightError as error:
                raise type(error)(f"ADetailer, unit {number + 1}: {error}") from error
            steps = {"ad_use_steps": True, "ad_steps": job.steps} if skips else {}  # the job's own will be 1
            p.extra_generation_params |= _fields({**unit, **steps}, number)
        if skips:
            p.extra_generation_params["ADetailer skip img2img"] = True
            setattr(p, OWN_STEPS, getattr(p, OWN_STEPS, p.steps))
            p.steps, p.denoising_strength = 1, 0.0

    def postprocess_image(self, p: Any, pp: Any, *args: Any) -> None:
        units, _ = self._wanted(p, args)
        if not units or not pp.is_finished:
            return
        if hasattr(p, OWN_STEPS):
            first = p.init_images[pp.index % len(p.init_images)]
            pp.image = flattened(first, p.settings.img2img.img2img_background_color)
        for _, unit in units:
            if not self._detail(p, pp, unit):
                return

    def _wanted(self, p: Any, args: Sequence[Any]) -> tuple[list[tuple[int, Unit]], bool]:
        """The units that are on, with their numbers from 0, and whether img2img is skipped. Raises
        `InvalidValueError`."""
        given = [arg for arg in args if isinstance(arg, Mapping)]
        if given:  # of a caller: flags, then units; behind them are the page's defaults
            begin = next(place for place, arg in enumerate(args) if isinstance(arg, Mapping))
            flags = [bool(arg) for arg in args[:begin]]
        else:
            flags = [bool(arg) for arg in args[:2]]
            values = args[2:]
            count = len(ENTRIES)
            given = [
                dict(zip(BY_NAME, values[begin : begin + count], strict=True))
                for begin in range(0, len(values) // count * count, count)
            ]
        is_on, skips, *_ = (*flags, *(True, False)[len(flags) :])
        if not is_on:
            return [], False
        changed = getattr(p, VALUES_OF_AXES, {})
        units = [_unit(number, {**values, **(changed if number == 0 else {})}) for number, values in enumerate(given)]
        used = [(n, unit) for n, unit in enumerate(units) if unit["ad_tab_enable"] and unit["ad_model"] != NOTHING]
        return used, skips

    def _prepare(self, job: ImageJob, p: Any, unit: Unit) -> None:
        """The parameters of a unit. Raises `UnknownNameError` for a checkpoint that there is not."""
        job.steps = unit["ad_steps"] if unit["ad_use_steps"] else getattr(p, OWN_STEPS, p.steps)
        job.denoising_strength = unit["ad_denoising_strength"]
        job.mask_blur = unit["ad_mask_blur"]
        job.inpainting_fill = ORIGINAL
        job.inpaint_full_res = unit["ad_inpaint_only_masked"]
        job.inpaint_full_res_padding = unit["ad_inpaint_only_masked_padding"]
        if unit["ad_use_inpaint_width_height"]:
            job.width, job.height = unit["ad_inpaint_width"], unit["ad_inpaint_height"]
        elif not job.inpaint_full_res:
            job.width, job.height = job.init_images[0].size
        if unit["ad_use_cfg_scale"]:
            job.cfg_scale = unit["ad_cfg_scale"]
        if unit["ad_use_sampler"] and not unit["ad_sampler"].startswith(SAME):
            job.sampler_name, schedule = split_legacy_name(unit["ad_sampler"])
            job.scheduler = schedule or job.scheduler
        if unit["ad_use_sampler"] and not unit["ad_scheduler"].startswith(SAME):
            job.scheduler = unit["ad_scheduler"]
        if unit["ad_use_checkpoint"] and not _is_same(unit["ad_checkpoint"]):
            job.override_settings["sd_model_checkpoint"] = self.program.checkpoint(unit["ad_checkpoint"])
        if unit["ad_use_vae"] and not unit["ad_vae"].startswith(SAME):
            job.override_settings["sd_vae"] = unit["ad_vae"]
        if unit["ad_use_noise_multiplier"]:
            job.initial_noise_multiplier = unit["ad_noise_multiplier"]
        if unit["ad_use_clip_skip"]:
            job.override_settings["CLIP_stop_at_last_layers"] = unit["ad_clip_skip"]
        job.override_settings["face_restoration"] = unit["ad_restore_face"]

    def _detail(self, p: Any, pp: Any, unit: Unit) -> bool:
        """Repaint what a unit finds in `pp.image`. False: the user has stopped it."""
        image = pp.image
        order = DetailerSettings(p.settings)
        found = self.program.detect(image, unit["ad_model"], unit["ad_confidence"])
        masks = masks_of(chosen(found, unit, image.size, order.ad_bbox_sortby), unit, image.size)
        if not masks:
            log.info("ADetailer: %s finds nothing to paint.", unit["ad_model"])
            if WORDS.fullmatch(f"<{unit['ad_model']}>"):
                p.comment(page_text(f"ADetailer found nothing for {unit['ad_model']!r}; the image is unchanged."))
        texts = [
            [_text(part, own) for part in unit[name].split(SEPARATOR)]
            for name, own in (("ad_prompt", p.prompts), ("ad_negative_prompt", p.negative_prompts))
            for own in (own[pp.index % len(own)],)
        ]
        for number, mask in enumerate(masks):
            prompt, negative = (parts[min(number, len(parts) - 1)] for parts in texts)
            if prompt.strip() == SKIP:
                continue
            job = p.redrawing(pp.image, mask)
            self._prepare(job, p, unit)
            job.prompt, job.negative_prompt = prompt, negative
            job.seed = p.seeds[pp.index % len(p.seeds)] + (0 if order.ad_same_seed_for_each_tab else number)
            job.subseed = p.subseeds[pp.index % len(p.subseeds)]
            made = job.make()
            if made.interrupted:
                return False
            if made.images:  # none: the user skipped it
                new = made.images[0]
                pp.image = new if new.size == image.size else new.resize(image.size, Image.Resampling.LANCZOS)
        return True


def chosen(found: Sequence[Detection], unit: Unit, size_px: tuple[int, int], order: str) -> list[Detection]:
    """Choose what a unit takes of what was found, in the order of the settings."""
    classes = [name.strip().lower() for name in unit["ad_model_classes"].split(",") if name.strip()]
    area = size_px[0] * size_px[1]
    kept = [
        item
        for item in found
        if unit["ad_mask_min_ratio"] <= item.area_px / area <= unit["ad_mask_max_ratio"]
        and (not classes or item.label.lower() in classes)
    ]
    if unit["ad_mask_k"] > 0:
        by_area = unit["ad_mask_filter_method"] == "Area"
        best = sorted(kept, key=lambda item: -(item.area_px if by_area else item.score))[: unit["ad_mask_k"]]
        kept = [item for item in kept if item in best]
    middle = (size_px[0] / 2, size_px[1] / 2)
    ranks: dict[str, Callable[[Detection], float]] = {
        FROM_LEFT: lambda item: item.box[0],
        FROM_MIDDLE: lambda item: _distance(item, middle),
        BY_AREA: lambda item: -item.area_px,
    }
    return sorted(kept, key=ranks[order]) if order in ranks else kept


def _distance(item: Detection, place: tuple[float, float]) -> float:
    left, top, right, bottom = item.box
    return float(np.hypot((left + right) / 2 - place[0], (top + bottom) / 2 - place[1]))


def masks_of(found: Sequence[Detection], unit: Unit, size_px: tuple[int, int]) -> list[Image.Image]:
    """The masks ("L") to be painted one after the other: moved, dilated or eroded, merged; without those in which
    nothing is left."""
    masks = []
    for item in found:
        mask = Image.new("L", size_px)
        mask.paste(item.mask(size_px), (unit["ad_x_offset"], -unit["ad_y_offset"]))
        masks.append(_dilated(mask, unit["ad_dilate_erode"]))
    merge = unit["ad_mask_merge_invert"]
    if merge != NOTHING and masks:
        whole = masks[0]
        for mask in masks[1:]:
            whole = ImageChops.lighter(whole, mask)
        masks = [ImageChops.invert(whole) if merge == MERGES[2] else whole]
    return [mask for mask in masks if mask.getbbox() is not None]


def _dilated(mask: Image.Image, pixels: int) -> Image.Image:
    """A mask grown or shrunk by a square of so many pixels a side."""
    if pixels == 0:
        return mask
    from scipy.ndimage import grey_dilation, grey_erosion  # slow to import, and a start does not need it

    change = grey_dilation if pixels > 0 else grey_erosion
    return Image.fromarray(change(np.asarray(mask), size=(abs(pixels),) * 2))


def _text(part: str, own: str) -> str:
    """A prompt of a unit; an empty one is the image's own."""
    return part.replace(OWN_PROMPT, own).strip() if part.strip() else own


def _is_same(checkpoint: str) -> bool:
    return checkpoint in ("", NOTHING) or checkpoint.startswith(SAME)


def _unit(number: int, given: Mapping[str, Any]) -> Unit:
    """All values of a unit, as usual where a caller says nothing. Raises `InvalidValueError`."""
    values = {OLD_NAMES.get(name, name): value for name, value in given.items()}
    if str(values.pop("ad_controlnet_model", NOTHING)) not in (NOTHING, "", "Passthrough"):
        raise InvalidValueError(
            f"ADetailer, unit {number + 1}: ControlNet is not available here; leave ad_controlnet_model 'None'."
        )
    unknown = [name for name in values if name not in BY_NAME and name not in NOT_USED]
    if unknown:
        log.warning("ADetailer, unit %d: unknown fields without effect: %s.", number + 1, ", ".join(unknown))
    try:
        unit = {entry.name: entry.read(values.get(entry.name, entry.usual)) for entry in ENTRIES}
        words = WORDS.findall(unit["ad_prompt"])
        if len(words) > 1:
            raise InvalidValueError(f"its prompt has {len(words)} tags <segment:...>; allowed is one for each unit.")
    except InvalidValueError as error:
        raise InvalidValueError(f"ADetailer, unit {number + 1}: {error}") from error
    return {**unit, "ad_model": words[0], "ad_prompt": WORDS.sub("", unit["ad_prompt"])} if words else unit


def _ordinal(number: int) -> str:
    """Name the place of a unit that is counted from 0."""
    return f"{number + 1}{('st', 'nd', 'rd')[number] if number < 3 else 'th'}"


def _key(entry: Entry, number: int) -> str:
    return f"ADetailer {entry.key}" + (f" {_ordinal(number)}" if number else "")


def _fields(unit: Unit, number: int) -> dict[str, Any]:
    """Return what an infotext says of a unit: some always, the rest where it is not as usual."""
    return {
        _key(entry, number): unit[entry.name]
        for entry in ENTRIES
        if (unit[entry.switch] if entry.switch else entry.always or unit[entry.name] != entry.usual)
    }


def _pasted(entry: Entry, number: int, fields: Mapping[str, Any]) -> Any:
    """A value of an infotext; where it does not name it, what is usual, and nothing where it knows no detailer."""
    if _key(BY_NAME["ad_model"], 0) not in fields:
        return None
    text = fields.get(_key(entry, number))
    return entry.usual if text is None else entry.read(text)


def _pasted_switch(fields: Mapping[str, Any]) -> bool | None:
    return True if _key(BY_NAME["ad_model"], 0) in fields else None


def _pasted_flag(key: str, fields: Mapping[str, Any]) -> bool | None:
    return str(fields.get(key)) == "True" if _pasted_switch(fields) else None


def _axis(label: str, name: str) -> Axis:
    """Over a field of the first unit."""
    entry = BY_NAME[name]

    def apply(p: Any, value: Any, values: Sequence[Any]) -> None:
        setattr(p, VALUES_OF_AXES, {**getattr(p, VALUES_OF_AXES, {}), name: value})

    return Axis(label, entry.read, apply, is_number=entry.low is not None, choices=entry.choices)


add_axis(_axis("[ADetailer] Model 1st", "ad_model"))
add_axis(_axis("[ADetailer] Denoising strength 1st", "ad_denoising_strength"))
add_axis(_axis("[ADetailer] Prompt 1st", "ad_prompt"))
