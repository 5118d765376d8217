"""Images of Draw Things: JSON in the XMP block of a PNG; and of SwarmUI: JSON in the chunk `parameters`."""

from collections.abc import Mapping
from typing import Any

from lib_foreign_infotexts.record import ForeignRecord, listed, size_of, stem

KEYS = {
    "steps": "Steps",
    "scale": "CFG scale",
    "seed": "Seed",
    "sampler": "Sampler",
    "size": "Size",
    "strength": "Denoising strength",
    "clip_skip": "Clip skip",
}
SWARM = {
    "steps": "Steps",
    "cfgscale": "CFG scale",
    "seed": "Seed",
    "sampler": "Sampler",
    "scheduler": "Schedule type",
    "fluxguidancescale": "Distilled CFG Scale",
    "initimagecreativity": "Denoising strength",
}


def is_drawthings(given: Mapping[str, Any]) -> bool:
    """Whether JSON is theirs."""
    return "c" in given and "uc" in given and "steps" in given


def drawthings_record(given: Mapping[str, Any]) -> ForeignRecord:
    """The record of their JSON. A strength of 1 is an image from noise alone."""
    record = ForeignRecord("Draw Things", str(given.get("c") or ""), str(given.get("uc") or ""))
    record.take(given, KEYS)
    if isinstance(sampler := record.fields.get("Sampler"), str):
        record.fields["Sampler"] = sampler.removesuffix(" Substep")  # the same method in steps of its own
    if record.fields.get("Denoising strength") in (1, 1.0):
        del record.fields["Denoising strength"]
    if given.get("model"):
        record.fields["Model"] = stem(given["model"])
    for one in listed(given, "lora"):
        if isinstance(one, dict) and one.get("model"):
            record.loras.append((one["model"], one.get("weight", 1)))
    record.take_rest(given, (*KEYS, "c", "uc", "model", "lora", "v2", "profile"))
    return record


def swarm_record(given: Mapping[str, Any]) -> ForeignRecord:
    """The record of what SwarmUI writes under `sui_image_params`."""
    record = ForeignRecord("SwarmUI", str(given.get("prompt") or ""), str(given.get("negativeprompt") or ""))
    record.take(given, SWARM)
    record.fields["Size"] = size_of(given.get("width"), given.get("height"))
    if given.get("model"):
        record.fields["Model"] = stem(given["model"])
    names, weights = given.get("loras"), given.get("loraweights")
    if isinstance(names, list):
        shares = weights if isinstance(weights, list) and len(weights) == len(names) else [1] * len(names)
        record.loras = list(zip(map(str, names), shares, strict=True))
    known = ("prompt", "negativeprompt", "width", "height", "model", "loras", "loraweights", "aspectratio")
    record.take_rest(given, (*SWARM, *known, "swarm_version"))
    return record
