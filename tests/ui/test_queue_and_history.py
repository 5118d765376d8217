"""The Queue and History tabs in a browser."""

from pathlib import Path

import pytest
from playwright import sync_api

from modules.memory.formats.catalog import chosen_formats
from modules.processing.request.request import GenerationRequest
from modules.services import Services
from tests.history.test_history import png
from tests.ui.browser import needs_browser

pytestmark = needs_browser


def open_tab(page: sync_api.Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).first.click()


def test_waiting_jobs_are_reordered_edited_and_cancelled(page: sync_api.Page, fakes: Services) -> None:
    fakes.queue.pause()
    for prompt in ("first", "second"):
        fakes.queue.submit(GenerationRequest(prompt=prompt, width=64, height=64, steps=2))
    open_tab(page, "Queue")
    waiting = page.locator("#fw_queue li strong")
    sync_api.expect(waiting.first).to_have_text("first")
    page.get_by_role("button", name="Later: first").click()
    sync_api.expect(waiting.first).to_have_text("second")
    page.locator("#fw_queue li:has-text('second') button:has-text('Edit')").click()
    page.fill("#fw_queue_dialog textarea >> nth=0", "changed")
    page.click("#fw_queue_dialog button:has-text('Save')")
    sync_api.expect(waiting.first).to_have_text("changed")
    page.locator("#fw_queue li:has-text('first') button:has-text('Cancel')").click()
    page.click("#fw_queue button:has-text('Resume')")
    page.wait_for_selector("#fw_queue li.fw-is-done:has-text('changed')")


def test_an_image_is_found_starred_and_deleted(page: sync_api.Page, fakes: Services, tmp_path: Path) -> None:
    png(tmp_path / "seen.png", (200, 10, 10), "a scarlet dot\nSteps: 5, Sampler: Euler, Seed: 1, Size: 8x8")
    fakes.history.importer.add(tmp_path)
    assert fakes.history.importer.wait(120)
    open_tab(page, "History")
    page.fill("#fw_history_search", "scarlet steps:<9")
    page.click(".fw-history-item[aria-label='a scarlet dot']")
    options = page.locator("#fw_history_dialog [aria-label=Precision] option")
    offered = options.evaluate_all("all => all.map((one) => one.value)")
    assert offered == [*chosen_formats(), "fp16"]
    page.click("#fw_history_dialog button:has-text('Star')")
    page.wait_for_selector("#fw_history_dialog button:has-text('Unstar')")
    page.click("#fw_history_dialog button:has-text('Delete')")
    page.wait_for_selector("#fw_history_dialog", state="detached")
    assert not (tmp_path / "seen.png").exists()
    assert fakes.history.history.count("scarlet") == 0


@pytest.fixture(autouse=True)
def running(fakes: Services) -> None:
    fakes.queue.pause(False)
