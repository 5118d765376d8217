"""The real page in a real browser, against a server with a model that computes nothing."""

import shutil
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from playwright import sync_api

from modules.api.app import build_api
from modules.services import Services
from modules.ui.app import mount_page
from tests.fakes import fake_services

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)"),
]


ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
PROMPT = "#txt2img_prompt textarea"
PICTURE = "#txt2img_gallery .fw-picture img"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.queue.close()


@pytest.fixture(scope="module")
def address(services: Services) -> Iterator[str]:
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    app = mount_page(build_api(services), services)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    context = browser.new_context(viewport={"width": 1440, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    foreign: list[str] = []
    page.on(
        "request",
        lambda request: None if request.url.startswith((address, "data:", "blob:")) else foreign.append(request.url),
    )
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_page(page, address)
    yield page
    context.close()
    assert foreign == [], "a request left the machine"
    assert errors == []


def open_page(page: sync_api.Page, address: str) -> None:
    page.goto(address)
    page.wait_for_selector("#txt2img_generate")
    page.wait_for_function("document.querySelector('#fw_scales')?.textContent")


def test_a_typed_prompt_becomes_a_picture_with_its_infotext(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a red circle on a blue background")
    page.fill("#txt2img_seed input", "77")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_progress:not([hidden])")
    page.wait_for_selector(PICTURE)
    infotext = page.inner_text("#txt2img_infotext")
    assert infotext.startswith("a red circle on a blue background")
    assert "Seed: 77" in infotext
    assert page.evaluate(f"document.querySelector('{PICTURE}').naturalWidth") > 0
    assert page.title() == "Featherweight"


def test_a_reload_during_a_job_finds_the_job_again(page: sync_api.Page, address: str) -> None:
    page.fill(PROMPT, "slow, to be reloaded")
    page.fill("#txt2img_steps input[type=number]", "60")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_progress:not([hidden])")
    page.wait_for_timeout(700)
    open_page(page, address)
    page.wait_for_selector(PICTURE)
    assert "slow, to be reloaded" in page.inner_text("#txt2img_infotext")


def test_an_error_is_shown_beside_the_button(page: sync_api.Page) -> None:
    page.fill("#txt2img_cfg_scale input[type=number]", "7")
    page.fill("#txt2img_seed input", "-5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_notice .fw-error")
    assert "seed is -5" in page.inner_text("#txt2img_notice")
    assert page.is_visible("#txt2img_generate")


def test_escape_interrupts_and_control_enter_generates(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, to be stopped")
    page.fill("#txt2img_steps input[type=number]", "150")
    page.press(PROMPT, "Control+Enter")
    page.wait_for_selector("#txt2img_interrupt", state="visible")
    page.wait_for_timeout(600)
    page.keyboard.press("Escape")
    page.wait_for_selector("#txt2img_generate", state="visible")


def test_a_setting_is_kept_over_a_reload(page: sync_api.Page, address: str, services: Services) -> None:
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    box = page.locator("#setting_samples_save input[type=checkbox]")
    before = box.is_checked()
    box.click()
    page.click("#settings_submit")
    page.wait_for_selector("#settings_result .fw-note")
    assert services.settings.current.flag("samples_save") is not before
    open_page(page, address)
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    page.wait_for_timeout(500)
    assert page.locator("#setting_samples_save input[type=checkbox]").is_checked() is not before


def test_settings_can_be_searched(page: sync_api.Page) -> None:
    page.click("button[role=tab]:has-text('Settings')")
    page.wait_for_selector("#setting_samples_save")
    page.fill("#settings_search", "clip skip")
    assert page.is_visible("#setting_CLIP_stop_at_last_layers")
    assert not page.is_visible("#setting_samples_save")


def test_control_up_weighs_the_word_and_brackets_are_checked(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a red circle")
    page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(4, 4)")
    page.press(PROMPT, "Control+ArrowUp")
    assert page.input_value(PROMPT) == "a (red:1.1) circle"
    page.press(PROMPT, "Control+ArrowUp")
    assert page.input_value(PROMPT) == "a (red:1.2) circle"
    page.press(PROMPT, "Control+ArrowDown")
    page.press(PROMPT, "Control+ArrowDown")
    assert page.input_value(PROMPT) == "a red circle"
    page.fill(PROMPT, "a (red circle")
    page.wait_for_selector("#txt2img_prompt .fw-counter.fw-bad")


def test_alt_arrows_move_an_element(page: sync_api.Page) -> None:
    page.fill(PROMPT, "one, two, three")
    page.evaluate(f"document.querySelector('{PROMPT}').setSelectionRange(6, 6)")
    page.press(PROMPT, "Alt+ArrowLeft")
    assert page.input_value(PROMPT) == "two, one, three"


def test_tokens_are_counted_while_typing(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a cat")
    page.wait_for_function("document.querySelector('#txt2img_prompt .fw-counter')?.textContent === '2/75'")


def test_pasted_parameters_fill_the_form(page: sync_api.Page) -> None:
    text = "a dog\nNegative prompt: ugly\nSteps: 7, Sampler: Euler a, Schedule type: Karras, CFG scale: 5, Seed: 42, "
    page.fill(PROMPT, text + "Size: 192x256, Clip skip: 2, Version: v1.10.1")
    page.click("#paste")
    page.wait_for_function(f"document.querySelector('{PROMPT}').value === 'a dog'")
    assert page.input_value("#txt2img_neg_prompt textarea") == "ugly"
    assert page.input_value("#txt2img_steps input[type=number]") == "7"
    assert page.input_value("#txt2img_seed input") == "42"
    assert page.input_value("#txt2img_width input[type=number]") == "192"
    page.wait_for_selector("#txt2img_override_settings")
    assert "Clip skip: 2" in page.inner_text("#txt2img_override_settings")


def test_the_whole_picture_is_shown_and_walked_through_by_keys(page: sync_api.Page) -> None:
    page.fill(PROMPT, "two pictures")
    page.fill("#txt2img_batch_size input[type=number]", "2")
    page.fill("#txt2img_seed input", "5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_gallery .fw-thumbs button >> nth=1")
    page.click("#txt2img_gallery .fw-picture")
    page.wait_for_selector("#lightboxModal[open]")
    first = page.inner_text("#txt2img_infotext")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#txt2img_infotext") != first
    page.keyboard.press("Escape")
    page.wait_for_selector("#lightboxModal", state="hidden")
    page.click("#txt2img_reuse_seed")
    assert page.input_value("#txt2img_seed input") in ("5", "6")


def test_a_narrow_page_has_one_column_and_generate_in_reach(browser: sync_api.Browser, address: str) -> None:
    page = browser.new_page(viewport={"width": 390, "height": 844})
    open_page(page, address)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    box = page.locator("#txt2img_generate").bounding_box()
    assert box is not None and box["y"] + box["height"] <= 844 and box["width"] > 300
    page.close()
