"""`modules.ui_prompt_styles`."""

from typing import Any

import gradio as gr

from compat.facades.refusal import refusing
from compat.facades.style_book import prompt_styles
from compat.facades.ui import apply_styles as materialize_styles

__all__ = [
    "materialize_styles",
    "refresh_styles",
    "select_style",
    "styles_copy_symbol",
    "styles_edit_symbol",
    "styles_materialize_symbol",
]
styles_edit_symbol, styles_materialize_symbol, styles_copy_symbol = "🖌️", "📋", "📝"


def select_style(name: str) -> list[Any]:
    """Return updates of the two prompts of a style, and of what is shown where there is none."""
    style = prompt_styles.styles.get(name)
    there = style is not None
    texts = (style.prompt, style.negative_prompt) if style is not None else ("", "")
    return [*texts, gr.update(visible=there), gr.update(visible=not there)]


def refresh_styles() -> tuple[Any, Any]:
    """Return updates of two lists of styles."""
    names = list(prompt_styles.styles)
    return gr.update(choices=names), gr.update(choices=names)


_FORM = "script_callbacks.on_after_component gives each control of the form, by its elem_id."
__getattr__ = refusing("ui_prompt_styles", dict.fromkeys(("UiPromptStyles", "save_style", "delete_style"), _FORM))
