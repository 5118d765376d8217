"""What all tests share: one thread for each process, the options of a run, and what a failed test says.

Property tests draw a few examples by default, 2,000 with `--thorough`. Cases that are marked `thorough` are left out by
default, see `tests/thorough.py`.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import shlex
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from modules.system.devices import freeze_gc
from tests.costs import Costs
from tests.thorough import ENVIRONMENT, HOLDERS, holders, is_left_out, is_thorough

if TYPE_CHECKING:
    from playwright import sync_api
    from xdist.remote import Producer

    from modules.processing.engine.engine import Engine
    from tests.whole_files import WholeFiles

# One thread for each process, child processes too: the recordings were made so, tiny models gain nothing from several,
# and the tests run side by side. Set here because the conftest.py of a folder may import torch before any hook runs.
os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=2000, deadline=None)
settings.load_profile("quick")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("featherweight")
    group.addoption("--thorough", action="store_true", help="run what is marked thorough too, and draw 2,000 examples")
    group.addoption("--costs", action="store_true", help="print the tests and files that take most CPU seconds")
    group.addoption("--bounds", metavar="FILE", help="write which numbers come near their bounds, see tests/bounds.py")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--thorough"):
        os.environ[ENVIRONMENT] = "1"
        settings.load_profile("thorough")
    if config.getoption("--costs"):
        config.pluginmanager.register(Costs())
    if file := config.getoption("--bounds"):
        from tests.bounds import Bounds  # imports torch

        config.pluginmanager.register(Bounds(Path(file).resolve()))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WholeFiles | None:
    """Keep the tests of a file together."""
    if config.getoption("dist") != "worksteal":
        return None
    from tests.whole_files import WholeFiles

    return WholeFiles(config, log)


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what only thorough runs hold."""
    config.stash[HOLDERS] = holders(items)
    if not is_thorough():
        config.hook.pytest_deselected(items=[item for item in items if is_left_out(item)])
        items[:] = [item for item in items if not is_left_out(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Say below what was expected and seen which behavior a failed test holds, and how to run it alone."""
    report = yield
    if report.failed:
        function = getattr(item, "function", None)
        behavior = item.name.partition("[")[0].removeprefix("test_").replace("_", " ")
        option = " --thorough" if is_left_out(item) else ""
        lines = [
            f"Behavior: {behavior}",
            *filter(None, [inspect.getdoc(function) if function else None]),
            f"Alone: .venv/bin/python -m pytest {shlex.quote(item.nodeid)}{option}",
        ]
        report.sections.append(("what this test holds", "\n".join(lines)))
    return report


@pytest.fixture(scope="module", autouse=True)
def imported_stays() -> None:
    """What was imported until now is not searched for garbage again: that takes a quarter of a second of each model
    that is let go. FastAPI keeps the functions of 4,096 routes, and with them each program that tests made."""
    for name in [name for name in sys.modules if name.startswith("fastapi.dependencies")]:
        for kept in vars(sys.modules[name]).values():
            if isinstance(kept, functools._lru_cache_wrapper):
                kept.cache_clear()
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


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine that finds the recorded tiny checkpoint and its networks, which stays loaded: a test puts back what it
    changes of it. Files with other wants have their own."""
    from tests.recordings import tiny_engine  # imports torch

    engine = tiny_engine(tmp_path_factory.mktemp("cache"))
    yield engine
    engine.unload()
