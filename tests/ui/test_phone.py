"""The page on a phone: what is in sight without looking for it. Painting with a finger is in `test_img2img_page`."""

from collections.abc import Iterator

import pytest
from playwright import sync_api

from tests.ui.browser import needs_browser, watched_page

pytestmark = needs_browser
WIDTH, HEIGHT = 390, 844
SUB_TABS = """(id) => {
  const bar = document.querySelector(`#${id} .tab-container:not(.visually-hidden)`);
  const shown = [...bar.querySelectorAll("button[role=tab]")].filter((button) => button.offsetParent);
  const menu = document.querySelector(`#${id} .overflow-menu`);
  const left = [...document.querySelectorAll(`#${id} .overflow-dropdown button`)];
  const room = (menu?.offsetParent ? menu.getBoundingClientRect().left : innerWidth)
    - Math.max(...shown.map((button) => button.getBoundingClientRect().right));
  const names = (buttons) => buttons.map((button) => button.textContent.trim());
  return { shown: names(shown), left: names(left), room };
}"""


@pytest.fixture(scope="module")
def phone(browser: sync_api.Browser, address: str) -> Iterator[sync_api.Page]:
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, has_touch=True)
    context.set_default_timeout(45_000)
    with watched_page(context, address) as page:
        yield page
    context.close()


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


def test_sub_tabs_of_img2img_stand_where_there_is_room(phone: sync_api.Page) -> None:
    phone.evaluate("featherweight.showTab('img2img')")
    phone.wait_for_selector("#mode_img2img", state="visible")
    phone.wait_for_timeout(500)
    found = phone.evaluate(SUB_TABS, "mode_img2img")
    assert len(found["shown"]) >= 2, found
    assert not found["left"] or found["room"] < 110, found  # no tab that is in the menu has room beside the others
