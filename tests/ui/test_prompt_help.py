"""Completion of prompts, choices and wildcards on the page, in a real browser."""

import pytest
from playwright import sync_api

from modules.services import Services
from tests.ui.browser import needs_browser, open_group

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
LIST = "#tag_completion"


@pytest.fixture
def page(shared_page: sync_api.Page) -> sync_api.Page:
    """The page with txt2img in front."""
    shared_page.click("#tab_txt2img-button")
    shared_page.wait_for_selector(PROMPT, state="visible")
    return shared_page


@pytest.fixture
def tags(fakes: Services) -> None:
    for kind, name, text in (
        ("tags", "danbooru.csv", "long_hair,0,3900000,\nlong_sleeves,0,1500000,\nsmile_(happy),0,1000,grin\n"),
        ("wildcards", "colors.txt", "red\n"),
    ):
        folder = fakes.paths.data_dir / kind
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text)


def typed(page: sync_api.Page, box: str, text: str, key: str) -> str:
    page.type(box, text)
    page.wait_for_selector(f"{LIST} li")
    page.press(box, key)
    page.wait_for_selector(LIST, state="hidden")
    return page.input_value(box)


@pytest.mark.usefixtures("tags")
def test_prompts_are_completed_by_keys(page: sync_api.Page) -> None:
    page.fill(PROMPT, "")
    page.type(PROMPT, "lon")
    page.wait_for_selector(f"{LIST} li:has-text('long_sleeves')")
    page.press(PROMPT, "ArrowDown")
    page.press(PROMPT, "ArrowDown")
    active = page.get_attribute(PROMPT, "aria-activedescendant")
    assert active and "long_sleeves" in page.inner_text(f"#{active}")
    page.press(PROMPT, "Enter")
    assert page.input_value(PROMPT) == "long sleeves, "
    assert typed(page, PROMPT, "grin", "Tab") == r"long sleeves, smile \(happy\), "
    assert typed(page, PROMPT, "a __c", "Tab") == r"long sleeves, smile \(happy\), a __colors__"
    page.press(PROMPT, "Control+z")
    assert page.input_value(PROMPT).endswith("a __c"), "a completion is undone in one step"
    assert typed(page, "#txt2img_neg_prompt textarea", "long h", "Tab") == "long hair, "


def test_the_fields_of_dynamic_prompts_are_sent_with_the_form(page: sync_api.Page, fakes: Services) -> None:
    open_group(page, "control")
    page.click("#txt2img_settings button:has-text('Dynamic prompts')")
    page.click("label:has-text('All combinations') input")
    page.wait_for_selector("#txt2img_settings .label-wrap [data-state='All combinations']")
    page.fill(PROMPT, "{a|b}")
    page.fill("#txt2img_steps input[type=number]", "2")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('Steps: 2')")
    job = fakes.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()"))
    assert job.request.alwayson_args["Dynamic prompts"] == (True, True, 0, False)
    page.click("label:has-text('All combinations') input")
    page.click("#txt2img_settings button:has-text('Dynamic prompts')")
