"""One server with a model that computes nothing for all tests of the page in a process, and one page of it."""

from collections.abc import Generator, Iterator

import pytest
from playwright import sync_api

from modules.services import Services
from tests.fakes import downloading_services, settings_kept
from tests.ui.browser import SIZE, WAIT_MS, Watch, empty_form, open_page, put_window_back, reopen, served, tidy

LEFT_BY_A_FAILURE: set[sync_api.Page] = set()
"""Windows in the middle of what a failed test did: with a dialog open, or a mouse button down."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """One failed test costs the tests after it nothing: they find a page that was opened again."""
    report = yield
    if report.failed:
        values = getattr(item, "funcargs", {}).values()
        LEFT_BY_A_FAILURE.update(value for value in values if isinstance(value, sync_api.Page))
    return report


@pytest.fixture(scope="session")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    """The program that `address` serves; a test puts back what it changes."""
    services = downloading_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="session")
def address(fakes: Services) -> Iterator[str]:
    """The address of page and API, with jobs that only wait."""
    with served(fakes) as address:
        yield address


@pytest.fixture(scope="session")
def context(browser: sync_api.Browser) -> Iterator[sync_api.BrowserContext]:
    """A context whose pages share what the browser keeps of the page's scripts."""
    context = browser.new_context(viewport=SIZE)
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()


@pytest.fixture(scope="session")
def other_window(context: sync_api.BrowserContext) -> sync_api.Page:
    return context.new_page()


@pytest.fixture(scope="module")
def window(other_window: sync_api.Page) -> sync_api.Page:
    """A window for the pages of other programs, see `visit`: it has read the page's scripts before, and opens them in
    half the time of a new one."""
    put_window_back(other_window)
    return other_window


@pytest.fixture(scope="session")
def opened_page(context: sync_api.BrowserContext, address: str) -> tuple[sync_api.Page, Watch]:
    """The one page of the shared program, opened for the first test that wants it."""
    page = context.new_page()
    watch = Watch(page, address)
    open_page(page, address)
    return page, watch


@pytest.fixture(scope="module")
def shared_page(opened_page: tuple[sync_api.Page, Watch], fakes: Services) -> Iterator[sync_api.Page]:
    """The shared page without what the files before changed of it; tests use `page`."""
    page, watch = opened_page
    if page in LEFT_BY_A_FAILURE:
        LEFT_BY_A_FAILURE.discard(page)
        reopen(page)
    tidy(page)
    with settings_kept(fakes):
        yield page
    watch.check()


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
