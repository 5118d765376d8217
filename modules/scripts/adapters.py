"""Additions of extensions to extra networks: types of tags in prompts, and pages of cards.

Both carry the names that authors of extensions for the reference UI know; `modules.extra_networks` has the functions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from modules.errors import InvalidValueError
from modules.model_cards.cards import CardPage
from modules.scripts.program import Program

if TYPE_CHECKING:
    from modules.processing.engine.adapters import AdapterJob
    from modules.prompting.extra_networks import PromptTag

log = logging.getLogger(__name__)
OURS = ("hypernet",)  # types that no extension can take
_WORD = re.compile(r"\w+")

MakePage = Callable[[Program], CardPage]
"""Builds a page of cards when the program is there."""


class ExtraNetwork:
    """A type of tags `<name:...>` in the prompt. Subclass it, and give an instance to `register_extra_network`."""

    def __init__(self, name: str, aliases: Sequence[str] = ()) -> None:
        """Names are letters, digits and underscores; `aliases` are other names for the same type."""
        self.name = name
        self.aliases = tuple(aliases)

    def activate(self, job: AdapterJob, tags: Sequence[PromptTag]) -> None:
        """Bring `job.model` to where exactly these tags hold on it; with none, to where it was without any.

        Called before the prompts of each batch are encoded, and for every model that takes a turn (refiner, hires
        fix). Raise a `FeatherweightError` for what cannot be done: it ends the job with its sentence.
        """
        raise NotImplementedError(f"{type(self).__name__} has no activate()")

    def deactivate(self, job: AdapterJob) -> None:
        """`job.model` has done its part in the job. What can stay on it for the next one may."""


class ExtraNetworks:
    """The types and the pages of all extensions, in the order in which they were registered."""

    def __init__(self) -> None:
        self._types: list[tuple[str, ExtraNetwork]] = []
        self._pages: list[tuple[str, MakePage]] = []

    @property
    def types(self) -> tuple[ExtraNetwork, ...]:
        """Handlers of tags, by their type."""
        return tuple(tag_type for _, tag_type in self._types)

    def add_type(self, tag_type: ExtraNetwork, extension: str) -> None:
        """Raises `InvalidValueError` for a name that is taken or cannot stand in a tag."""
        for name in (tag_type.name, *tag_type.aliases):
            if not _WORD.fullmatch(name):
                raise InvalidValueError(f"A tag cannot be called {name!r}: use letters, digits and underscores.")
            owner = next((by for by, other in self._types if name in (other.name, *other.aliases)), None)
            owner = "the program" if name in OURS else owner
            if owner is not None:
                raise InvalidValueError(f"The tag <{name}:...> is taken by {owner}. Choose another name.")
        self._types.append((extension, tag_type))

    def add_page(self, make: MakePage, extension: str) -> None:
        """A page that is built when the program is there."""
        self._pages.append((extension, make))

    def forget(self, extension: str) -> None:
        """Take away all that a file registered (it could not be loaded to its end)."""
        self._types = [item for item in self._types if item[0] != extension]
        self._pages = [item for item in self._pages if item[0] != extension]

    def pages(self, program: Program, ours: Iterable[CardPage] = ()) -> tuple[CardPage, ...]:
        """Our pages and those of the extensions. One that cannot be built, or whose id is taken, is logged."""
        found = {page.id: page for page in ours}
        for extension, make in self._pages:
            try:
                page = make(program)
                if not _WORD.fullmatch(page.id) or page.id in found or page.id == "generation":
                    raise InvalidValueError(f"A page of cards cannot be called {page.id!r}, or that name is taken.")
            except Exception:  # somebody else's code must not cost the program
                log.exception("The page of cards of %s could not be built.", extension)
                continue
            found[page.id] = page
        return tuple(found.values())
