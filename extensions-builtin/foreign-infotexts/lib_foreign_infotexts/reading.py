"""Which program made an image, and what it says, as an infotext: from the texts in a file, and from pasted JSON."""

import re
from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.comfyui import comfyui_record, graph_of, is_graph, is_workflow
from lib_foreign_infotexts.drawthings import XMP, drawthings_json, drawthings_record, is_drawthings, swarm_record
from lib_foreign_infotexts.easydiffusion import easydiffusion_record, is_easydiffusion
from lib_foreign_infotexts.fooocus import fooocus_record, is_fooocus
from lib_foreign_infotexts.invokeai import dream_record, invokeai_record, is_invokeai, old_invokeai_record
from lib_foreign_infotexts.novelai import SOFTWARE, novelai_infotext
from lib_foreign_infotexts.record import ForeignRecord
from modules.bounded import read_json

IN_CHUNKS = ("invokeai_metadata", "invokeai", "sd-metadata", "prompt", "workflow", "parameters", "Comment")
"""Texts of a file that may hold JSON of theirs, the one that says most first."""
MIN_FIELDS = 2
ITS_WORDS = {
    ", Seed Mode: ": {"Guidance Scale": "CFG scale", "Strength: 1\\.0, Seed Mode": "Seed Mode"},
    ", ADM Guidance: ": {
        **{"Base Model": "Model", "Base Model Hash": "Model hash", "Scheduler": "Schedule type"},
        "VAE: Default \\(model\\), Raw prompt": "Raw prompt",
    },
    ", Scheduler: ": {"Scheduler": "Schedule type"},
}
"""How Draw Things, Fooocus and nodes of ComfyUI call fields of an infotext, by a field that only they write."""
_LORA_WEIGHTS = re.compile(r', Lora weights: "([^"]*)"')
_WEIGHT = re.compile(r"([^\s,:][^,:]*): (-?\d+(?:\.\d+)?)")


def foreign_infotext(items: Mapping[str, str], width: int, height: int) -> str | None:
    """An infotext from the texts of an image file; None if no known program wrote them. Sizes are in pixels, of the
    image, for programs that do not record it."""
    if items.get("Software") == SOFTWARE:
        return novelai_infotext(items, width, height)
    if is_easydiffusion(items):
        return easydiffusion_record(items).infotext
    if XMP in items and (given := drawthings_json(items[XMP])) is not None:
        return drawthings_record(given).infotext
    for name in IN_CHUNKS:
        found = infotext_of_text(items.get(name, ""))
        if found is not None:
            return found
    dream = dream_record(items["Dream"]) if "Dream" in items else None
    return None if dream is None else dream.infotext


def infotext_of_text(text: str) -> str | None:
    """An infotext from JSON that one of the programs writes, or from an infotext in their words; None for any other
    text, and for one that says nearly nothing of how an image is made."""
    if not text.lstrip().startswith("{"):
        return in_usual_words(text)
    record = _record(_json(text))
    return None if record is None or len(record.fields) < MIN_FIELDS else record.infotext


def in_usual_words(text: str) -> str | None:
    """An infotext of Draw Things or Fooocus with the usual names of its fields; None for those of other programs."""
    head, _, line = text.strip().rpartition("\n")
    words = next((words for mark, words in ITS_WORDS.items() if mark in line), None)
    if words is None:
        return None
    for theirs, usual in words.items():
        line = re.sub(rf"(^|, ){theirs}: ", rf"\g<1>{usual}: ", line)
    weights = _LORA_WEIGHTS.search(line)
    if weights is None:
        return f"{head}\n{line}"
    tags = "".join(f" <lora:{name}:{weight}>" for name, weight in _WEIGHT.findall(weights[1]))
    prompt, mark, negative = head.partition("\nNegative prompt:")
    return f"{prompt}{tags}{mark}{negative}\n{_LORA_WEIGHTS.sub('', line)}"


def _json(text: str) -> object:
    try:
        return read_json(text, constant=lambda name: None)  # ComfyUI writes NaN for nodes that always run
    except ValueError:
        return None


def _record(given: object) -> ForeignRecord | None:
    if is_graph(given):
        return comfyui_record(_mapping(given))
    if is_workflow(given):
        return comfyui_record(graph_of(_mapping(given)))
    if not isinstance(given, dict):
        return None
    if isinstance(given.get("sui_image_params"), dict):
        return swarm_record(given["sui_image_params"])
    if is_invokeai(given):
        return invokeai_record(given)
    if isinstance(given.get("image"), dict) and "app_version" in given:
        return old_invokeai_record(given)
    if is_fooocus(given):
        return fooocus_record(given)
    return drawthings_record(given) if is_drawthings(given) else None


def _mapping(given: object) -> Mapping[str, Any]:
    assert isinstance(given, dict)
    return given
