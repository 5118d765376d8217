"""The real page in a real browser, against a server with a model that computes nothing."""

import base64

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.services import Services
from tests.thorough import thoroughly
from tests.ui.browser import needs_browser, open_page, until

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
IMAGE = "#txt2img_gallery .fw-image img"


@pytest.fixture
def services(fakes: Services) -> Services:
    return fakes


def test_a_typed_prompt_becomes_an_image_with_its_infotext(page: sync_api.Page) -> None:
    page.fill(PROMPT, "slow, a red circle on a blue background")
    page.fill("#txt2img_seed input", "77")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_progress:not([hidden])")
    page.wait_for_selector("#txt2img_infotext:has-text('slow, a red circle on a blue background')")
    assert "Seed: 77" in page.inner_text("#txt2img_infotext")
    page.wait_for_selector(IMAGE)
    assert page.evaluate(f"document.querySelector('{IMAGE}').naturalWidth") > 0
    assert page.title() == "Featherweight"


def test_an_error_is_shown_beside_the_button(page: sync_api.Page) -> None:
    page.fill("#txt2img_cfg_scale input[type=number]", "7")
    page.fill("#txt2img_seed input", "-5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_notice .fw-error:has-text('seed is -5')")
    assert page.is_visible("#txt2img_generate")


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


def test_the_whole_image_is_shown_and_walked_through_by_keys(page: sync_api.Page) -> None:
    page.fill(PROMPT, "two images")
    page.fill("#txt2img_batch_size input[type=number]", "2")
    page.fill("#txt2img_seed input", "5")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('two images')")
    page.wait_for_selector("#txt2img_gallery .fw-thumbs button >> nth=1")
    page.click("#txt2img_gallery .fw-image")
    page.wait_for_selector("#lightboxModal[open]")
    first = page.inner_text("#txt2img_infotext")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#txt2img_infotext") != first
    page.keyboard.press("Escape")
    page.wait_for_selector("#lightboxModal", state="hidden")
    page.click("#txt2img_reuse_seed")
    assert page.input_value("#txt2img_seed input") in ("5", "6")


def test_a_seed_above_what_a_browser_counts_to_stays_exact(page: sync_api.Page) -> None:
    """Pasted, sent, shown and reused."""
    seed = "18446744073709551615"
    page.fill(PROMPT, f"the largest seed\nSteps: 2, Sampler: Euler, CFG scale: 7, Seed: {seed}, Size: 64x64")
    page.click("#paste")
    page.wait_for_function(f"document.querySelector('#txt2img_seed input').value === '{seed}'")
    page.click("#txt2img_generate")
    page.wait_for_selector(f"#txt2img_infotext:has-text('Seed: {seed},')")
    page.click("#txt2img_random_seed")
    page.wait_for_function("document.querySelector('#txt2img_seed input').value === '-1'")
    page.click("#txt2img_reuse_seed")
    assert page.input_value("#txt2img_seed input") == seed
    page.fill("#txt2img_seed input", "a seed")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_notice .fw-error:has-text('is no whole number')")


def test_a_selection_made_right_after_a_change_of_weight_stays(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a red cat")
    selection = page.evaluate(
        f"""async () => {{
            const area = document.querySelector('{PROMPT}');
            area.setSelectionRange(3, 3);
            area.dispatchEvent(new KeyboardEvent("keydown", {{ key: "ArrowUp", ctrlKey: true, bubbles: true }}));
            area.select();
            await new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
            return [area.value, area.selectionStart, area.selectionEnd];
        }}"""
    )
    assert selection == ["a (red:1.1) cat", 0, len("a (red:1.1) cat")]


DROP = """([data, type]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "image", { type }));
  document.querySelector("#txt2img_prompt textarea").dispatchEvent(
    new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer }));
}"""


# What is read of the other formats is said by `tests/images/test_metadata.py`.
@pytest.mark.parametrize("extension", ["png", *map(thoroughly, ("jpg", "webp", "avif"))])
def test_a_dropped_image_fills_the_form(page: sync_api.Page, extension: str) -> None:
    text = "a dog\nNegative prompt: ugly, été\nSteps: 7, Sampler: Euler a, CFG scale: 5, Seed: 42, Size: 192x256"
    data = base64.b64encode(encode_image(Image.new("RGB", (192, 256), "red"), extension, text)).decode()
    page.evaluate(DROP, [data, f"image/{extension}"])
    page.wait_for_function("document.querySelector('#txt2img_steps input[type=number]').value === '7'")
    assert page.input_value(PROMPT) == "a dog"
    assert page.input_value("#txt2img_neg_prompt textarea") == "ugly, été"
    page.wait_for_function("document.querySelector('#txt2img_neg_prompt .fw-counter').textContent !== '0/75'")


def test_an_override_that_is_removed_leaves_no_empty_field(page: sync_api.Page) -> None:
    page.fill(PROMPT, "a dog\nSteps: 7, Sampler: Euler a, CFG scale: 5, Seed: 42, Clip skip: 2")
    page.click("#paste")
    page.wait_for_selector("#txt2img_override_settings")
    page.click("#txt2img_override_settings .token-remove >> nth=0")
    page.wait_for_selector("#txt2img_override_settings", state="hidden")


def test_listed_settings_stand_at_the_top_and_are_stored(page: sync_api.Page, address: str, services: Services) -> None:
    services.settings.update(
        {"quicksettings_list": ["CLIP_stop_at_last_layers", "tiling"], "hide_samplers": ["DPM fast"]}
    )
    open_page(page, address)
    page.click("#quicksettings_more #setting_tiling input")
    page.fill("#quicksettings_more #setting_CLIP_stop_at_last_layers input[type=number]", "3")
    page.keyboard.press("Tab")
    wanted = {"CLIP_stop_at_last_layers": 3, "tiling": True}
    until(page, lambda: all(services.settings.current[key] == value for key, value in wanted.items()))
    ids = page.evaluate("[...document.querySelectorAll('[id]')].map((element) => element.id).filter(Boolean)")
    assert sorted(ids) == sorted(set(ids))
    page.click("#txt2img_sampling input")
    page.wait_for_selector("#txt2img_sampling li:has-text('Euler a')")
    page.wait_for_selector("#txt2img_sampling li:has-text('DPM fast')", state="detached")


def test_interrupt_finishes_the_present_image_where_more_are_to_come(page: sync_api.Page, services: Services) -> None:
    page.fill(PROMPT, "slow, one of many")
    page.fill("#txt2img_steps input[type=number]", "40")
    page.fill("#txt2img_batch_count input[type=number]", "20")
    page.click("#txt2img_generate")
    page.wait_for_function("document.title.includes(' of 800')")
    page.click("#txt2img_interrupt")
    page.wait_for_selector("#txt2img_infotext:has-text('one of many')")
    result = services.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()")).result()
    assert result.interrupted and 1 <= len(result.samples) < 20
