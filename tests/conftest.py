"""What all tests share: one thread for each process, the order of files, and how many examples are drawn.

Property tests draw a few examples by default, 2,000 with `--hypothesis-profile=thorough`. Cases that are marked
`thorough` are left out by default, see `tests/thorough.py`.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from modules.devices import freeze_gc
from tests.costs import Costs
from tests.thorough import is_thorough

if TYPE_CHECKING:
    from playwright import sync_api

    from modules.processing.engine.engine import Engine

LONGEST_FIRST = ("tests/processing/", "tests/ui/", "tests/training/", "tests/models/")

# One thread for each process, child processes too: the recordings were made so, tiny models gain nothing from several,
# and the tests run side by side. Set here because the conftest.py of a folder may import torch before any hook runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("featherweight")
    group.addoption("--costs", action="store_true", help="print the tests and files that take most CPU seconds")
    group.addoption("--bounds", metavar="FILE", help="write which numbers come near their bounds, see tests/bounds.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs())
    if file := config.getoption("--bounds"):
        from tests.bounds import Bounds  # imports torch

        config.pluginmanager.register(Bounds(Path(file).resolve()))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Collect without searching for garbage: of what is imported and collected nothing is let go, and the searches take
    a quarter of the time, in every process."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if was_on:
            gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the folders that take long, so that none of their files is left to one process at the end; leave out
    what only thorough runs hold."""
    items.sort(key=_place)
    if not is_thorough():
        left_out = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def _place(item: pytest.Item) -> int:
    """How early a test's folder comes; the order within is kept."""
    found = (place for place, folder in enumerate(LONGEST_FIRST) if item.nodeid.startswith(folder))
    return next(found, len(LONGEST_FIRST))


@pytest.fixture(scope="module", autouse=True)
def imported_stays() -> None:
    """What was imported until now is not searched for garbage again: that takes a quarter of a second of each model
    that is let go."""
    freeze_gc()


@pytest.fixture(scope="session")
def browser() -> Iterator[sync_api.Browser]:
    """Chromium without a window: one for all tests in a process, because Playwright's loop is not started twice."""
    from playwright.sync_api import expect, sync_playwright

    from tests.ui.browser import ARGUMENTS, CHROMIUM

    expect.set_options(timeout=60_000)  # of which Playwright has 5 s, whatever a context is given
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that finds the recorded tiny checkpoint and its networks; files with other wants have their own."""
    from tests.recordings import tiny_engine  # imports torch

    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    yield engine
    engine.unload()
