"""The units on the page. What they say is one text, the list of units as JSON in the form of callers; the fields are
built by the script `javascript/controlnet.js`, so that units cost the page nothing until they are opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from lib_controlnet.files import find_model
from lib_controlnet.units import NO_MODEL, unit_of_infotext
from modules.errors import UnknownNameError
from modules.scripts.pasting import LeftOut
from modules.scripts.program import Program
from modules.system.texts import page_text

TITLE = "ControlNet"
MAX_PASTED = 10


def build(script: Any, is_img2img: bool) -> tuple[Any, list[Any]]:
    """The component that holds the units, and what a pasted infotext gives to it."""
    import gradio as gr

    tab = "img2img" if is_img2img else "txt2img"
    count = int(script.program.settings().get("control_net_unit_count", 3))
    units = gr.Textbox("", label="ControlNet units", elem_id=f"{tab}_controlnet_units", visible="hidden")
    gr.HTML(f'<div class="controlnet-units" data-tab="{tab}" data-units="{count}"></div>')
    return units, [(units, partial(pasted_units, script.program, is_img2img))]


def pasted_units(program: Program, is_img2img: bool, parsed: Mapping[str, Any]) -> LeftOut | None:
    """The units of an infotext, as JSON; None where it has none. A unit whose model is not here stays off."""
    found: list[dict[str, Any]] = []
    sentences: list[str] = []
    for number in range(MAX_PASTED):
        unit = unit_of_infotext(parsed, f"{TITLE} {number}")
        if unit is None:
            continue
        is_here = _is_here(program, str(unit.get("model", NO_MODEL)))
        place = len(found)
        found.append({"enabled": is_here, **unit})
        if not is_here:
            sentences.append(page_text(f"Control model '{unit['model']}' is not here: unit {place} stays off."))
        elif not is_img2img:
            sentences.append(page_text(f"Parameters hold no images: give unit {place} its own."))
    if not found:
        return None
    return LeftOut(json.dumps(found) if any(unit["enabled"] for unit in found) else "", tuple(sentences))


def _is_here(program: Program, model: str) -> bool:
    if model.lower() == NO_MODEL.lower():
        return True
    try:
        find_model(program, model)
    except UnknownNameError:
        return False
    return True
