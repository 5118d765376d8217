"""What is put into a form from outside: pasted parameters without what is not here, and the values of an earlier page.

A value that a field does not take would make every later Generate fail, so none of these gets in. No Gradio event in
here, only its components.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import gradio as gr

from modules.processing.pasting import images_begun_with
from modules.processing.pipeline.upscaling import hires_upscalers
from modules.registry import Registry
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.services import Services
from modules.settings.definitions import SETTINGS
from modules.ui.form import NO_REFINER, SAME_CHECKPOINT, SAME_SAMPLER, SAME_SCHEDULER

ADAPTER_TAG = re.compile(r"\s*<(lora|lyco|hypernet):([^:<>]+)(?::[^<>]*)?>")
PROMPTS = ("prompt", "negative_prompt", "hires_prompt", "hires_negative_prompt")
CHECKPOINTS = {"refiner_checkpoint": NO_REFINER, "hires_checkpoint": SAME_CHECKPOINT}


@dataclass(frozen=True)
class Filling:
    """Values of a form by the names of its fields, and a sentence about each that was left out."""

    values: dict[str, Any]
    left_out: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """What became of the pasted parameters, for the user."""
        return " ".join(("The parameters were filled in.", *self.left_out))


def known_only(values: Mapping[str, Any], parsed: Mapping[str, Any], services: Services) -> Filling:
    """The values of a pasted infotext without names that are not here: samplers, schedule types, upscalers,
    checkpoints, VAEs and adapters. `parsed` are the fields of the infotext; no values give no values."""
    if not values:
        return Filling({})
    kept, left_out = dict(values), []
    for field, (word, choices) in choices_of_names(services).items():
        if field not in kept:
            continue
        name = _same_name(str(kept[field]), choices)
        if name is None:
            left_out.append(missing(word, kept.pop(field), choices))
        else:
            kept[field] = name
    titles = [info.title for info in services.catalogue.entries]
    for field, nothing in CHECKPOINTS.items():
        name = kept.get(field, nothing)
        if name != nothing and services.catalogue.find(name) is None:
            left_out.append(missing("Checkpoint", name, titles))
            kept[field] = nothing
    for field in PROMPTS:
        if field in kept:
            kept[field], sentences = _known_networks(kept[field], services)
            left_out += sentences
    left_out += [
        f"The image was made from the {word} {name} (sha256 of its pixels): put that into img2img to make it again."
        for word, name in images_begun_with(parsed)
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


def missing(word: str, name: str, known: Iterable[str]) -> str:
    """A sentence about a name that is not here, with the nearest that is."""
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.0)
    hint = f"; the nearest here is '{by_lower[near[0]]}'" if near else ""
    return f"{word} '{name}' is not here and was left out{hint}."


def _same_name(name: str, choices: Sequence[str]) -> str | None:
    """The choice that a name or one of its aliases means."""
    if name in choices:
        return name
    catalogues: tuple[tuple[Registry[Any], Callable[[str], str]], ...] = (
        (SAMPLERS, lambda found: found),
        (SCHEDULES, lambda found: SCHEDULES.get(found).label),
    )
    for catalogue, label in catalogues:
        if name in catalogue:
            meant = label(catalogue.canonical(name))
            if meant in choices:
                return meant
    return None


def _known_networks(prompt: str, services: Services) -> tuple[str, list[str]]:
    adapters = services.engine.adapters.files
    sentences = []

    def keep(tag: re.Match[str]) -> str:
        catalogue, word = (
            (adapters.hypernetworks, "Hypernetwork") if tag[1] == "hypernet" else (adapters.catalogue, "LoRA")
        )
        if catalogue.find(tag[2]) is not None:
            return tag[0]
        sentences.append(missing(word, tag[2], [info.name for info in catalogue.entries]))
        return ""

    return ADAPTER_TAG.sub(keep, prompt), sentences


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
            sentences.append(missing("VAE", value, [info.name for info in services.engine.vaes.entries]))
        else:
            kept.append(line)
    if any(parsed.get(field) for field in ("Model", "Model hash")) and not _checkpoint_of(parsed, services):
        name = str(parsed.get("Model") or parsed["Model hash"])
        sentences.append(missing("Checkpoint", name, [info.title for info in services.catalogue.entries]))
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
        kept = json.loads(text or "{}")
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
    return isinstance(field, gr.Textbox) and isinstance(value, str)


def bounded(values: Mapping[str, Any], fields: Mapping[str, gr.components.Component]) -> Filling:
    """Values of a form without numbers that its fields do not take."""
    kept, left_out = {}, []
    for name, value in values.items():
        field = fields.get(name)
        if isinstance(field, gr.Slider | gr.Number) and not _is_within(field, value):
            allowed = f"{field.minimum:g} to {field.maximum:g}" if isinstance(field, gr.Slider) else "a number"
            left_out.append(f"{field.label} {value} was left out: the form takes {allowed}.")
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
