"""The page on a phone: what is in sight without looking for it, and painting with a finger."""

from collections.abc import Iterator

import pytest
from playwright import sync_api

from tests.ui.browser import needs_browser, watched_page
from tests.ui.test_img2img_page import SIZE_PX, draw, painted_pixels, put_image

pytestmark = needs_browser
WIDTH, HEIGHT = 390, 844
SUB_TABS = """(id) => {
  const bar = document.querySelector(`#${id} > .tab-wrapper .tab-container`);
  const boxes = [...bar.querySelectorAll("button[role=tab]")].map((button) => button.getBoundingClientRect());
  return {
    lines: new Set(boxes.map((box) => Math.round(box.top))).size,
    reachable: boxes.filter((box) => box.left >= 0 && box.right <= innerWidth && box.height >= 24).length,
    fewest: Math.ceil(boxes.reduce((sum, box) => sum + box.width, 0) / bar.clientWidth),
    scrolled: document.documentElement.scrollWidth > innerWidth,
  };
}"""


@pytest.fixture(scope="module")
def phone(browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, has_touch=True)
    context.set_default_timeout(45_000)
    with watched_page(context, address) as page:
        yield page
    context.close()


def test_the_header_is_one_row_and_opens(phone: sync_api.Page) -> None:
    phone.wait_for_function("document.querySelector('#quicksettings').offsetHeight === 56")
    assert not phone.is_visible("#setting_fp8_storage")
    phone.tap("#fw_more")
    assert phone.is_visible("#setting_fp8_storage") and phone.is_visible("#fw_scales")
    phone.tap("#fw_more")


def test_the_image_is_in_sight_after_generate(phone: sync_api.Page) -> None:
    phone.fill("#txt2img_steps input[type=number]", "3")
    phone.tap("#txt2img_generate")
    image = phone.locator("#txt2img_gallery .fw-stage img")
    image.wait_for()
    phone.wait_for_selector("#txt2img_generate", state="visible")
    box = image.bounding_box()
    button = phone.locator("#txt2img_generate").bounding_box()
    assert box and button
    assert box["y"] >= 0 and box["y"] + box["height"] <= button["y"] + 1, "between the top and the fixed Generate"


@pytest.mark.parametrize(
    ("tab", "sub_tabs", "count"),
    [("txt2img", "txt2img_extra_tabs", 5), ("img2img", "img2img_extra_tabs", 5), ("img2img", "mode_img2img", 7)],
)
def test_all_sub_tabs_are_in_sight(phone: sync_api.Page, tab: str, sub_tabs: str, count: int) -> None:
    """Without a menu, in as few lines as they need."""
    phone.evaluate("name => featherweight.showTab(name)", tab)
    phone.wait_for_selector(f"#{sub_tabs}", state="visible")
    phone.wait_for_function(f"([id, count]) => ({SUB_TABS})(id).reachable === count", arg=[sub_tabs, count])
    found = phone.evaluate(SUB_TABS, sub_tabs)
    assert found["reachable"] == count, found
    assert found["lines"] <= found["fewest"] + 1 and not found["scrolled"], found


def test_progress_and_interrupt_stay_in_sight(phone: sync_api.Page) -> None:
    phone.evaluate("featherweight.showTab('txt2img')")
    phone.fill("#txt2img_steps input[type=number]", "150")
    phone.fill("#txt2img_batch_count input[type=number]", "10")
    phone.tap("#txt2img_generate")
    progress = phone.locator("#txt2img_progress")
    progress.wait_for()
    for place in ("0", "document.body.scrollHeight"):
        phone.evaluate(f"window.scrollTo(0, {place})")
        above, below = progress.bounding_box(), phone.locator("#txt2img_interrupt").bounding_box()
        assert above and below
        assert above["y"] >= 0 and above["y"] + above["height"] <= below["y"] and below["y"] + below["height"] <= HEIGHT
    phone.tap("#txt2img_interrupt")
    phone.wait_for_selector("#txt2img_generate", state="visible")
    phone.fill("#txt2img_batch_count input[type=number]", "1")


def test_a_card_is_reached_by_its_sub_tab(phone: sync_api.Page) -> None:
    phone.evaluate("featherweight.showTab('txt2img')")
    phone.tap("#txt2img_extra_tabs > .tab-wrapper button[role=tab]:has-text('Checkpoints')")
    phone.locator("#txt2img_checkpoints .card").first.wait_for()
    phone.tap("#txt2img_extra_tabs > .tab-wrapper button[role=tab]:has-text('Generation')")
    phone.wait_for_selector("#txt2img_steps", state="visible")


def test_a_finger_paints_where_it_is(phone: sync_api.Page) -> None:
    put_image(phone, "inpaint")
    for stroke in ([(0.2, 0.3), (0.8, 0.3)], [(0.5, 0.8)]):
        draw(phone, "inpaint", stroke, with_finger=True)
    painted = painted_pixels(phone, "inpaint")
    for x, y in ((0.25, 0.3), (0.5, 0.3), (0.75, 0.3), (0.5, 0.8)):
        assert painted[int(y * SIZE_PX[1]), int(x * SIZE_PX[0])] == 255
    assert painted[2, 2] == 0 and (painted > 0).mean() < 0.6
    assert phone.evaluate("document.documentElement.scrollWidth") <= WIDTH
    phone.evaluate("featherweight.showTab('img2img', 'img2img_batch_tab')")  # on a narrow page it is in a menu
    phone.wait_for_function("featherweight.tab('img2img').mode() === 'batch'")
