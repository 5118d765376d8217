"""The values of a form as a request, and pasted parameters as values of a form. No Gradio in here."""

from collections.abc import Iterable, Mapping
from typing import Any

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.images.other_programs import usual_infotext
from modules.processing.request.checking import check_names
from modules.processing.request.parameters import Choices, Parameter, Tab, number
from modules.processing.request.pasting import pasted_hires, pasted_mask, pasted_start, pasted_values
from modules.processing.request.request import HIRES_ROWS, PARAMETERS, REQUEST_ROWS, GenerationRequest, HiresRequest
from modules.processing.request.source_images import (
    IMAGE_ROWS,
    MASK_ROWS,
    FromImage,
    FromNoise,
    RequestStart,
    check_start,
)
from modules.prompting.styles import StyleBook
from modules.sampling.names import schedule_named
from modules.scripts.callbacks import Moment
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.setting import Setting

ROWS = {row.key: row for row in (*PARAMETERS, *IMAGE_ROWS, *MASK_ROWS) if row.control is not None}
"""The parameters that the forms show, by the names of their fields."""

OF_AN_IMAGE = ("Steps", "Sampler", "Seed", "CFG scale", "Size-1")
"""Fields that tell parameters of an image from other text."""

TAB_NAMES = {Tab.TXT2IMG: "txt2img", Tab.IMG2IMG: "img2img"}
"""What the tabs are called, and how the ids of their elements begin."""


def _shown(rows: Iterable[Parameter], tab: Tab) -> tuple[str, ...]:
    return tuple(row.key for row in rows if row.key in ROWS and tab in row.tabs)


FIELDS = (*_shown(REQUEST_ROWS, Tab.TXT2IMG), "hires_enabled", *_shown(HIRES_ROWS, Tab.TXT2IMG), "overrides")
"""The fields of the txt2img form in the order in which their values arrive."""

IMAGE_FIELDS = (
    *_shown((*REQUEST_ROWS, *IMAGE_ROWS, *MASK_ROWS), Tab.IMG2IMG),
    *("mode", "sizing", "scale_by", "mask_alpha"),
    *("batch_source", "batch_input_dir", "batch_output_dir", "batch_mask_dir"),
    *("batch_png_info", "batch_png_info_dir", "batch_png_info_fields", "overrides"),
)
"""Those of the img2img form. `mode` is the sub tab with the image, `sizing` whether the size is given in pixels ("to")
or by the factor `scale_by` ("by"), `batch_source` whether a batch takes files that were sent ("upload") or those of a
"directory"."""

NO_IMAGE = FromNoise()

FIELDS_OF = {"txt2img": FIELDS, "img2img": IMAGE_FIELDS}

NO_REFINER = ROWS["refiner_checkpoint"].nothing
SAME_CHECKPOINT, SAME_SAMPLER, SAME_SCHEDULER = (
    ROWS[f"hires_{name}"].nothing for name in ("checkpoint", "sampler", "scheduler")
)


def request_of(form: Mapping[str, Any], services: Services, start: RequestStart = NO_IMAGE) -> GenerationRequest:
    """The request of a filled form; styles are applied, override settings go into the snapshot.

    Raises `FeatherweightError` with a sentence for the user.
    """
    overrides = parse_overrides(form["overrides"] or [])
    settings = services.settings.current.with_changes(overrides)
    values = _values(form, REQUEST_ROWS)
    styles: tuple[str, ...] = values["styles"]
    book = StyleBook.read(services.paths.styles_files)
    values["prompt"] = book.apply_to_prompt(values["prompt"], styles)
    values["negative_prompt"] = book.apply_to_negative(values["negative_prompt"], styles)
    request = GenerationRequest(
        **values,
        start=start,
        tiling=settings.stable_diffusion.tiling,
        hires=_hires(form, book, styles) if form.get("hires_enabled") else None,
        checkpoint=str(overrides["sd_model_checkpoint"]) if "sd_model_checkpoint" in overrides else None,
        override_settings=overrides,
        settings=settings,
    )
    if isinstance(start, FromImage):
        check_start(start, request.batch_size)
    check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
    return request


def hires_of(form: Mapping[str, Any], styles: tuple[str, ...], services: Services) -> HiresRequest:
    """Return what a filled form says of hires fix, whether it is on or not, with these styles; raises as
    `request_of`."""
    return _hires(form, StyleBook.read(services.paths.styles_files), styles)


def _values(form: Mapping[str, Any], rows: Iterable[Parameter]) -> dict[str, Any]:
    """Return what the form says of these parameters, by the names of the request's fields."""
    return {row.name: row.from_form(form[row.key]) for row in rows if row.control is not None}


