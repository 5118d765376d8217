"""A tab that an extension adds among the program's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from modules.access.roles import Role


@dataclass(frozen=True)
class PageTab:
    """A tab of the page. `build` receives a `modules.ui.tab_order.TabPlace` and builds the contents inside of the tab
    that is open then. `name` is its element id behind `tab_` and its name in settings; `after` names the tab that it
    follows (without one it comes before the settings), `least` the role that sees it."""

    name: str
    title: str
    build: Callable[[Any], None]
    after: str = ""
    least: Role = Role.ADMIN
