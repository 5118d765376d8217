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

from modules.api.guard import install_guard
from modules.services import Services
from tests.fakes import mounted_page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_browser = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
FORM = {"steps": "20", "width": "512", "height": "512", "batch_count": "1", "batch_size": "1"}
"""The numbers of a new page, by field."""


@contextmanager
def served(services: Services) -> Iterator[str]:
    """API and page on a free port; yields the address."""
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
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
    """The page as a new visitor finds it; afterwards nothing may have failed or left the machine."""
    page = context.new_page()
    foreign: list[str] = []
    page.on(
        "request",
        lambda request: None if request.url.startswith((address, "data:", "blob:")) else foreign.append(request.url),
    )
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(f"{error} {error.stack}"))
    page.on(
        "console",
        lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None,
    )
    open_page(page, address)
    yield page
    forget(page)
    page.close()
    assert foreign == [], "a request left the machine"
    assert not errors, errors


def forget(page: sync_api.Page) -> None:
    """Leave the page; the next one finds no form and no job of this one."""
    page.goto(f"{_address(page)}/internal/ping")  # nothing is kept any more from here
    page.evaluate("localStorage.clear()")


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
    """Put back what the tests of one page change: routes, the tab, jobs, messages, fields."""
    page.unroute_all()
    page.evaluate("document.activeElement?.blur()")  # an open list of choices would lie over the tabs
    page.click("#tabs > .tab-wrapper button[role=tab]:has-text('txt2img')")
    while page.is_visible("#txt2img_interrupt"):
        page.keyboard.press("Escape")
        page.wait_for_timeout(100)
    page.evaluate("featherweight.tab('txt2img').clearMessages()")
    page.fill("#txt2img_prompt textarea", "")
    page.fill("#txt2img_neg_prompt textarea", "")
    for name, value in FORM.items():
        page.fill(f"#txt2img_{name} input[type=number]", value)
    page.fill("#txt2img_seed input", "-1")
    if page.is_checked("#txt2img_enable_hr input"):
        page.click("#txt2img_enable_hr input")
    for name in ("prompt", "neg_prompt"):
        page.wait_for_function(f"document.querySelector('#txt2img_{name} .fw-counter').textContent === '0/75'")
