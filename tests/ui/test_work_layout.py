"""The forms' layout: three zones that fill the window, the line beside the image, Enqueue; and the classic one."""

from collections.abc import Iterator

import pytest
from playwright import sync_api

from modules.services import Services
from tests.thorough import thoroughly
from tests.ui.browser import needs_browser
from tests.ui.dragging import drag

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
WAITING = "#fw_line li[draggable=true]"
HEIGHTS = "[document.documentElement.scrollHeight, innerHeight, document.querySelector('#quicksettings').offsetHeight]"
IN_PLACE = """([name, isBelow]) => {
  const [results, line, button] = [`${name}_results`, "fw_line", `${name}_generate`].map(
    (id) => document.getElementById(id).getBoundingClientRect());
  const isBeside = results.right <= line.left + 4;
  return results.width && button.bottom < innerHeight && line.bottom <= innerHeight && isBelow !== isBeside;
}"""
"""The line lies beside the shown tab, into which the page moves it, or in the zone of its results."""
IDS = ("prompt", "neg_prompt", "generate", "interrupt", "skip", "enqueue", "settings", "results", "gallery", "styles")


@pytest.fixture
def services(fakes: Services) -> Iterator[Services]:
    yield fakes
    fakes.settings.update({"ui_layout": "Work", "enqueue_always": False})


def begin(page: sync_api.Page, prompt: str, steps: int = 150) -> None:
    page.fill(PROMPT, prompt)
    page.fill("#txt2img_steps input[type=number]", str(steps))
    page.fill("#txt2img_batch_count input[type=number]", "10")
    page.click("#txt2img_generate")
    page.wait_for_selector("#fw_line .fw-line-running")


def enqueue(page: sync_api.Page, prompt: str) -> None:
    page.fill(PROMPT, prompt)
    page.keyboard.press("Control+Shift+Enter")
    page.wait_for_selector(f"{WAITING}:has-text('{prompt[:20]}')")


def titles(page: sync_api.Page) -> list[str]:
    return page.locator(f"{WAITING} strong").all_inner_texts()


def test_jobs_are_put_in_line_moved_edited_and_followed(page: sync_api.Page, services: Services) -> None:
    assert not page.is_visible("#txt2img_enqueue")
    begin(page, "slow, the first")
    page.wait_for_selector("#txt2img_enqueue", state="visible")
    page.fill("#txt2img_steps input[type=number]", "7")
    page.fill("#txt2img_batch_count input[type=number]", "1")
    for name in ("one", "two <lora:balloon:1>", "three"):
        enqueue(page, name)
    assert titles(page) == ["one", "two <lora:balloon:1>", "three"]
    assert "512x512 · 7 steps" in page.inner_text(f"{WAITING} >> nth=0")
    assert "balloon" in page.inner_text(f"{WAITING} >> nth=1 >> .fw-line-adapters")
    assert page.inner_text("#fw_line h2 b") == "3"
    drag(page.locator(WAITING).nth(2), page.locator(WAITING).first, (40, 4))
    page.wait_for_function("document.querySelector('#fw_line li[draggable=true] strong').textContent === 'three'")
    page.locator(WAITING).nth(0).focus()
    page.keyboard.press("Alt+ArrowDown")
    page.wait_for_function("document.querySelectorAll('#fw_line li[draggable=true] strong')[1].textContent === 'three'")
    page.locator(WAITING).nth(2).locator("button[aria-label^=Edit]").click()
    page.wait_for_function(f"document.querySelector('{PROMPT}').value === 'two <lora:balloon:1>'")
    page.wait_for_function("document.querySelectorAll('#fw_line li[draggable=true]').length === 2")
    page.locator("#fw_line .fw-line-running button").click()
    page.wait_for_selector("#fw_line:has-text('The queue is empty.')")
    page.wait_for_selector("#txt2img_infotext:has-text('three')")  # the one before it may be shown for an instant only


def test_enqueue_can_always_be_there_and_begins_where_nothing_runs(page: sync_api.Page, services: Services) -> None:
    services.settings.update({"enqueue_always": True})
    page.wait_for_selector("#txt2img_enqueue", state="visible")
    page.fill(PROMPT, "put in an empty line")
    page.click("#txt2img_enqueue")
    page.wait_for_selector("#txt2img_infotext:has-text('put in an empty line')")


@pytest.mark.parametrize("width", [thoroughly(1280), 1440])
def test_from_1200_px_on_three_zones_fill_the_window(page: sync_api.Page, services: Services, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.wait_for_function("document.body.classList.contains('fw-working')")
    for name in ("txt2img", "img2img"):
        page.evaluate(f"featherweight.showTab('{name}')")
        page.wait_for_selector(f"#{name}_generate", state="visible")
        is_below = name == "img2img"  # image, result and line beside each other would be strips
        page.wait_for_function(IN_PLACE, arg=[name, is_below])
        _, window, header = page.evaluate(HEIGHTS)
        page.mouse.wheel(0, 2000)
        assert page.evaluate("scrollY") == 0 and header <= 72
        boxes = [page.locator(f"#{name}_{part}").bounding_box() for part in ("settings", "results")]
        line = page.locator("#fw_line").bounding_box()
        assert boxes[0] and boxes[1] and line
        assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
        header = page.locator("#quicksettings").bounding_box()
        assert (
            header
            and max(line["x"] + line["width"], boxes[1]["x"] + boxes[1]["width"]) <= header["x"] + header["width"]
        )
        if is_below:
            source = page.locator("#img2img_source").bounding_box()
            assert source and min(source["width"], boxes[1]["width"]) >= (width - 480) / 2
        button = page.locator(f"#{name}_generate").bounding_box()
        assert button and button["y"] + button["height"] < window
    page.set_viewport_size({"width": 1440, "height": 900})


def test_the_classic_layout_has_the_prompts_on_top_and_the_same_ids(page: sync_api.Page, services: Services) -> None:
    in_both = [name for name in IDS if page.locator(f"#txt2img_{name}").count() == 1]
    assert in_both == list(IDS)
    services.settings.update({"ui_layout": "Classic"})
    page.wait_for_function("!document.body.classList.contains('fw-working')")
    prompt, form, image = (
        page.locator(f"#txt2img_{name}").bounding_box() for name in ("prompt", "settings", "results")
    )
    assert prompt and form and image
    assert prompt["y"] + prompt["height"] < form["y"]
    assert form["x"] + form["width"] <= image["x"] and abs(image["y"] - form["y"]) < 120
    assert page.locator("#txt2img_results #fw_line").count() == 1
