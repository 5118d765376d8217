"""The long-lived objects of one running program, built by `modules.assembly` and handed to the edges. Holds, does
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from modules.access import Access
from modules.downloads.downloads import Downloads
from modules.history.service import HistoryService
from modules.jobs.batch import Batches
from modules.jobs.computing import Computing
from modules.jobs.dispatch import Dispatcher
from modules.jobs.workers.group import ModelHost, Workers
from modules.model_cards.cards import CardLibrary
from modules.processing.memory_estimate.planner import LocalPlanner, Planner
from modules.processing.record.spool import Spool
from modules.scripts.foreign import ForeignLoading
from modules.scripts.library import ScriptLibrary

if TYPE_CHECKING:
    from fastapi import APIRouter


class ForeignProgram(ForeignLoading, Protocol):
    """Extensions of another program in a whole one: what they reach of it, and what page and API show of them."""

    def enter(self, computing: Computing) -> None:
        """Have extensions of this process reach it, before they are loaded."""

    def serve(self, services: Services) -> None:
        """Have them reach the server, once it is built."""

    def api_routes(self, services: Services) -> Sequence[APIRouter]:
        """Return the routes that list, install and switch extensions."""

    def page_routes(self, services: Services) -> APIRouter:
        """Return the routes of the files that extensions bring for the page."""

    def frame_hosts(self, library: ScriptLibrary) -> tuple[str, ...]:
        """Name the sites that extensions show in frames of the page."""

    def page_facts(self, library: ScriptLibrary) -> Mapping[str, Any]:
        """Return what the page's script knows of extensions' scripts; empty where there are none."""

    def telling_of_components(self, library: ScriptLibrary) -> AbstractContextManager[None]:
        """Tell extensions of all components that are made while this is open, where they listen."""

    def build_tab(self) -> None:
        """Build the Extensions tab inside of the tab that is open now."""

    def build_results(self, tab: str) -> None:
        """Build the components that extensions look for among the results of a tab."""

    def build_sources(self) -> None:
        """Build the components that extensions look for among img2img's images."""


@dataclass(frozen=True, kw_only=True)
class Services(Computing):
    """The objects that the page, the HTTP API and the command line work with."""

    version: str
    dispatcher: Dispatcher
    history: HistoryService
    spool: Spool
    access: Access = field(default_factory=Access)
    batches: Batches = field(default_factory=Batches)
    cards: CardLibrary = field(default_factory=lambda: CardLibrary(()))
    workers: Workers = field(default_factory=Workers)
    downloads: Downloads | None = None
    foreign: ForeignProgram | None = None
    startup_s: dict[str, float] = field(default_factory=dict)
    """Seconds of the start by what they went into; written while the program starts."""
    notices: tuple[str, ...] = ()  # what the user should know about this start: damaged files, an open door

    @property
    def folder_faults(self) -> tuple[str, ...]:
        """Folders of models that could not be read when it was last looked."""
        engine = self.engine
        catalogues = (self.catalogue, engine.vaes, engine.modules, engine.upscalers.catalogue)
        return tuple(dict.fromkeys(fault for one in catalogues for fault in one.faults))

    @property
    def planner(self) -> Planner:
        """Planner that says beforehand how much memory a job will need."""
        return self.workers if self.workers.local else LocalPlanner(self.estimator)

    @property
    def models(self) -> ModelHost:
        """Holder of the model that images are made with."""
        return self.workers if self.workers.local else self.engine
