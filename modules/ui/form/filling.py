"""Filling of a form from outside: pasted parameters without what is not here, and the values of an earlier page.

A value that a field does not take would make every later Generate fail, so none of these gets in. No Gradio event in
here, only its components.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gradio as gr

from modules.processing.request.pasting import images_begun_with, references_shown
from modules.processing.request.upscaling import hires_upscalers
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.names import sampler_named, schedule_named
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.system.bounded import read_json
from modules.system.texts import page_text
from modules.ui.form.form import NO_REFINER, ROWS, SAME_CHECKPOINT, SAME_SAMPLER, SAME_SCHEDULER
from modules.ui.form.seed_field import SeedField

ADAPTER_TAG = re.compile(r"\s*<(lora|lyco|hypernet):([^:<>]+)(?::[^<>]*)?>")
PROMPTS = ("prompt", "negative_prompt", "hires_prompt", "hires_negative_prompt")
CHECKPOINTS = {
    "refiner_checkpoint": (NO_REFINER, "no refiner"),
    "hires_checkpoint": (SAME_CHECKPOINT, "the same checkpoint"),
}
"""Fields with checkpoints: what stands for none in them, and what that means in a sentence."""
MAX_PROGRAM_CHARS = 60
MAX_SLIPS = 2
"""By how many letters a name that is only spelled otherwise may be longer or shorter."""
MIN_LIKENESS = 0.8


@dataclass(frozen=True)
class Filling:
    """Values of a form by the names of its fields, and a sentence about each that was left out."""

    values: dict[str, Any]
    left_out: tuple[str, ...] = ()


def filled_in(parsed: Mapping[str, Any]) -> str:
    """Return the sentence that parameters were filled in, with the program that wrote them where they name it."""
    program = str(parsed.get("App", ""))[:MAX_PROGRAM_CHARS]
    if program:
        return page_text(f"The parameters of {program} were filled in.")
    return page_text("The parameters were filled in.")


def known_only(values: Mapping[str, Any], parsed: Mapping[str, Any], services: Services) -> Filling:
    """The values of a pasted infotext without names that are not here: samplers, schedule types, upscalers,
    checkpoints and VAEs; in their place stands what is used instead. Tags of adapters that are not here stay in the
    prompts, for the file may come. `parsed` are the fields of the infotext; no values give no values."""
    if not values:
        return Filling({})
    kept, left_out = dict(values), []
    for field, (word, choices) in choices_of_names(services).items():
        if field not in kept:
            continue
        wanted = str(kept[field])
        name = _same_name(wanted, choices)
        if name is None:
            name = _instead(field, choices)
            left_out.append(missing(word, wanted, choices, name))
        kept[field] = name
    titles = [info.title for info in services.catalogue.entries]
    for field, (nothing, instead) in CHECKPOINTS.items():
        name = kept.get(field, nothing)
        if name != nothing and services.catalogue.find(name) is None:
            left_out.append(missing("Checkpoint", name, titles, instead))
            kept[field] = nothing
    for field in PROMPTS:
        if field in kept:
            left_out += _missing_adapters(kept[field], services)
    left_out += [
        page_text(
            f"The image was made from the {word} {name} (sha256 of its pixels): put that into img2img to make it again."
        )
        for word, name in images_begun_with(parsed)
    ]
    left_out += [
        page_text(
            f"The image was made with the reference image {name} (sha256 of its pixels): add it under Reference images "
            "to make it again."
        )
        for name in references_shown(parsed)
    ]
    kept["overrides"], sentences = _known_overrides(kept.get("overrides", []), parsed, services)
    return Filling(kept, tuple(dict.fromkeys([*left_out, *sentences])))


def choices_of_names(services: Services) -> dict[str, tuple[str, list[str]]]:
    """The lists that a form's fields choose from, as they now are: field -> word for it, choices."""
    hidden = services.settings.current.sampler.hide_samplers
    samplers = [name for name in SAMPLERS if name not in hidden]
    schedules = [spec.label for _, spec in SCHEDULES.items()]
    return {
        "sampler": ("Sampler", samplers),
        "scheduler": ("Schedule type", schedules),
        "hires_upscaler": ("Upscaler", list(hires_upscalers(services.engine.upscalers.catalogue.names))),
        "hires_sampler": ("Hires sampler", [SAME_SAMPLER, *samplers]),
        "hires_scheduler": ("Hires schedule type", [SAME_SCHEDULER, *schedules]),
    }


def missing(word: str, name: str, known: Iterable[str], instead: str) -> str:
    """A sentence about a name that is not here and what is used instead; with the name that was meant, where only its
    spelling differs."""
    return page_text(f"{word} '{name}' is not here: {instead} is used.") + _spelling(name, known)


def _spelling(name: str, known: Iterable[str]) -> str:
    by_lower = {one.lower(): one for one in known if abs(len(one) - len(name)) <= MAX_SLIPS}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=MIN_LIKENESS)
    return page_text(f" Did you mean '{by_lower[near[0]]}'?") if near else ""


def _instead(field: str, choices: Sequence[str]) -> str:
    """Return what a field has where nothing is said; the first choice where the settings hide that."""
    row = ROWS[field]
    usual = row.nothing if row.default is None else row.default
    return usual if usual in choices else choices[0]


