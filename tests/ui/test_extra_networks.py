"""Cards of models in a real browser: found, put into the prompt, taken out again, noted, chosen."""

import json
import shutil
from collections.abc import Iterator

import pytest
from PIL import Image
from playwright import sync_api

from modules.services import Services
from tests.model_cards.test_cards import adapter, image
from tests.ui.browser import needs_browser
from tests.ui.test_page import PROMPT

pytestmark = needs_browser
NEGATIVE = "#txt2img_neg_prompt textarea"
SEARCH = "#txt2img_lora_extra_search"
CARDS = "#txt2img_lora_cards .card"
PLAIN = 150


@pytest.fixture(scope="module")
def services(fakes: Services) -> Iterator[Services]:
    """The shared program with many adapters and an embedding."""
    lora, embeddings = fakes.paths.lora_dirs[0], fakes.paths.data_dir / "embeddings"
    ink = adapter(
        lora / "styles" / "ink.safetensors", {"ss_output_name": "Ink", "ss_tag_frequency": '{"a": {"pen": 3}}'}
    )
    image(ink.with_name("ink.png"))
    notes = {"activation text": "ink drawing", "preferred weight": 0.7, "negative text": "photo"}
    ink.with_name("ink.json").write_text(json.dumps(notes), encoding="utf-8")
    script = '<b>bold</b><img src="x" onerror="document.title = 1"><script>document.title = 2</script>'
    adapter(lora / "bold.safetensors").with_name("bold.txt").write_text(script, encoding="utf-8")
    adapter(lora / ".attic" / "old.safetensors")
    adapter(lora / "large.safetensors", {"ss_base_model_version": "sdxl_base_v1-0"})
    adapter(lora / "lcm-lora-sdv1-5.safetensors")
    for number in range(PLAIN):
        adapter(lora / "many" / f"plain {number}.safetensors")
    embeddings.mkdir(exist_ok=True)
    (embeddings / "bad-hands.pt").write_bytes(b"not looked at")
    yield fakes
    shutil.rmtree(lora)
    lora.mkdir()
    shutil.rmtree(embeddings)


@pytest.fixture(scope="module")
def page(services: Services, shared_page: sync_api.Page) -> sync_api.Page:
    return shared_page


def open_tab(page: sync_api.Page, name: str) -> None:
    page.click(f"#txt2img_extra_tabs button[role=tab]:has-text('{name}')")


@pytest.fixture
def cards(page: sync_api.Page) -> sync_api.Page:
    """The Lora tab, empty prompts, no search."""
    open_tab(page, "Lora")
    page.wait_for_selector(CARDS)
    page.fill(PROMPT, "a cat")
    page.fill(NEGATIVE, "")
    page.fill(SEARCH, "")
    return page


def test_a_click_puts_an_adapter_into_the_prompt_and_another_takes_it_out(cards: sync_api.Page) -> None:
    page = cards
    page.fill(SEARCH, "ink")
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length === 1")
    use = page.locator(f"{CARDS}[data-name='ink'] .fw-card-use")
    use.click()
    assert page.input_value(PROMPT) == "a cat <lora:Ink:0.7> ink drawing"
    assert page.input_value(NEGATIVE) == "photo"
    assert use.get_attribute("aria-pressed") == "true"
    page.fill(PROMPT, "a cat <lora:Ink:1.2:0.5> ink drawing, on a roof")
    use.click()
    assert page.input_value(PROMPT) == "a cat, on a roof"
    assert page.input_value(NEGATIVE) == ""
    assert use.get_attribute("aria-pressed") == "false"


def test_cards_are_drawn_as_far_as_they_are_looked_at(cards: sync_api.Page) -> None:
    page = cards
    drawn = page.locator(CARDS).count()
    assert drawn < PLAIN
    page.evaluate("document.querySelector('#txt2img_lora_cards').scrollTop = 1e6")
    page.wait_for_function(f"document.querySelectorAll('{CARDS}').length > {drawn}")


