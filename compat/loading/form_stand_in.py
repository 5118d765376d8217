"""The controls of the image tabs as user extensions await them before their `ui` is called, made where there
is no page: a worker builds a script's components for their defaults alone."""

from __future__ import annotations

from typing import Any

from compat.habits.gradio_habits import layouts_of
from modules.scripts.acting import acting
from modules.scripts.callbacks import Moment
from modules.scripts.loading import Loading
from modules.scripts.script import OnComponent, Script

CONTROLS = (
    ("prompt", "Prompt", "Textbox"),
    ("neg_prompt", "Negative prompt", "Textbox"),
    ("generate", "Generate", "Button"),
    ("steps", "Sampling steps", "Slider"),
    ("sampling", "Sampling method", "Dropdown"),
    ("width", "Width", "Slider"),
    ("height", "Height", "Slider"),
    ("batch_count", "Batch count", "Slider"),
    ("batch_size", "Batch size", "Slider"),
    ("cfg_scale", "CFG Scale", "Slider"),
    ("seed", "Seed", "Number"),
)
"""The end of an id, the label, and the class of Gradio."""


def tell_of_form(script: Script) -> None:
    """Tell a user script, and the callbacks of its extension, of stand-ins for the controls of both tabs, in
    the layout that is open now. Nothing happens where the page has told its extension already. Raises what they
    raise."""
    author = script.acting
    if not isinstance(author, Loading) or not author.is_foreign or author.owner.has_seen_form:
        return
    import gradio as gr

    listening = [
        one
        for one in author.callbacks.at(Moment.AFTER_COMPONENT)
        if one.acting is not None and one.acting.owner is author.owner
    ]
    for is_img2img, tab in enumerate(("txt2img", "img2img")):
        for name, label, made in CONTROLS:
            elem_id, named = f"{tab}_{name}", {"value": label} if made == "Button" else {"label": label}
            component = getattr(gr, made)(**named, elem_id=elem_id)
            facts: dict[str, Any] = {"elem_id": elem_id, "label": label, "value": component.value}
            for known_as in (*layouts_of(elem_id), elem_id):
                for one in listening:
                    author.callbacks.run(one, component, **{**facts, "elem_id": known_as})
                if script.is_img2img != bool(is_img2img):
                    continue
                with acting(author):
                    script.after_component(component, **{**facts, "elem_id": known_as})
                    for callback in script.component_callbacks(known_as, True):
                        callback(OnComponent(component))
