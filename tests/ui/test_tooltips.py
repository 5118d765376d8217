"""What the page says about its controls, and the tour of the first visit."""

import pytest
from playwright import sync_api

from modules.services import Services
from modules.ui.form.form import ROWS, TAB_NAMES
from modules.ui.form.tooltips import tooltips
from tests.fakes import page_config
from tests.ui.browser import needs_browser


def test_every_parameter_has_a_text() -> None:
    assert [row.key for row in ROWS.values() if row.control and not row.control.help] == []


def test_all_texts_belong_to_elements_of_the_page(fakes: Services) -> None:
    shown = {part["props"].get("elem_id") for part in page_config(fakes)["components"]}
    assert sorted(set(tooltips()) - shown) == []


@pytest.mark.parametrize("tab", TAB_NAMES.values())
def test_texts_say_it_plainly(tab: str) -> None:
    for elem_id, text in tooltips().items():
        assert text.endswith(".") and text[0].isupper() and len(text) < 160, elem_id


class TestInTheBrowser:
    pytestmark = needs_browser

    def test_a_text_appears_by_pointer_and_by_focus_and_leaves(self, page: sync_api.Page) -> None:
        page.hover("#txt2img_cfg_scale")
        page.wait_for_selector("#fw_tip:has-text('How closely the image follows the prompt')")
        page.keyboard.press("Escape")
        assert not page.is_visible("#fw_tip")
        page.focus("#txt2img_steps input[type=number]")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Tab")
        page.wait_for_selector("#fw_tip:has-text('More steps: more time')")
        assert page.evaluate("document.activeElement.getAttribute('aria-describedby')") == "fw_tip"
        page.mouse.click(2, 2)
        assert not page.is_visible("#fw_tip")
