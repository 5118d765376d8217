"""Which tabs the page has, in which order."""

from collections.abc import Callable, Sequence
from typing import Any

WhenOpened = Callable[..., Any]
"""Takes what an event of Gradio takes: what a tab does when it is opened, so that it costs nothing before."""

TAB_ORDER = {
    "txt2img": "txt2img",
    "img2img": "img2img",
    "extras": "Extras",
    "pnginfo": "PNG Info",
    "modelmerger": "Checkpoint Merger",
    "train": "Train",
    "precision": "Precision",
    "getmodels": "Get models",
    "queue": "Queue",
    "history": "History",
    "settings": "Settings",
    "extensions": "Extensions",
}
"""Titles by name, in the page's own order."""


def ordered(wanted: Sequence[str]) -> list[str]:
    """The names of all tabs: the wanted ones first, by name or title, then the others."""
    names = {title.lower(): name for name, title in TAB_ORDER.items()} | {name: name for name in TAB_ORDER}
    first = [names[one.strip().lower()] for one in wanted if one.strip().lower() in names]
    return list(dict.fromkeys((*first, *TAB_ORDER)))


def is_hidden(name: str, hidden: Sequence[str]) -> bool:
    """Whether the settings hide a tab; the settings themselves always stay."""
    return name != "settings" and {name, TAB_ORDER[name].lower()} & {one.strip().lower() for one in hidden} != set()
