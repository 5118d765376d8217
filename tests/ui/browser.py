"""A real browser, and the real page served to it."""

import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright import sync_api
from starlette.types import Receive, Scope, Send

from modules.api.access.guard import install_guard
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
STEADY = """selector => new Promise((done) => {
  let before = "";
  const look = () => {
    const shown = document.querySelector(selector);
    const now = shown?.offsetParent ? shown.innerHTML : "";
    if (now && now === before) return done();
    before = now;
    featherweight.layOut();
    setTimeout(look, 100);
  };
  look();
})"""
"""A tab is there, and all that it is made of: what the page and Gradio add to it comes in steps."""
TIDY = """async () => {
  scrollTo(0, 0);
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  if (document.body.classList.contains("dark")) document.querySelector("#fw_theme").click();
  document.querySelector("#txt2img_extra_tabs .tab-container button").click(); // Generation, not a list of cards
  for (const tab of featherweight.tabs.filter((one) => one.find("gallery"))) {
    tab.clearMessages();
    tab.showImages([], 0);
  }
  const img2img = featherweight.tab("img2img");
  const filled = [...document.querySelectorAll(".fw-canvas-filled")].map((place) => place.dataset.canvas);
  for (const mode of filled) await img2img.setImage(mode, null);
  if (img2img.layers.doc.layers.length) await img2img.setImage("canvas", null);
}"""
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


class Watch:
    """Notes what no page may do: fail, be refused by its content policy, ask another machine."""

    def __init__(self, page: sync_api.Page, address: str) -> None:
        self.faults: list[str] = []
        server = "://".join(urlsplit(address)[:2])

        def note_request(request: sync_api.Request) -> None:
            if not request.url.startswith((server, "data:", "blob:")):
                self.faults.append(f"a request left the machine: {request.url}")

        def note_error(error: sync_api.Error) -> None:
            self.faults.append(f"{error} {error.stack}")

        def note_console(said: sync_api.ConsoleMessage) -> None:
            if "Content Security Policy" in said.text:
                self.faults.append(said.text)

        self._page, self._listeners = page, (note_request, note_error, note_console)
        page.on("request", note_request)
        page.on("pageerror", note_error)
        page.on("console", note_console)

    def check(self) -> None:
        """Fail with what happened since the last check."""
        faults, self.faults = self.faults, []
        assert not faults, faults

    def end(self) -> None:
        for event, listener in zip(("request", "pageerror", "console"), self._listeners, strict=True):
            self._page.remove_listener(event, listener)
        self.check()


@contextmanager
def visit(page: sync_api.Page, address: str) -> Iterator[None]:
    """The page as a new visitor finds it; afterwards nothing may have failed or left the machine."""
    watch = Watch(page, address)
    open_page(page, address)
    yield
    forget(page)
    watch.end()


@contextmanager
def watched_page(context: sync_api.BrowserContext, address: str) -> Iterator[sync_api.Page]:
    """A page of its own, for `visit`."""
    page = context.new_page()
    with visit(page, address):
        yield page
    page.close()


def put_window_back(page: sync_api.Page) -> None:
    """Put back what tests change of a window: size, media, routes, how long it waits, the mouse."""
    page.unroute_all(behavior="ignoreErrors")
    page.mouse.up()  # ends a drag
    page.mouse.move(2, 2)
    page.emulate_media(media="null", color_scheme="light", reduced_motion="no-preference")  # as a context begins
    page.set_default_timeout(WAIT_MS)
    if page.viewport_size != SIZE:
        page.set_viewport_size(SIZE)


def forget(page: sync_api.Page) -> None:
    """Leave the page; the next one finds no form and no job of this one."""
    page.goto(f"{_address(page)}/internal/ping")  # nothing is kept any more from here
    page.evaluate("localStorage.clear(); sessionStorage.clear()")


def reopen(page: sync_api.Page) -> None:
    """The page as a new visitor finds it, whatever state it is in."""
    address = _address(page)
    put_window_back(page)
    forget(page)
    open_page(page, address)


def _address(page: sync_api.Page) -> str:
    parts = urlsplit(page.url)
    return f"{parts.scheme}://{parts.netloc}"


def open_page(page: sync_api.Page, address: str) -> None:
    """Go there, and wait until it stands and what was kept is back in its form."""
    page.goto(address)
    wait_until_open(page)


def wait_until_open(page: sync_api.Page) -> None:
    page.wait_for_selector("#txt2img_generate", state="attached")  # a reload shows the tab that was shown
    page.wait_for_function("document.querySelector('#fw_scales')?.textContent")
    page.wait_for_function("featherweight.tab('txt2img').hasKeptForm !== undefined")


def send_to(page: sync_api.Page, name: str) -> None:
    """Send the image of txt2img to another tab, by the menu in the row under it."""
    page.click("#txt2img_image_tools [data-menu]")
    page.click(f"#txt2img_send_to_{name}")


def open_group(page: sync_api.Page, name: str, tab: str = "txt2img") -> None:
    """Unfold a group of folds: control, guidance, finishing, or more."""
    head = page.locator(f"#{tab}_group_{name} .fw-group-head")
    if head.get_attribute("aria-expanded") == "false":
        head.click()


def until(page: sync_api.Page, happened: Callable[[], bool], seconds: float = WAIT_MS / 1000) -> None:
    """Wait for something that the page does not show."""
    end = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < end, "it did not happen"
        page.wait_for_timeout(50)  # which lets the page and its server work


def tidy(page: sync_api.Page) -> None:
    """Put back what the tests of another file changed of the page that all files share."""
    put_window_back(page)
    page.evaluate(TIDY)
    empty_form(page)


def empty_form(page: sync_api.Page) -> None:
    """Put back what the tests of one page change: routes, the tab, jobs, messages, fields.

    The page is asked what differs first: writing all fields takes longer than many a test.
    """
    page.unroute_all()
    page.evaluate("document.activeElement?.blur()")  # an open list of choices would lie over the tabs
    tab = page.locator("#tabs > .tab-wrapper button[role=tab]:has-text('txt2img')")
    if tab.get_attribute("aria-selected") != "true":
        tab.click()
    while page.is_visible("#txt2img_interrupt"):  # more than once where jobs were put in line
        page.keyboard.press("Escape")
        page.wait_for_selector("#txt2img_interrupt", state="hidden")
    page.evaluate("featherweight.tab('txt2img').clearMessages()")
    for field in page.evaluate(OTHERS, FIELDS):
        page.fill(field, FIELDS[field])
    if page.is_checked("#txt2img_enable_hr input"):
        page.click("#txt2img_enable_hr input")
    page.wait_for_function(ALL_COUNTED, arg=PROMPTS)
