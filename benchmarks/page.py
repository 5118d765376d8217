"""How soon the page is there in a browser: from its address to a Generate button that answers, and what it weighs.

Run `python -m benchmarks.page` (needs Chromium and the packages of requirements-test.txt). A server of its own with the
bundled model serves a browser that has never been here, several times; medians count. "Clickable" is when a press of
Generate, made as soon as the button can be seen, has been taken: Interrupt stands in its place.
"""

import gzip
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Error, sync_playwright

from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
RUNS = 5
SERVER_LIMIT_S = 180
GOALS = {"clickable_s": 1.5, "html_kb": 60.0, "settings_s": 0.8, "interrupt_s": 0.2, "outside": 0.0}
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
WATCH = """(() => {
  const seen = (window.seenAt = {});
  const look = () => {
    const note = (name, id) => {
      if (!seen[name] && document.querySelector(id)?.offsetParent) seen[name] = performance.now();
      return seen[name];
    };
    if (note("generate", "#txt2img_generate") && !seen.pressed) {
      seen.pressed = performance.now();
      document.querySelector("#txt2img_generate").click();
    }
    note("interrupt", "#txt2img_interrupt");
  };
  new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true });
  setInterval(look, 10);
})();"""
PRESS = """() => new Promise((done) => {
  const began = performance.now();
  document.querySelector("#txt2img_generate").click();
  const look = () =>
    document.querySelector("#txt2img_interrupt").offsetParent ? done(performance.now() - began) : setTimeout(look, 5);
  look();
})"""
OPEN_SETTINGS = """() => new Promise((done) => {
  const began = performance.now();
  document.querySelector("#tab_settings-button").click();
  const look = () => {
    const shown = document.querySelectorAll("#tab_settings .fw-setting");
    if (shown.length > 100 && shown[0].offsetParent) done([performance.now() - began, shown.length]);
    else setTimeout(look, 5);
  };
  look();
})"""


def chromium_path() -> str:
    """The browser that is installed. Raises `SystemExit`."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chromium-headless-shell"))), None)
    if path is None:
        raise SystemExit("Chromium is not installed (apt-get install chromium).")
    return path


@contextmanager
def program() -> Iterator[str]:
    """A server with the bundled model and an empty folder of its own; yields its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryDirectory() as data:
        words = ["--port", str(port), "--data-dir", data, "--skip-install"]
        process = subprocess.Popen(
            [sys.executable, "launch.py", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            _wait_for(f"{address}/sdapi/v1/progress")
            yield address
        finally:
            process.terminate()
            process.wait(30)


def _wait_for(address: str) -> None:
    began = time.perf_counter()
    while time.perf_counter() - began < SERVER_LIMIT_S:
        try:
            with urllib.request.urlopen(address, timeout=5):
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError(f"no answer within {SERVER_LIMIT_S} s")


def html_bytes(address: str) -> tuple[int, int]:
    """Of the page, as it is sent and unpacked."""
    request = urllib.request.Request(f"{address}/", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request) as reply:
        body: bytes = reply.read()
        is_packed = reply.headers.get("Content-Encoding") == "gzip"
    return len(body), len(gzip.decompress(body)) if is_packed else len(body)


def visit(browser: Browser, address: str) -> dict[str, float]:
    """What a first visit takes, in seconds, and how many requests left the machine."""
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(60_000)
    outside: list[str] = []
    inside = (address, "data:", "blob:")
    page.on("request", lambda sent: None if sent.url.startswith(inside) else outside.append(sent.url))
    page.add_init_script(WATCH)
    page.goto(address, wait_until="commit")
    page.wait_for_function("window.seenAt?.interrupt")
    seen: dict[str, float] = page.evaluate("window.seenAt")
    page.wait_for_selector("#txt2img_generate", state="visible")  # the image is made
    page.wait_for_timeout(1000)
    interrupt: float = page.evaluate(PRESS)
    page.wait_for_selector("#txt2img_generate", state="visible")
    settings, count = page.evaluate(OPEN_SETTINGS)
    context.close()
    return {
        "visible_s": seen["generate"] / 1000,
        "clickable_s": seen["interrupt"] / 1000,
        "interrupt_s": interrupt / 1000,
        "settings_s": settings / 1000,
        "settings": count,
        "outside": len(outside),
    }


def main() -> None:
    """Measure, print, write."""
    chromium = chromium_path()
    with program() as address, sync_playwright() as playwright:
        packed, raw = html_bytes(address)
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        try:
            visit(browser, address)  # the server has everything in memory now
            visits = [visit(browser, address) for _ in range(RUNS)]
        except Error as error:
            raise SystemExit(f"The page did not do what it was asked to: {error}") from error
        finally:
            browser.close()
    found: dict[str, float] = {name: statistics.median(one[name] for one in visits) for name in visits[0]}
    found["outside"] = max(one["outside"] for one in visits)
    found["html_kb"] = packed / 1000
    rows = [(name, f"{value:.3g}", GOALS.get(name, "")) for name, value in found.items()]
    print_table(["", "median", "goal"], rows)
    result: dict[str, Any] = {**found, "html_unpacked_kb": raw / 1000, "goals": GOALS, "runs": RUNS, "visits": visits}
    write_result("page", {**result, "met": {name: found[name] <= goal for name, goal in GOALS.items()}})


if __name__ == "__main__":
    main()
