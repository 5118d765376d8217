"""Images of Fooocus: JSON in the PNG chunk `parameters`, or the same in the words of its older log."""

import re
from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.record import ForeignRecord, listed, size_of, stem

KEYS = {
    "steps": "Steps",
    "guidance_scale": "CFG scale",
    "seed": "Seed",
    "sampler": "Sampler",
    "scheduler": "Schedule type",
    "clip_skip": "Clip skip",
    "base_model": "Model",
    "base_model_hash": "Model hash",
}
RUINED = {"negative": "negative_prompt", "cfg": "guidance_scale", "sampler_name": "sampler"}
RUINED |= {"base_model_name": "base_model"}
"""Names of RuinedFooocus -> those here."""
STEPS = {"Quality": 60, "Speed": 30, "Extreme Speed": 8, "Lightning": 4, "Hyper-SD": 4}
"""Of its choices for performance, which older images name instead of a number."""
_PAIR = re.compile(r"\(?\s*(\d{1,5})\s*[,x×]\s*(\d{1,5})\s*\)?")
_LORA = re.compile(r"lora_(?:combined_)?\d+(?:_.*)?")
_MARKS = ("metadata_scheme", "base_model", "full_prompt", "performance")


def is_fooocus(given: Mapping[str, Any]) -> bool:
    """Whether JSON is theirs: two of the names that no other program uses."""
    lowered = {_name(key) for key in given}
    return "prompt" in lowered and (is_ruined(given) or sum(mark in lowered for mark in _MARKS) >= 2)


def is_ruined(given: Mapping[str, Any]) -> bool:
    """Whether it is of RuinedFooocus, which has names of its own."""
    return given.get("software") == "RuinedFooocus"


def fooocus_record(given: Mapping[str, Any]) -> ForeignRecord:
    """The record of their JSON."""
    values = {_name(key): value for key, value in given.items()}
    if is_ruined(given):
        values = {RUINED.get(key, key): value for key, value in values.items() if key != "software"}
        values["resolution"] = size_of(values.pop("width", None), values.pop("height", None))
        pairs = [
            str(one[1]).rpartition(" - ") for one in listed(values, "loras") if isinstance(one, list) and len(one) > 1
        ]
        values["loras"] = [[name, weight] for name, _, weight in pairs if name]
    record = ForeignRecord("Fooocus", str(values.get("prompt", "")), str(values.get("negative_prompt", "")))
    record.take(values, KEYS)
    if "Model" in record.fields:
        record.fields["Model"] = stem(record.fields["Model"])
    if "Steps" not in record.fields and str(values.get("performance")) in STEPS:
        record.fields["Steps"] = STEPS[str(values["performance"])]
    size = _PAIR.search(str(values.get("resolution", "")))
    if size:
        record.fields["Size"] = size_of(size[1], size[2])
    if values.get("refiner_model") not in (None, "", "None"):
        record.fields["Refiner"] = stem(values["refiner_model"])
        record.fields["Refiner switch at"] = values.get("refiner_switch", 0.5)
    loras = values.get("loras")
    if isinstance(loras, list):
        record.loras = [(one[0], one[1]) for one in loras if isinstance(one, list) and len(one) > 1]
    else:
        combined = [str(value).rpartition(" : ") for key, value in values.items() if _LORA.fullmatch(key)]
        record.loras = [(name, weight) for name, _, weight in combined if name]
    known = {*KEYS, "prompt", "negative_prompt", "resolution", "refiner_model", "refiner_switch", "loras"}
    record.take_rest(
        values,
        {
            *known,
            *(key for key in values if _LORA.fullmatch(key)),
            "full_prompt",
            "full_negative_prompt",
            "metadata_scheme",
        },
    )
    return record


def _name(key: str) -> str:
    """ "Guidance Scale" of older images as "guidance_scale"; their numbered LoRAs stay apart from the list."""
    return key.strip().lower().replace(" ", "_")
