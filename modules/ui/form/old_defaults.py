"""Defaults of forms (`ui-config.json`) as versions of the reference UI named them, by today's names."""

import re
from collections.abc import Mapping
from typing import Any

from modules.errors import UnknownNameError
from modules.sampling.names import AUTOMATIC, is_usual, split_legacy_name

OF_SCRIPTS = re.compile(r"customscript/(?:sampler|seed|refiner)\.py/((?:txt2img|img2img)/.+)")
"""Since 1.6 the reference UI counts these parts of the form among scripts, since 1.9 with the sampler's fields."""
COMBINED = (("Sampling method", "Schedule type"), ("Hires sampling method", "Hires schedule type"))


def current_entries(entries: Mapping[str, Any]) -> dict[str, Any]:
    """The entries with their names of today; what has none keeps its name. A combined sampler ("DPM++ 2M Karras") is
    two entries; entries that are there under both names have the value under today's."""
    found: dict[str, Any] = {}
    for key, value in entries.items():
        match = OF_SCRIPTS.fullmatch(key)
        found[match[1] if match else key] = entries.get(match[1], value) if match else value
    for tab in ("txt2img", "img2img"):
        for sampler, schedule in COMBINED:
            _split(found, f"{tab}/{sampler}/value", f"{tab}/{schedule}/value")
    return found


def _split(entries: dict[str, Any], sampler_key: str, schedule_key: str) -> None:
    name = entries.get(sampler_key)
    if not isinstance(name, str):
        return
    try:
        sampler, schedule = split_legacy_name(name)
    except UnknownNameError:
        return  # the control names it as one that it cannot take
    entries[sampler_key] = sampler
    if schedule != AUTOMATIC and not is_usual(sampler, schedule):
        entries[schedule_key] = schedule