def _same_name(name: str, choices: Sequence[str]) -> str | None:
    """The choice that a name or one of its aliases means."""
    if name in choices:
        return name
    return next((meant for meant in (sampler_named(name), schedule_named(name)) if meant in choices), None)


def _missing_adapters(prompt: str, services: Services) -> list[str]:
    """A sentence about each tag of a prompt whose file is not here."""
    adapters = services.engine.adapters.files
    sentences = []
    for tag in ADAPTER_TAG.finditer(prompt):
        catalogue, word = (
            (adapters.hypernetworks, "Hypernetwork") if tag[1] == "hypernet" else (adapters.catalogue, "LoRA")
        )
        if catalogue.find(tag[2]) is None:
            hint = _spelling(tag[2], [info.name for info in catalogue.entries])
            sentence = page_text(
                f"{word} '{tag[2]}' is not here: its tag stays, without effect until the file is there."
            )
            sentences.append(sentence + hint)
    return sentences


def _known_overrides(
    shown: Sequence[str], parsed: Mapping[str, Any], services: Services
) -> tuple[list[str], list[str]]:
    """The override settings without a checkpoint or VAE that is not here. A checkpoint is named also where the
    settings say that an infotext does not choose it: another model will make the image."""
    kept, sentences = [], []
    checkpoint_label = SETTINGS.get("sd_model_checkpoint").infotext
    vae_label = SETTINGS.get("sd_vae").infotext
    for line in shown:
        label, _, value = line.partition(": ")
        if label == checkpoint_label:
            found = _checkpoint_of(parsed, services)
            kept += [f"{label}: {found}"] if found else []
        elif label == vae_label and value not in services.engine.vaes.choices():
            names = [info.name for info in services.engine.vaes.entries]
            sentences.append(missing("VAE", value, names, "the one of the settings"))
        else:
            kept.append(line)
    if any(parsed.get(field) for field in ("Model", "Model hash")) and not _checkpoint_of(parsed, services):
        name = str(parsed.get("Model") or parsed["Model hash"])
        titles = [info.name for info in services.catalogue.entries]
        sentences.append(missing("Checkpoint", name, titles, "the selected one"))
    return kept, sentences


def _checkpoint_of(parsed: Mapping[str, Any], services: Services) -> str | None:
    """The title of the checkpoint that an infotext names by hash or name."""
    for field in ("Model hash", "Model"):
        name = str(parsed.get(field) or "")
        found = services.catalogue.find(name) if name else None
        if found is not None:
            return found.title
    return None


def restored(
    text: str, fields: Mapping[str, gr.components.Component], others: Sequence[gr.components.Component]
) -> dict[gr.components.Component, Any]:
    """The values that an earlier page kept (`keepForm` of form.js), as far as the fields of this page take them.

    `text` is JSON: {"fields": {name: value}, "others": [value, ...]}; the latter are left out where their number is
    another than now, because scripts were added or removed since. Text that is no such JSON restores nothing.
    """
    try:
        kept = read_json(text or "{}")
        by_name, rest = dict(kept.get("fields") or {}), list(kept.get("others") or [])
    except (ValueError, TypeError, AttributeError):
        return {}
    found = {fields[name]: value for name, value in by_name.items() if name in fields}
    if len(rest) == len(others):
        found.update(zip(others, rest, strict=True))
    return {field: value for field, value in found.items() if takes(field, value)}


def takes(field: gr.components.Component, value: Any) -> bool:
    """Whether a field of the page takes a value; of types that hold files or images none is restored."""
    if isinstance(field, gr.Dropdown | gr.Radio | gr.CheckboxGroup):
        choices = [choice[1] for choice in field.choices]
        chosen = value if isinstance(value, list) else [value]
        is_free = isinstance(field, gr.Dropdown) and field.allow_custom_value
        return all(one in choices or (is_free and isinstance(one, str)) for one in chosen)
    if isinstance(field, gr.Slider | gr.Number):
        return _is_within(field, value)
    if isinstance(field, gr.Checkbox):
        return isinstance(value, bool)
    if isinstance(field, SeedField):
        return isinstance(field.preprocess(value), int)
    return isinstance(field, gr.Textbox) and isinstance(value, str)


def bounded(values: Mapping[str, Any], fields: Mapping[str, gr.components.Component]) -> Filling:
    """Values of a form without numbers that its fields do not take."""
    kept, left_out = {}, []
    for name, value in values.items():
        field = fields.get(name)
        if isinstance(field, gr.Slider | gr.Number) and not _is_within(field, value):
            allowed = f"{field.minimum:g} to {field.maximum:g}" if isinstance(field, gr.Slider) else "a number"
            left_out.append(page_text(f"{field.label} {value} was left out: the form takes {allowed}."))
        else:
            kept[name] = value
    return Filling(kept, tuple(left_out))


def _is_within(field: gr.Slider | gr.Number, value: Any) -> bool:
    if value is None:
        return isinstance(field, gr.Number)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    least, most = field.minimum, field.maximum
    return (least is None or value >= least) and (most is None or value <= most)
