"""Plan and memory timeline on the real page, with the tiny model computing."""

import json
import re
from collections.abc import Iterator

import pytest
from playwright import sync_api

from compat.foreign import Foreign
from modules.assembly import build_services
from modules.flags.flags import Flags
from modules.services import Services
from tests.recordings import TINY
from tests.ui.browser import needs_browser, served, visit

pytestmark = needs_browser
SLOW_MS = 120_000  # the first plan and the first image import PyTorch's larger parts
TOO_MUCH = {
    "device": "CPU",
    "line": "needs 4.3 of 4.0 GB",
    "needs": 4_300_000_000,
    "available": 4_000_000_000,
    "fits": False,
    "worst": "decode",
    "weights": 1,
    "learnt_from": 0,
    "stages": [{"stage": "decode", "needs": 4_300_000_000}],
    "proposals": [
        {
            "title": "VAE in tiles",
            "line": "needs 3.0 of 4.0 GB",
            "needs": 3_000_000_000,
            "fits": True,
            "settings": {"vae_tile_size": 512},
            "fields": {"batch_size": 2},
        }
    ],
}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    flags = Flags(data_dir=str(tmp_path_factory.mktemp("data")), ckpt=str(TINY), use_cpu=("all",), no_hashing=True)
    services = build_services(flags, foreign=Foreign())
    services.dispatcher.start()
    services.engine.model(None)
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def page(services: Services, window: sync_api.Page) -> Iterator[sync_api.Page]:
    window.set_default_timeout(SLOW_MS)
    with served(services) as address, visit(window, address):
        yield window


def test_what_the_form_needs_stands_beside_generate(page: sync_api.Page) -> None:
    page.wait_for_selector("#fw_scales.fw-ready")
    page.wait_for_selector("#txt2img_plan_line .fw-plan-text")
    assert re.fullmatch(r"needs \d+\.\d of \d+\.\d GB RAM", page.inner_text("#txt2img_plan_line .fw-plan-text"))
    assert "denoise" in str(page.get_attribute("#txt2img_plan_line .fw-plan-text", "title"))
    assert not page.query_selector("#txt2img_plan_line button")


def test_after_an_image_its_memory_is_drawn(page: sync_api.Page) -> None:
    for name in ("width", "height"):
        page.fill(f"#txt2img_{name} input[type=number]", "64")
    page.fill("#txt2img_steps input[type=number]", "2")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_memory:not([hidden])")
    page.click("#txt2img_memory summary")
    assert re.search(r"Memory: \d+\.\d\d GB at most", page.inner_text("#txt2img_memory summary"))
    page.wait_for_selector("#txt2img_memory svg polyline")
    stages = page.locator("#txt2img_memory td:first-child").all_inner_texts()
    assert stages[0] == "load" and {"text", "denoise", "decode", "save"} <= set(stages)


def test_hires_fix_counts_before_it_was_ever_shown(page: sync_api.Page) -> None:
    text = "a dog\nSteps: 2, Sampler: Euler, CFG scale: 5, Seed: 2, Size: 64x64, Hires upscale: 4"
    page.fill("#txt2img_prompt textarea", text)
    page.click("#paste")
    page.wait_for_function("featherweight.tab('txt2img').form.hires_scale === 4")
    page.fill("#txt2img_width input[type=number]", "72")
    page.wait_for_function(
        "document.querySelector('#txt2img_plan_line .fw-plan-text')?.title.includes('denoise hires')"
    )
    page.click("#txt2img_enable_hr input")
    page.fill("#txt2img_width input[type=number]", "64")


def test_one_click_makes_the_change_that_is_proposed(page: sync_api.Page, services: Services) -> None:
    page.route(
        "**/internal/memory-estimate",
        lambda route: route.fulfill(body=json.dumps(TOO_MUCH), content_type="application/json"),
    )
    page.fill("#txt2img_width input[type=number]", "128")
    button = page.wait_for_selector("#txt2img_plan_line.fw-over button")
    assert button is not None and button.inner_text() == "VAE in tiles: needs 3.0 of 4.0 GB"
    button.click()
    page.wait_for_function("document.querySelector('#txt2img_messages').textContent.includes('VAE in tiles')")
    assert services.settings.current.vae.vae_tile_size == 512
    assert page.input_value("#txt2img_batch_size input[type=number]") == "2"
