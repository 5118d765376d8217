"""A real browser, and the real page served to it."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright import sync_api
from starlette.types import Receive, Scope, Send

from modules.api.guard import install_guard
from modules.services import Services
from tests.fakes import mounted_page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser"))), None)
"""The one without a window first: it draws no tabs and takes a quarter less of the CPU."""
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium-headless-shell)"),
]
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
SIZE: sync_api.ViewportSize = {"width": 1440, "height": 900}
WAIT_MS = 45_000
PROMPTS = ("#txt2img_prompt", "#txt2img_neg_prompt")
FORM = {"steps": "20", "width": "512", "height": "512", "batch_count": "1", "batch_size": "1"}
"""The numbers of a new page, by field."""
FIELDS = {
    **{f"{prompt} textarea": "" for prompt in PROMPTS},
    **{f"#txt2img_{name} input[type=number]": value for name, value in FORM.items()},
    "#txt2img_seed input": "-1",
}
"""What is written in the fields of a new page, by selector."""
OTHERS = "values => Object.keys(values).filter((field) => document.querySelector(field).value !== values[field])"
ALL_COUNTED = """prompts => prompts.every(
    (prompt) => document.querySelector(`${prompt} .fw-counter`)?.textContent === '0/75'
)"""


@contextmanager
def served(services: Services, root_path: str = "", host: str = "") -> Iterator[str]:
    """API and page on a free port; yields the address. With `host` as behind a reverse proxy that calls the server by
    that name."""
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        if host and scope["type"] != "lifespan":
            others = [pair for pair in scope["headers"] if pair[0] != b"host"]
            scope = {**scope, "headers": [*others, (b"host", host.encode())]}
        await app(scope, receive, send)

    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(called, log_level="error", root_path=root_path))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)


@contextmanager
def watched_page(context: sync_api.BrowserContext, address: str) -> Iterator[sync_api.Page]:
    """A page of its own as a new visitor finds it; afterwards nothing may have failed or left the machine."""
    page = context.new_page()
    with visit(page, address):
        yield page
    page.close()


@contextmanager
def visit(page: sync_api.Page, address: str) -> Iterator[None]:
    """The page as a new visitor finds it, in a window that may have shown another; afterwards nothing may have failed
    or left the machine, and what a test changed of the window is put back: its size, media, routes, what is stored."""
    server = "://".join(urlsplit(address)[:2])
    foreign: list[str] = []
    errors: list[str] = []

    def note_request(request: sync_api.Request) -> None:
        if not request.url.startswith((server, "data:", "blob:")):
            foreign.append(request.url)

    def note_error(error: sync_api.Error) -> None:
        errors.append(f"{error} {error.stack}")

    def note_console(said: sync_api.ConsoleMessage) -> None:
        if "Content Security Policy" in said.text:
            errors.append(said.text)

    page.on("request", note_request)
    page.on("pageerror", note_error)
    page.on("console", note_console)
    size = page.viewport_size
    open_page(page, address)
    yield
    page.unroute_all(behavior="ignoreErrors")
    forget(page)
    page.remove_listener("request", note_request)
    page.remove_listener("pageerror", note_error)
    page.remove_listener("console", note_console)
    page.emulate_media(media="null", color_scheme="light", reduced_motion="no-preference")  # as a context begins
    page.set_default_timeout(WAIT_MS)
    if size is not None:
        page.set_viewport_size(size)
    assert foreign == [], f"requests left the machine: {foreign}"
    assert not errors, errors


def forget(page: sync_api.Page) -> None:
    """Leave the page; the next one finds no form and no job of this one."""
    page.goto(f"{_address(page)}/internal/ping")  # nothing is kept any more from here
    page.evaluate("localStorage.clear(); sessionStorage.clear()")


def reopen(page: sync_api.Page) -> None:
    """The page as a new visitor finds it, whatever state it is in."""
    address = _address(page)
    page.mouse.up()  # ends a drag
    forget(page)
    open_page(page, address)


def _address(page: sync_api.Page) -> str:
    parts = urlsplit(page.url)
    return f"{parts.scheme}://{parts.netloc}"


def open_page(page: sync_api.Page, address: str) -> None:
    """Go there, and wait until it stands and what was kept is back in its form."""
    page.goto(address)
    page.wait_for_selector("#txt2img_generate")
    page.wait_for_function("document.querySelector('#fw_scales')?.textContent")
    page.wait_for_function("featherweight.tab('txt2img').hasKeptForm !== undefined")


def empty_form(page: sync_api.Page) -> None:
    """Put back what the tests of one page change: routes, the tab, jobs, messages, fields.

    The page is asked what differs first: writing all fields takes longer than many a test.
    """
    page.unroute_all()
    page.evaluate("document.activeElement?.blur()")  # an open list of choices would lie over the tabs
    tab = page.locator("#tabs > .tab-wrapper button[role=tab]:has-text('txt2img')")
    if tab.get_attribute("aria-selected") != "true":
        tab.click()
    while page.is_visible("#txt2img_interrupt"):
        page.keyboard.press("Escape")
        page.wait_for_timeout(100)
    page.evaluate("featherweight.tab('txt2img').clearMessages()")
    for field in page.evaluate(OTHERS, FIELDS):
        page.fill(field, FIELDS[field])
    if page.is_checked("#txt2img_enable_hr input"):
        page.click("#txt2img_enable_hr input")
    page.wait_for_function(ALL_COUNTED, arg=PROMPTS)
