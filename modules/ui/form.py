"""The values of the txt2img form as a request, and pasted parameters as values of the form. No Gradio in here."""

from collections.abc import Mapping
from typing import Any

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.processing.checking import check_names
from modules.processing.pasting import pasted_hires, pasted_values
from modules.processing.request import GenerationRequest, HiresRequest
from modules.prompting.styles import StyleBook
from modules.sampling.catalog import SCHEDULES
from modules.scripts.callbacks import Moment
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.settings.setting import Setting

SAME_SAMPLER = "Use same sampler"
SAME_SCHEDULER = "Use same scheduler"
SAME_CHECKPOINT = "Use same checkpoint"
NO_REFINER = "None"

# The form's fields in the order in which their values arrive.
FIELDS = (
    *("prompt", "negative_prompt", "styles", "sampler", "scheduler", "steps", "width", "height"),
    *("batch_count", "batch_size", "cfg_scale", "seed", "subseed", "subseed_strength"),
    *("seed_resize_from_width", "seed_resize_from_height"),
    *("hires_enabled", "hires_upscaler", "hires_steps", "hires_strength", "hires_scale", "hires_width", "hires_height"),
    *("hires_checkpoint", "hires_sampler", "hires_scheduler", "hires_prompt", "hires_negative_prompt"),
    *("refiner_checkpoint", "refiner_switch_at", "overrides"),
)
PASTED_HIRES = {
    "upscaler": "hires_upscaler",
    "steps": "hires_steps",
    "denoising_strength": "hires_strength",
    "scale": "hires_scale",
    "resize_width": "hires_width",
    "resize_height": "hires_height",
    "checkpoint": "hires_checkpoint",
    "sampler": "hires_sampler",
    "scheduler": "hires_scheduler",
    "prompt": "hires_prompt",
    "negative_prompt": "hires_negative_prompt",
}


def request_of(form: Mapping[str, Any], services: Services) -> GenerationRequest:
    """The request of a filled form; styles are applied, override settings go into the snapshot.

    Raises `FeatherweightError` with a sentence for the user.
    """
    overrides = parse_overrides(form["overrides"] or [])
    settings = services.settings.current.with_changes(overrides)
    styles = tuple(form["styles"] or ())
    book = StyleBook.read(services.paths.styles_files)
    numbers: dict[str, Any] = {name: _whole(form[name], default) for name, default in WHOLE_NUMBERS.items()}
    request = GenerationRequest(
        prompt=book.apply_to_prompt(form["prompt"] or "", styles),
        negative_prompt=book.apply_to_negative(form["negative_prompt"] or "", styles),
        styles=styles,
        sampler=form["sampler"],
        scheduler=form["scheduler"],
        cfg_scale=float(form["cfg_scale"]),
        subseed_strength=float(form["subseed_strength"] or 0),
        tiling=settings.flag("tiling"),
        hires=_hires(form, book, styles) if form["hires_enabled"] else None,
        refiner_checkpoint=None if form["refiner_checkpoint"] in (NO_REFINER, "", None) else form["refiner_checkpoint"],
        refiner_switch_at=float(form["refiner_switch_at"]),
        checkpoint=str(overrides["sd_model_checkpoint"]) if "sd_model_checkpoint" in overrides else None,
        override_settings=overrides,
        settings=settings,
        **numbers,
    )
    check_names(request, services.catalogue, services.engine.upscalers.catalogue.names)
    return request


WHOLE_NUMBERS = {
    "steps": 20,
    "width": 512,
    "height": 512,
    "batch_count": 1,
    "batch_size": 1,
    "seed": -1,
    "subseed": -1,
    "seed_resize_from_width": 0,
    "seed_resize_from_height": 0,
}


def _whole(value: Any, default: int) -> int:
    """A number field's value; an emptied field has its default."""
    return default if value is None or value == "" else int(value)


def _hires(form: Mapping[str, Any], book: StyleBook, styles: tuple[str, ...]) -> HiresRequest:
    prompt, negative = form["hires_prompt"] or "", form["hires_negative_prompt"] or ""
    return HiresRequest(
        upscaler=form["hires_upscaler"],
        steps=_whole(form["hires_steps"], 0),
        denoising_strength=float(form["hires_strength"]),
        scale=float(form["hires_scale"]),
        resize_width=_whole(form["hires_width"], 0),
        resize_height=_whole(form["hires_height"], 0),
        checkpoint=None if form["hires_checkpoint"] in (SAME_CHECKPOINT, "", None) else form["hires_checkpoint"],
        sampler=None if form["hires_sampler"] == SAME_SAMPLER else form["hires_sampler"],
        scheduler=None if form["hires_scheduler"] == SAME_SCHEDULER else form["hires_scheduler"],
        prompt=book.apply_to_prompt(prompt, styles) if prompt else "",
        negative_prompt=book.apply_to_negative(negative, styles) if negative else "",
    )


def show_override(setting: Setting, value: object) -> str:
    """An override as the form lists it: "Clip skip: 2"."""
    return f"{setting.infotext or setting.key}: {value}"


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
        return float(text) if isinstance(default, float) else text
    except ValueError:
        return text


def pasted_fields(text: str, services: Services) -> dict[str, Any]:
    """The fields of an infotext, after the callbacks of scripts; empty for text without parameters."""
    current = services.settings.current
    parsed = parse_infotext(
        text, skip_fields=current.many("infotext_skip_pasting"), backward_compatible=current.flag("auto_backcompat")
    )
    if "Steps" not in parsed:
        return {}
    services.scripts.callbacks.call(Moment.INFOTEXT_PASTED, text, parsed)
    return dict(parsed)


def form_values(parsed: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """The form's values by the names of `FIELDS`, from what `pasted_fields` gave; empty where that is."""
    if not parsed:
        return {}
    current = services.settings.current
    values = pasted_values(parsed)
    if "scheduler" in values and values["scheduler"] in SCHEDULES:
        values["scheduler"] = SCHEDULES.get(values["scheduler"]).label
    hires = pasted_hires(parsed)
    values["hires_enabled"] = hires is not None
    for name, value in (hires or {}).items():
        if name in PASTED_HIRES:
            values[PASTED_HIRES[name]] = value
    for name, nothing in (("refiner_checkpoint", NO_REFINER), ("hires_checkpoint", SAME_CHECKPOINT)):
        wanted = values.get(name, nothing)
        found = services.catalogue.find(wanted) if wanted != nothing else None
        values[name] = found.title if found else wanted
    overrides = override_settings_from(parsed, current)
    values["overrides"] = [show_override(SETTINGS.get(key), value) for key, value in overrides.items()]
    _take_styles(values, current.text("infotext_styles"), services)
    return {name: value for name, value in values.items() if name in FIELDS}


def sent_values(parsed: Mapping[str, Any], services: Services) -> dict[str, Any]:
    """As `form_values`, without what the settings say is not sent along from another tab."""
    current = services.settings.current
    left = set() if current.flag("send_seed") else {"seed", "subseed", "subseed_strength"}
    left |= set() if current.flag("send_size") else {"width", "height"}
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
