"""Tabs that extensions add among the program's own."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from modules.access.roles import Role
from modules.errors import InvalidValueError
from modules.scripts.acting import acting
from modules.scripts.callbacks import Callbacks, Moment, Registered


@dataclass(frozen=True)
class PageTab:
    """A tab of the page. `build` receives a `modules.ui.common.tab_order.TabPlace` and builds the contents inside
    of the tab that is open then. `name` is its element id behind `tab_` and its name in settings; `after` names the
    tab that it follows, or several of which the first that is there counts (else it comes before the settings), `least`
    the role that sees it."""

    name: str
    title: str
    build: Callable[[Any], None]
    after: str | tuple[str, ...] = ()
    least: Role = Role.ADMIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "least", Role(self.least))

    @property
    def follows(self) -> tuple[str, ...]:
        """Return the names of `after`."""
        return (self.after,) if isinstance(self.after, str) else self.after


@dataclass(frozen=True)
class AddedTab:
    """A tab of an extension, and the callback that gave it."""

    tab: PageTab
    entry: Registered

    def build(self, place: Any) -> None:
        """Build the contents. A fault of the extension costs the rest of its own tab, not the page."""
        try:
            with acting(self.entry.acting):
                self.tab.build(place)
        except (Exception, SystemExit) as error:
            self.entry.failed(error)


def added_tabs(callbacks: Callbacks, taken: Container[str]) -> dict[str, AddedTab]:
    """Return the tabs of extensions by name. One whose name is taken is left out, with a fault of its extension."""
    found: dict[str, AddedTab] = {}
    for entry in callbacks.at(Moment.PAGE_TABS):
        try:
            for tab in callbacks.run(entry):
                if tab.name in taken or tab.name in found:
                    raise InvalidValueError(f"There is a tab {tab.name!r} already. Give this one another name.")
                found[tab.name] = AddedTab(tab, entry)
        except (Exception, SystemExit) as error:  # somebody else's code must not cost the page
            entry.failed(error)
    return found
