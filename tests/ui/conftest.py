"""One server with a model that computes nothing for all tests of the page in a process, and its pages."""

from collections.abc import Generator, Iterator

import pytest
from playwright import sync_api

from modules.services import Services
from tests.fakes import fake_services
from tests.ui.browser import SIZE, WAIT_MS, empty_form, reopen, served, visit

LEFT_BY_A_FAILURE: set[sync_api.Page] = set()
"""Windows in the middle of what a failed test did: with a dialog open, or a mouse button down."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One failed test costs the tests after it nothing: they find a page that was opened again."""
    report = yield
    page = getattr(item, "funcargs", {}).get("window")
    if report.failed and page is not None:
        LEFT_BY_A_FAILURE.add(page)
    return report


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """What `address` serves; a test puts back what it changes."""
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="session")
def address(fakes: Services) -> Iterator[str]:
    """Of the page and the API, with jobs that only wait."""
    with served(fakes) as address:
        yield address


@pytest.fixture(scope="session")
def context(browser: sync_api.Browser) -> Iterator[sync_api.BrowserContext]:
    """Its pages share what the browser keeps of the page's scripts."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture(scope="module")
def window(context: sync_api.BrowserContext) -> sync_api.Page:
    """One window for all files in a process, for `visit`: it has read the page's scripts before, and opens the page in
    half the time of a new one. After a failure there is a new one."""
    for page in context.pages:
        if page in LEFT_BY_A_FAILURE:
            LEFT_BY_A_FAILURE.discard(page)
            page.close()
    return context.pages[0] if context.pages else context.new_page()


@pytest.fixture(scope="module")
def shared_page(window: sync_api.Page, address: str) -> Iterator[sync_api.Page]:
    """One page for all tests of a file, opened for the first of them; use `page`."""
    with visit(window, address):
        yield window


@pytest.fixture
def page(shared_page: sync_api.Page) -> sync_api.Page:
    """The shared page with no job, no message and the form of a new one: opening a page takes longer than most tests.

    Images, infotext and notices of earlier tests are still there: wait for a text of your own.
    """
    if shared_page in LEFT_BY_A_FAILURE:
        LEFT_BY_A_FAILURE.discard(shared_page)
        reopen(shared_page)
    empty_form(shared_page)
    return shared_page
