"""The Get models tab in a browser: a look, a download with a pause, what lies on the disk, the offer after the first
image. Files come from a server of this machine."""

import re
import time

import pytest
from playwright import sync_api

from modules.downloads.verdict import Verdict
from modules.services import Services
from tests.downloads.file_server import Behavior, Handler, safetensors, serving
from tests.ui.browser import needs_browser

pytestmark = needs_browser

LORA = safetensors({"lora_unet_a.lora_down.weight": ("F16", [4, 64]), "lora_unet_a.lora_up.weight": ("F16", [64, 4])})
MODEL = safetensors({"model.diffusion_model.x": ("F16", [2048, 2048])})
TAB = "#fw_models"


@pytest.fixture
def tab(page: sync_api.Page) -> sync_api.Page:
    page.evaluate("featherweight.getModels()")
    page.wait_for_selector(f"{TAB} .fw-models-disk h4")
    return page


def slowly(seconds: float, body: bytes = MODEL) -> Behavior:
    """A model that comes in pieces."""

    def drips(handler: Handler, number: int) -> bool:
        if handler.headers.get("Range", "").endswith("-65535"):
            return False
        handler.give(behavior, cut=len(body) // 20)
        time.sleep(seconds)
        return True

    behavior = Behavior(body, fault=drips)
    return behavior


def test_a_file_is_looked_at_then_got(tab: sync_api.Page, fakes: Services) -> None:
    with serving({"/style.safetensors": Behavior(LORA)}) as address:
        tab.fill("#fw_models_source", f"{address}/style.safetensors")
        tab.press("#fw_models_source", "Enter")
        found = tab.locator(f"{TAB} .fw-models-found .fw-models-row")
        sync_api.expect(found).to_contain_text("a LoRA, kohya names, fp16, 0.00 B parameters")
        sync_api.expect(found).to_contain_text("It goes into the folder Lora.")
        found.locator("button:has-text('Download')").click()
        row = tab.locator(f"{TAB} .fw-models-downloads .fw-models-row:has-text('style.safetensors')")
        sync_api.expect(row).to_contain_text("Saved in Lora as style.safetensors.")
        tab.wait_for_selector(f"{TAB} .fw-models-disk .fw-models-row:has-text('style.safetensors')")
    assert (fakes.paths.lora_dirs[0] / "style.safetensors").read_bytes() == LORA


def test_a_download_is_paused_gone_on_with_and_cancelled(tab: sync_api.Page, fakes: Services) -> None:
    behavior = slowly(0.15)
    target = fakes.paths.checkpoint_dirs[0] / "slow.safetensors"
    part = target.with_name(".slow.safetensors.part")
    row = tab.locator(f"{TAB} .fw-models-downloads .fw-models-row:has-text('slow.safetensors')")
    with serving({"/slow.safetensors": behavior}) as address:
        tab.fill("#fw_models_source", f"{address}/slow.safetensors")
        tab.click(f"{TAB} [data-do=get]")
        sync_api.expect(row).to_contain_text("of 8.4 MB")
        row.locator("button:has-text('Pause')").click()
        sync_api.expect(row).to_contain_text("Paused. The downloaded part is kept.")
        assert part.stat().st_size > 0 and not target.exists()
        row.locator("button:has-text('Resume')").click()
        sync_api.expect(row.locator("button:has-text('Pause')")).to_be_visible()
        row.locator("button:has-text('Cancel')").click()
        sync_api.expect(row).to_have_count(0)
        assert not part.exists() and not target.exists()
        behavior.fault = lambda handler, number: False
        tab.click(f"{TAB} [data-do=get]")
        sync_api.expect(row).to_contain_text("Saved in Stable-diffusion")
    assert target.read_bytes() == MODEL


def test_a_checkpoint_is_judged_then_got(tab: sync_api.Page, fakes: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inspect, the verdict, the file in its list."""
    monkeypatch.setattr("modules.downloads.downloads.judge", lambda *_: Verdict(True, "It fits: needs 1 of 8 GB."))
    body = MODEL[:-1] + b"\2"  # no file that is here already
    with serving({"/whole.safetensors": Behavior(body)}) as address:
        tab.fill("#fw_models_source", f"{address}/whole.safetensors")
        tab.press("#fw_models_source", "Enter")
        found = tab.locator(f"{TAB} .fw-models-found .fw-models-row")
        sync_api.expect(found.locator(".fw-fits")).to_have_text("It fits: needs 1 of 8 GB.")
        found.locator("button:has-text('Download')").click()
        row = tab.locator(f"{TAB} .fw-models-downloads .fw-models-row:has-text('whole')")
        sync_api.expect(row).to_contain_text("Saved in Stable-diffusion as whole.safetensors.")
    assert (fakes.paths.checkpoint_dirs[0] / "whole.safetensors").read_bytes() == body


def test_a_fault_is_a_sentence(tab: sync_api.Page) -> None:
    tab.fill("#fw_models_source", "nothing of that name")
    tab.click(f"{TAB} [data-do=look]")
    status = tab.locator(f"{TAB} .fw-models-status.fw-bad")
    sync_api.expect(status).to_contain_text("is none of: a name of the list")
    with serving({}) as address:
        tab.fill("#fw_models_source", f"{address}/gone.safetensors")
        tab.click(f"{TAB} [data-do=look]")
        sync_api.expect(status).to_contain_text("no such file (answer 404)")


def test_a_model_on_disk_is_moved_deleted_and_restored(tab: sync_api.Page, fakes: Services) -> None:
    path = fakes.paths.lora_dirs[0] / "mine.safetensors"
    path.write_bytes(LORA[:-1] + b"\1")
    tab.select_option("#fw_models_shown", "all")
    tab.evaluate("featherweight.getModels()")
    row = tab.locator(f"{TAB} .fw-models-disk .fw-models-row:has-text('mine.safetensors')")
    tab.once("dialog", lambda dialog: dialog.accept("styles"))
    row.locator("button:has-text('Move')").click()
    sync_api.expect(row.locator("strong")).to_have_text("styles/mine.safetensors")
    row.locator("button:has-text('Delete')").click()
    row.locator("button:has-text('Restore')").click()
    sync_api.expect(row.locator("strong")).to_have_text("styles/mine.safetensors")
    assert (path.parent / "styles" / "mine.safetensors").exists()


def test_doubles_are_found(tab: sync_api.Page, fakes: Services) -> None:
    for name in ("one", "two"):
        (fakes.paths.lora_dirs[0] / f"{name}.safetensors").write_bytes(LORA + bytes(8))
    tab.click(f"{TAB} [data-do=doubles]")
    tab.select_option("#fw_models_shown", "doubles")
    row = tab.locator(f"{TAB} .fw-models-disk .fw-models-row:has-text('one.safetensors')").first
    sync_api.expect(row).to_contain_text("The same bytes as")
    tab.select_option("#fw_models_shown", "all")


def test_three_models_are_offered_for_this_machine(tab: sync_api.Page) -> None:
    offers = tab.locator(f"{TAB} .fw-models-fitting .fw-models-row")
    sync_api.expect(offers).to_have_count(3)
    assert all(re.search(r"Download \([\d.]+ GB\)", text) for text in offers.all_inner_texts())


def test_after_the_first_image_a_real_model_is_offered(page: sync_api.Page) -> None:
    def bundled(route: sync_api.Route) -> None:
        reply = route.fetch()
        route.fulfill(response=reply, json={**reply.json(), "is_bundled": True})

    page.route("**/internal/engine", bundled)
    page.wait_for_function("!document.body.classList.contains('fw-other-model')")
    page.fill("#txt2img_prompt textarea", "a circle")
    page.press("#txt2img_prompt textarea", "Control+Enter")
    page.wait_for_selector("#txt2img_messages:has-text('three that fit this machine')")
    page.click("#txt2img_messages button:has-text('Get a real model')")
    page.wait_for_selector(f"{TAB} .fw-models-fitting .fw-models-row")
    page.get_by_role("tab", name="txt2img", exact=True).click()
    page.wait_for_selector("#txt2img_prompt textarea")
    page.press("#txt2img_prompt textarea", "Control+Enter")
    page.wait_for_selector("#txt2img_messages:has-text('Time taken:')")
    assert page.locator("#txt2img_messages:has-text('three that fit')").count() == 0, "it is offered once"
    page.unroute_all()
