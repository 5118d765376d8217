"""The Extensions tab in a browser: the whole way of an extension, and a server that other machines reach."""

import json
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright import sync_api

from modules.services import Services
from tests.compat.conftest import write
from tests.fakes import fake_services
from tests.ui.browser import needs_browser, served

pytestmark = needs_browser
SCRIPT = (
    "from modules import scripts\nclass Mine(scripts.Script):\n    def title(self): return 'Mine'\n"
    "    def show(self, is_img2img): return scripts.AlwaysVisible\n    def process(self, p): pass\n"
)
FIRST, SECOND = SCRIPT + "NUMBER = 1\n", SCRIPT + "NUMBER = 2\n"


@pytest.fixture
def program(tmp_path: Path) -> Iterator[tuple[str, Services]]:
    files = {"good/scripts/good.py": FIRST, "bad/scripts/bad.py": "import no_such_package\n"}
    write(tmp_path / "extensions", files)
    services = fake_services(tmp_path)
    with served(services) as url:
        yield url, services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def window(browser: sync_api.Browser) -> Iterator[sync_api.Page]:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    yield page
    page.close()


def opened(page: sync_api.Page, url: str) -> sync_api.Page:
    """The page with the tab open and filled."""
    page.goto(url)
    page.get_by_role("tab", name="Extensions").click()
    page.wait_for_selector("#fw_extensions li")
    return page


def said(page: sync_api.Page, text: str) -> None:
    """Wait until the tab says this."""
    look = "text => document.querySelector('.fw-extensions-status').textContent.includes(text)"
    page.wait_for_function(look, arg=text)


def answer(page: sync_api.Page, word: str) -> str:
    """What the dialog asks; it is answered with "yes" or "no"."""
    question = page.inner_text("#fw_extensions_dialog p")
    page.click(f"#fw_extensions_dialog [data-answer={word}]")
    return question


HOLD_LIST = """() => {
  const ask = window.fetch;
  window.fetch = async (path, options) => {
    const reply = await ask(path, options);
    if (path === "featherweight/v1/extensions" && !window.isHeld) {
      window.isHeld = true;
      await new Promise((resolve) => (window.letGo = resolve));
    }
    return reply;
  };
}"""
"""The next list of extensions arrives once `letGo` is called."""


def test_the_whole_way(program: tuple[str, Services], window: sync_api.Page, tmp_path: Path) -> None:
    url, services = program
    folder = services.paths.extensions_dir
    page = opened(window, url)
    bad = page.locator("li[data-extension=bad]")
    assert "failed" in bad.inner_text() and "It needs the package no_such_package" in bad.inner_text()
    assert "It needs the package no_such_package" in page.inner_text("#fw_notices")
    good = page.locator("li[data-extension=good]")
    assert "process" in (good.text_content() or "") and "kB" in good.inner_text() and "start" in good.inner_text()

    good.locator("input[role=switch]").click()
    said(page, "good will be left out at the next start")
    assert services.settings.current.hidden.disabled_extensions == ("good",)

    source = tmp_path / "sources" / "fresh"
    write(source, {"scripts/fresh.py": FIRST})
    page.fill("#fw_extensions input[name=source]", str(source))
    page.click("#fw_extensions .fw-extensions-install button")
    assert "runs code of strangers" in answer(page, "no")
    said(page, "Nothing was changed.")
    assert not (folder / "fresh").exists()
    page.click("#fw_extensions .fw-extensions-install button")
    answer(page, "yes")
    fresh = page.locator("li[data-extension=fresh]")
    fresh.wait_for()
    assert "will be loaded at the next start" in fresh.inner_text()

    write(source, {"scripts/fresh.py": SECOND})
    fresh.get_by_role("button", name="Update").click()
    said(page, "fresh is updated")
    assert (folder / "fresh/scripts/fresh.py").read_text() == SECOND
    page.evaluate(HOLD_LIST)
    fresh.get_by_role("button", name="Take back").click()
    said(page, "fresh is as it was before")
    page.wait_for_function("window.isHeld")
    assert (folder / "fresh/scripts/fresh.py").read_text() == FIRST
    fresh.get_by_role("button", name="Remove").click()
    assert "Remove fresh?" in answer(page, "yes")
    said(page, "fresh is removed")
    page.evaluate("letGo()")  # a list that is older than the removal is not the last word
    fresh.wait_for(state="detached")
    page.get_by_role("button", name="Take back: fresh").click()
    fresh.wait_for()

    archive = tmp_path / "packed.zip"
    with zipfile.ZipFile(archive, "w") as opened_archive:
        opened_archive.writestr("packed/scripts/packed.py", FIRST)
    index = tmp_path / "index.json"
    entries = [{"name": "Packed", "url": str(archive), "description": "of a file"}, {"name": "Other", "url": "x"}]
    index.write_text(json.dumps({"extensions": entries}))
    page.click("#fw_extensions summary")
    page.fill("#fw_extensions input[name=index]", str(index))
    page.fill("#fw_extensions input[name=search]", "packed")
    page.click(".fw-extensions-index button[type=submit]")
    page.get_by_role("button", name="Install: Packed").click()
    answer(page, "yes")
    page.locator("li[data-extension=packed]").wait_for()
    assert (folder / "packed/scripts/packed.py").is_file()


def test_a_server_for_other_machines_only_shows_them(tmp_path: Path, window: sync_api.Page) -> None:
    write(tmp_path / "extensions", {"good/scripts/good.py": FIRST})
    services = fake_services(tmp_path)
    services = replace(services, access=replace(services.access, is_local=False))
    with served(services) as url:
        page = opened(window, url)
        assert "Other machines reach this server" in page.inner_text("#fw_extensions .fw-extensions-closed")
        assert not page.is_visible("#fw_extensions .fw-extensions-install")
        assert page.get_by_role("button", name="Remove: good").count() == 0
    services.dispatcher.close()
