"""The units on the page. What they say is one text, the list of units as JSON in the form of callers; the fields are
built by the script `javascript/controlnet.js`, so that units cost the page nothing until they are opened."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from lib_controlnet.units import unit_of_infotext

TITLE = "ControlNet"
MAX_PASTED = 10


def build(script: Any, is_img2img: bool) -> tuple[Any, list[Any]]:
    """The component that holds the units, and what a pasted infotext gives to it."""
    import gradio as gr

    tab = "img2img" if is_img2img else "txt2img"
    count = int(script.program.settings().get("control_net_unit_count", 3))
    units = gr.Textbox("", label="ControlNet units", elem_id=f"{tab}_controlnet_units", visible="hidden")
    gr.HTML(f'<div class="controlnet-units" data-tab="{tab}" data-units="{count}"></div>')
    return units, [(units, pasted_units)]


def pasted_units(parsed: Mapping[str, Any]) -> str | None:
    """The units of an infotext; None where it has none. Their images are not in it."""
    found = []
    for number in range(MAX_PASTED):
        unit = unit_of_infotext(parsed, f"{TITLE} {number}")
        if unit is not None:
            found.append({"enabled": True, **unit})
    return json.dumps(found) if found else None