def start_values(form: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the img2img form says for `FromImage` and for its `Mask`, without the images. Raises ValueError."""
    mask = _values(form, MASK_ROWS)
    return _values(form, IMAGE_ROWS), {**mask, "blur_y": mask["blur_x"]}


def _hires(form: Mapping[str, Any], book: StyleBook, styles: tuple[str, ...]) -> HiresRequest:
    values = _values(form, HIRES_ROWS)
    if values["prompt"]:
        values["prompt"] = book.apply_to_prompt(values["prompt"], styles)
    if values["negative_prompt"]:
        values["negative_prompt"] = book.apply_to_negative(values["negative_prompt"], styles)
    return HiresRequest(**values)


def show_override(setting: Setting, value: object) -> str:
    """An override as the form lists it: "Clip skip: 2"."""
    shown = ", ".join(value) if isinstance(value, tuple) else value
    return f"{setting.infotext or setting.key}: {shown}"


def parse_overrides(shown: list[str]) -> dict[str, Any]:
    """The inverse of `show_override` for a list of them; lines that name no setting are refused by `with_changes`."""
    by_label = {s.infotext: s.key for _, s in SETTINGS.items() if s.infotext}
    result: dict[str, Any] = {}
    for line in shown:
        label, _, text = line.partition(": ")
        key = by_label.get(label, label)
        result[key] = _typed(key, text)
    return result


def _typed(key: str, text: str) -> object:
    """Text as the type of its setting; what does not convert stays text and is refused with a sentence later."""
    if key not in SETTINGS:
        return text
    default = SETTINGS.get(key).default
    try:
        if isinstance(default, bool):
            return text == "True"
        if isinstance(default, int):
            return int(text)
        if isinstance(default, tuple):
            return tuple(part for part in text.split(", ") if part)
        return number(text) if isinstance(default, float) else text
    except ValueError:
        return text


def pasted_fields(text: str, services: Services) -> dict[str, Any]:
    """The fields of an infotext, after the callbacks of scripts; empty for text without parameters."""
    current = services.settings.current
    text = usual_infotext(text)
    parsed = parse_infotext(
        text,
        skip_fields=current.infotext.infotext_skip_pasting,
        backward_compatible=current.compatibility.auto_backcompat,
    )
    if not any(key in parsed for key in OF_AN_IMAGE):
        return {}
    services.scripts.callbacks.call(Moment.INFOTEXT_PASTED, text, parsed)
    return dict(parsed)


def form_values(parsed: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """Values of the forms by the names of their fields, from what `pasted_fields` gave; empty where that is."""
    if not parsed:
        return {}
    current = services.settings.current
    values = pasted_values(parsed)
    if "scheduler" in values:
        values["scheduler"] = schedule_named(str(values["scheduler"])) or values["scheduler"]
    hires = pasted_hires(parsed)
    values["hires_enabled"] = hires is not None
    values |= {row.key: hires[row.name] for row in HIRES_ROWS if hires and row.name in hires}
    for rows, found_rows in ((IMAGE_ROWS, pasted_start(parsed)), (MASK_ROWS, pasted_mask(parsed))):
        values |= {row.key: _in_form(row, found_rows[row.name]) for row in rows if row.name in found_rows}
    values["sizing"] = "to"
    for row in ROWS.values():
        if row.choices is Choices.CHECKPOINTS:
            found = services.catalogue.find(values.get(row.key) or "")
            values[row.key] = found.title if found else values.get(row.key)
        if row.is_optional and row.key in values:
            values[row.key] = values[row.key] or row.nothing
    overrides = override_settings_from(parsed, current)
    values["overrides"] = [show_override(SETTINGS.get(key), value) for key, value in overrides.items()]
    _take_styles(values, current.infotext.infotext_styles, services)
    return {name: value for name, value in values.items() if name in FIELDS or name in IMAGE_FIELDS}


def _in_form(row: Parameter, value: Any) -> Any:
    """A value as its control has it: radio buttons have plain numbers."""
    return int(value) if row.words else value


def sent_values(parsed: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """The values of the form without those that the settings keep from being sent to another tab."""
    current = services.settings.current
    left = set() if current.interface.send_seed else {"seed", "subseed", "subseed_strength"}
    left |= set() if current.interface.send_size else {"width", "height"}
    return {name: value for name, value in form_values(parsed, services).items() if name not in left}


def _take_styles(values: dict[str, Any], mode: str, services: Services) -> None:
    """Find styles in pasted prompts, as the setting `infotext_styles` says."""
    if mode == "Ignore":
        return
    book = StyleBook.read(services.paths.styles_files)
    found = book.extract(values.get("prompt", ""), values.get("negative_prompt", ""))
    values["prompt"], values["negative_prompt"] = found.prompt, found.negative_prompt
    if mode == "Apply" or (mode == "Apply if any" and found.names):
        values["styles"] = list(found.names)