def test_a_file_for_few_steps_sets_them_in_one_click(cards: sync_api.Page) -> None:
    page = cards
    page.fill(SEARCH, "lcm")
    card = page.locator(f"{CARDS}[data-name='lcm-lora-sdv1-5']")
    card.locator(".fw-card-use").click()
    page.wait_for_function("featherweight.tab('txt2img').form.prompt.includes('lcm')")
    assert page.input_value("#txt2img_steps input[type=number]") == "20"  # offered, not forced
    status = page.locator(".fw-networks[data-page=lora] .fw-networks-status")
    sync_api.expect(status).to_contain_text("is made for few steps")
    status.locator("button").click()
    sync_api.expect(page.locator("#txt2img_steps input[type=number]")).to_have_value("6")
    page.wait_for_function(
        "(({steps, cfg_scale, sampler, scheduler}) =>"
        " steps === 6 && cfg_scale === 1 && sampler === 'LCM' && scheduler === 'SGM Uniform')"
        "(featherweight.tab('txt2img').form)"
    )
    page.evaluate("featherweight.tab('txt2img').set('steps', '20')")
    badge = card.locator(".fw-card-steps")
    sync_api.expect(badge).to_have_text("LCM: 6 steps")
    badge.click()
    sync_api.expect(page.locator("#txt2img_steps input[type=number]")).to_have_value("6")
    assert page.input_value(PROMPT) == "a cat <lora:lcm-lora-sdv1-5:1>"


def test_a_description_is_text_or_harmless_formatting(cards: sync_api.Page, services: Services) -> None:
    page = cards
    page.fill(SEARCH, "bold")
    description = page.locator(f"{CARDS}[data-name='bold'] .description")
    assert "<script>" in description.inner_text()
    services.settings.update({"extra_networks_card_description_is_html": True})
    page.click("#txt2img_lora_extra_refresh")
    sync_api.expect(description).to_have_text("bold")
    assert description.inner_html() == "<b>bold</b>"
    assert page.title() == "Featherweight"


def test_notes_are_edited_in_a_dialog(cards: sync_api.Page, services: Services) -> None:
    page = cards
    page.fill(SEARCH, "plain 77")
    card = page.locator(f"{CARDS}[data-name='plain 77']")
    card.hover()
    card.locator("[data-do=edit]").click()
    page.wait_for_selector("#fw_card_dialog[open]")
    page.fill("#fw_card_dialog [data-note='description']", "number seventy-seven")
    page.fill("#fw_card_dialog [data-note='preferred weight']", "0.25")
    page.click("#fw_card_dialog button[type=submit]")
    page.wait_for_selector("#fw_card_dialog", state="hidden")
    sync_api.expect(card).to_contain_text("number seventy-seven")
    card.locator(".fw-card-use").click()
    assert page.input_value(PROMPT) == "a cat <lora:plain 77:0.25>"
    file = services.paths.lora_dirs[0] / "many" / "plain 77.json"
    assert json.loads(file.read_text()) == {"description": "number seventy-seven", "preferred weight": 0.25}


def test_the_selected_image_becomes_the_preview_of_a_card(cards: sync_api.Page, services: Services) -> None:
    page = cards
    page.fill(SEARCH, "bold")
    card = page.locator(f"{CARDS}[data-name='bold']")
    card.hover()
    card.locator("[data-do=edit]").click()
    use = page.get_by_role("button", name="Use the selected image as preview")
    sync_api.expect(use).to_be_disabled()
    page.keyboard.press("Escape")
    open_tab(page, "Generation")
    for name, value in {"width": 64, "height": 64, "steps": 2}.items():
        page.fill(f"#txt2img_{name} input[type=number]", str(value))
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_gallery .fw-image img")
    open_tab(page, "Lora")
    card.hover()
    card.locator("[data-do=edit]").click()
    use.click()
    page.wait_for_selector("#fw_card_dialog .fw-card-preview img")
    page.keyboard.press("Escape")
    sync_api.expect(card.locator("img")).to_be_visible()
    with Image.open(services.paths.lora_dirs[0] / "bold.preview.png") as preview:
        assert preview.size == (64, 64)


def test_metadata_and_words_are_shown(cards: sync_api.Page) -> None:
    page = cards
    page.fill(SEARCH, "ink")
    card = page.locator(f"{CARDS}[data-name='ink']")
    card.hover()
    card.locator("[data-do=metadata]").click()
    page.wait_for_selector("#fw_card_dialog[open]")
    assert '"ss_output_name": "Ink"' in page.inner_text("#fw_card_dialog pre")
    page.click(".fw-card-words button")
    assert page.input_value("#fw_card_dialog [data-note='activation text']") == "ink drawing, pen"
    page.keyboard.press("Escape")
    page.wait_for_selector("#fw_card_dialog", state="hidden")
