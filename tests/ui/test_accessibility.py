"""The page for those who cannot see it well, or use no mouse: axe's rules, sizes of targets, keys only.

By default axe looks at each tab at one width in the light theme; names, roles and states of elements are the same at
every width and in both themes, `test_phone.py` looks at a phone, and `test_page_keeps.py` weighs the contrast of the
main buttons in both themes.
"""

import base64
from pathlib import Path

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.services import Services
from tests.history.test_history import png
from tests.thorough import thoroughly
from tests.ui.axe_checks import assert_nothing_serious, axe
from tests.ui.browser import SIZE, STEADY, needs_browser
from tests.ui.test_history_page import import_folder

pytestmark = needs_browser
__all__ = ["axe"]  # a fixture
WIDTHS = [SIZE["width"], thoroughly(1280), thoroughly(390)]
TABS: tuple[str, ...] = ("txt2img", "img2img", "extras", "pnginfo", "modelmerger", "train", "precision", "getmodels")
TABS += ("queue", "history", "settings", "extensions")
SMALL = """() => [...document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=button]")]
  .filter((item) => item.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
  .map((item) => (["checkbox", "radio"].includes(item.type) && item.closest("label")) || item)
  .map((item) => [item, item.getBoundingClientRect()])
  .filter(([, box]) => box.width > 1 && box.height > 1 && (box.width < 23.9 || box.height < 23.9))
  .map(([item, box]) => `${item.closest("[id]")?.id} ${item.outerHTML.slice(0, 120)} ${box.width}x${box.height}`)"""
CLOSED = (
    "tab => [...document.querySelectorAll(`${tab} button.label-wrap:not(.open)`)].filter((head) => head.offsetParent)"
)
GROUPS = "tab => [...document.querySelectorAll(`${tab} .fw-group-head[aria-expanded=false]`)]"
PRESSED = "heads => heads.forEach((head) => head.click())"
FOCUSED = "() => document.activeElement.id || document.activeElement.closest('[id]')?.id || ''"


def tab_to(page: sync_api.Page, wanted: str, most: int = 40) -> None:
    """Press Tab until the element with this id, or something inside of it, has the focus."""
    way = []
    for _ in range(most):
        page.keyboard.press("Tab")
        way.append(page.evaluate(FOCUSED))
        if page.evaluate(f"Boolean(document.activeElement.closest('#{wanted}'))"):
            return
    raise AssertionError(f"#{wanted} is not reached by Tab; on the way: {way}")


def test_keys_alone_make_and_save_an_image(page: sync_api.Page) -> None:
    page.mouse.click(2, 2)  # the next Tab begins at the top
    tab_to(page, "txt2img_prompt")
    page.keyboard.type("made by keys alone")
    tab_to(page, "txt2img_generate")
    page.keyboard.press("Enter")
    page.wait_for_selector("#txt2img_infotext:has-text('made by keys alone')")
    page.wait_for_selector("#txt2img_generate", state="visible")
    assert page.evaluate(FOCUSED) == "txt2img_generate", "the focus is lost when the job is done"
    tab_to(page, "save_txt2img", most=120)
    page.keyboard.press("Enter")
    page.wait_for_selector("#txt2img_messages:has-text('Saved as')")
    assert page.evaluate(FOCUSED) == "save_txt2img"


def test_the_canvas_with_layers_and_waiting_results(page: sync_api.Page, axe: str) -> None:
    square = encode_image(Image.new("RGB", (128, 128), (40, 90, 200)), "png")
    uri = "data:image/png;base64," + base64.b64encode(square).decode("ascii")
    page.evaluate("(uri) => featherweight.tab('img2img').setImage('canvas', uri)", uri)
    page.wait_for_selector(".fw-layers-list li >> nth=1")
    page.click("#img2img_generate")
    page.wait_for_selector(".fw-layers-variants button")
    page.wait_for_selector("#img2img_generate", state="visible")
    page.locator(".fw-layers").get_by_role("button", name="+ Region", exact=True).click()
    page.locator(".fw-layers").get_by_label("Prompt of this region").wait_for()
    check(page, axe, "#tab_img2img")
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("scrollTo(0, 0)")  # the canvas comes before the prompt
    page.wait_for_function("document.querySelector('.fw-layers-stage').getBoundingClientRect().top < 844 / 2")
    page.set_viewport_size(SIZE)
    page.evaluate("featherweight.tab('img2img').setImage('canvas', null)")
    page.wait_for_selector(".fw-layers-list .fw-empty")


def test_the_dialogs_of_the_history(page: sync_api.Page, axe: str, fakes: Services, tmp_path: Path) -> None:
    for steps in (10, 11):
        png(tmp_path / f"{steps}.png", (20 * steps, 20, 10), f"a beacon\nSteps: {steps}, Sampler: Euler, Size: 64x64")
    import_folder(page, fakes, tmp_path)
    page.fill("#fw_history_search", "beacon")
    sync_api.expect(page.locator(".fw-history-item")).to_have_count(2)
    page.locator(".fw-history-item").first.click()
    page.click("#fw_history_dialog button:has-text('Choose to compare')")
    assert_nothing_serious(page, axe, "#fw_history_dialog")
    page.keyboard.press("ArrowRight")
    page.click("#fw_history_dialog button:has-text('Compare with the chosen one')")
    sync_api.expect(page.locator("#fw_history_compare [role=status]")).to_contain_text("PSNR")
    assert_nothing_serious(page, axe, "#fw_history_compare")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.click("button:has-text('Clear selection')")
    page.fill("#fw_history_search", "")


@pytest.mark.parametrize("tab", TABS)
@pytest.mark.parametrize("width", WIDTHS)
def test_no_serious_finding_and_no_small_target(shared_page: sync_api.Page, axe: str, tab: str, width: int) -> None:
    page = shared_page
    page.set_viewport_size({"width": width, "height": 3000})  # else what scrolls cuts some target in two
    page.evaluate(f"featherweight.showTab('{tab}')")
    page.wait_for_selector(f"#tab_{tab}-button[aria-selected=true]", state="attached")
    page.evaluate(STEADY, f"#tab_{tab}")
    groups = page.evaluate_handle(GROUPS, f"#tab_{tab}")
    groups.evaluate(PRESSED)
    heads = page.evaluate_handle(CLOSED, f"#tab_{tab}")
    heads.evaluate(PRESSED)
    page.evaluate(STEADY, f"#tab_{tab}")
    check(page, axe, "body" if tab == TABS[0] else f"#tab_{tab}")  # what is around the tabs is the same
    heads.evaluate(PRESSED)
    groups.evaluate(PRESSED)


def check(page: sync_api.Page, axe: str, within: str) -> None:
    """Nothing serious is found, no target is too small, nothing scrolls sideways. Seen from its top, the form
    too: what stays in view covers nothing there."""
    page.evaluate("for (const part of document.querySelectorAll('*')) if (part.scrollTop) part.scrollTop = 0")
    assert_nothing_serious(page, axe, within)
    assert page.evaluate(SMALL) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways"
