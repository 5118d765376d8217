"""Which tabs the page has, in which order."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from modules.scripts.callbacks import Callbacks
from modules.scripts.page_tab import AddedTab, added_tabs
from modules.services import Services

WhenOpened = Callable[..., Any]
"""Takes what an event of Gradio takes: what a tab does when it is opened, so that it costs nothing before."""

TAB_ORDER = {
    "txt2img": "txt2img",
    "img2img": "img2img",
    "extras": "Extras",
    "pnginfo": "PNG Info",
    "getmodels": "Get models",
    "queue": "Queue",
    "history": "History",
    "settings": "Settings",
    "extensions": "Extensions",
}
"""Titles by name, in the page's own order."""


@dataclass(frozen=True)
class TabPlace:
    """Parts that a tab is built with: the program, its event of being opened, and the checkpoint that the header
    shows."""

    services: Services
    when_opened: WhenOpened
    checkpoint: gr.Dropdown


def tabs_of_extensions(callbacks: Callbacks) -> dict[str, AddedTab]:
    """Return the tabs of extensions by name."""
    return added_tabs(callbacks, TAB_ORDER)


def tab_titles(added: Mapping[str, AddedTab]) -> dict[str, str]:
    """Return the titles of all tabs by name, in the page's own order."""
    names = list(TAB_ORDER)
    left = list(added)
    while left:
        places = {name: next((one for one in added[name].tab.follows if one in (*names, *left)), "") for name in left}
        name = next((one for one in left if places[one] in names), left[0])
        names.insert(names.index(places[name]) + 1 if places[name] in names else names.index("settings"), name)
        left.remove(name)
    return {name: TAB_ORDER[name] if name in TAB_ORDER else added[name].tab.title for name in names}


def ordered(wanted: Sequence[str], titles: Mapping[str, str]) -> list[str]:
    """Return the names of all tabs: the wanted ones first, by name or title, then the others."""
    names = {title.lower(): name for name, title in titles.items()} | {name: name for name in titles}
    first = [names[one.strip().lower()] for one in wanted if one.strip().lower() in names]
    return list(dict.fromkeys((*first, *titles)))


def is_hidden(name: str, title: str, hidden: Sequence[str]) -> bool:
    """Return whether the settings hide a tab; the settings themselves always stay."""
    return name != "settings" and {name, title.lower()} & {one.strip().lower() for one in hidden} != set()
