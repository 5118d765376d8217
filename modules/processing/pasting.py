"""A parsed infotext as values of a request: what pasting parameters, or the API's `infotext` field, fills in."""

from collections.abc import Callable, Mapping
from typing import Any

# infotext field -> (name of the request's field, type)
REQUEST_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "Prompt": ("prompt", str),
    "Negative prompt": ("negative_prompt", str),
    "Steps": ("steps", int),
    "Sampler": ("sampler", str),
    "Schedule type": ("scheduler", str),
    "CFG scale": ("cfg_scale", float),
    "Seed": ("seed", int),
    "Size-1": ("width", int),
    "Size-2": ("height", int),
    "Variation seed": ("subseed", int),
    "Variation seed strength": ("subseed_strength", float),
    "Seed resize from-1": ("seed_resize_from_width", int),
    "Seed resize from-2": ("seed_resize_from_height", int),
    "Refiner": ("refiner_checkpoint", str),
    "Refiner switch at": ("refiner_switch_at", float),
}
HIRES_FIELDS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "Hires upscale": ("scale", float),
    "Hires upscaler": ("upscaler", str),
    "Hires steps": ("steps", int),
    "Hires resize-1": ("resize_width", int),
    "Hires resize-2": ("resize_height", int),
    "Hires sampler": ("sampler", str),
    "Hires schedule type": ("scheduler", str),
    "Hires checkpoint": ("checkpoint", str),
    "Hires prompt": ("prompt", str),
    "Hires negative prompt": ("negative_prompt", str),
    "Denoising strength": ("denoising_strength", float),
}
SAME_AS_FIRST = ("Use same sampler", "Use same scheduler", "Use same checkpoint")


def pasted_values(parsed: Mapping[str, object]) -> dict[str, Any]:
    """Values by the names of `GenerationRequest`; a field that is no value of its type is left out."""
    return _convert(parsed, REQUEST_FIELDS)


def pasted_hires(parsed: Mapping[str, object]) -> dict[str, Any] | None:
    """Values by the names of `HiresRequest`, or None for an image made without hires fix."""
    if "Hires upscaler" not in parsed and "Hires upscale" not in parsed:
        return None
    values = _convert(parsed, HIRES_FIELDS)
    return {name: value for name, value in values.items() if value not in SAME_AS_FIRST}


def _convert(parsed: Mapping[str, object], table: Mapping[str, tuple[str, Callable[[Any], Any]]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for field, (name, convert) in table.items():
        if field in parsed:
            try:
                values[name] = convert(parsed[field])
            except (TypeError, ValueError):
                continue  # pasted text may come from anywhere; the rest of it is still good
    return values
