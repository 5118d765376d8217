"""Looks of the page that users change: Gradio's themes by name, and `user.css`."""

import logging
from pathlib import Path

import gradio as gr

from modules.system.texts import page_text
from modules.ui.common.theme import FONTS, MONO, build_theme

log = logging.getLogger(__name__)

DEFAULT, CONTRAST = "Default", page_text("High contrast")
MAX_CSS_BYTES = 2_000_000
THEMES: dict[str, type[gr.themes.Base]] = {
    "gradio/base": gr.themes.Base,
    "gradio/citrus": gr.themes.Citrus,
    "gradio/default": gr.themes.Default,
    "gradio/glass": gr.themes.Glass,
    "gradio/monochrome": gr.themes.Monochrome,
    "gradio/ocean": gr.themes.Ocean,
    "gradio/origin": gr.themes.Origin,
    "gradio/soft": gr.themes.Soft,
}
"""Gradio's own, under the names that settings of the reference UI have; with our fonts, as theirs come from the net."""


def theme_of(name: str) -> tuple[gr.themes.Base, str]:
    """The theme of a setting, and what is wrong with it; one that is not here is replaced by ours."""
    if name in ("", DEFAULT, CONTRAST):
        return build_theme(), ""
    if name in THEMES:
        return THEMES[name](font=FONTS, font_mono=MONO), ""
    known = ", ".join((DEFAULT, CONTRAST, *THEMES))
    fault = page_text(f"The theme {name!r} was left out: it is not one of {known}; themes are not downloaded.")
    log.warning("%s", fault)
    return build_theme(), fault


def user_css(folder: Path) -> tuple[Path | None, str]:
    """The user's style sheet, where there is one that can be used, and what is wrong with it."""
    file = folder / "user.css"
    if not file.is_file():
        return None, ""
    try:
        if file.stat().st_size > MAX_CSS_BYTES:
            raise ValueError(f"it is larger than {MAX_CSS_BYTES // 1_000_000} MB")
        text = file.read_text(encoding="utf-8")
        if "</style" in text.lower():
            raise ValueError("it holds </style")
        if text.count("{") != text.count("}"):
            raise ValueError(f"it has {text.count('{')} opening and {text.count('}')} closing braces")
    except (OSError, ValueError) as error:
        fault = page_text(f"{file} was left out: {error}.")
        log.warning("%s", fault)
        return None, fault
    return file, ""
