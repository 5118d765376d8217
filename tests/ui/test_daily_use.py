"""What one does every day, by mouse: the line by dragging, styles, defaults of the forms, theme and density."""

import json

from playwright import sync_api

from modules.processing.request.request import GenerationRequest
from modules.services import Services
from tests.ui.browser import needs_browser
from tests.ui.dragging import drag

pytestmark = needs_browser


def open_tab(page: sync_api.Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).first.click()


def test_the_line_is_reordered_by_dragging_and_paused(page: sync_api.Page, fakes: Services) -> None:
    open_tab(page, "Queue")
    page.click("#fw_queue [data-do=pause]")
    sync_api.expect(page.locator("#fw_queue [data-do=pause]")).to_have_text("Resume")
    assert fakes.queue.is_paused
    for prompt in ("one", "two", "three"):
        fakes.queue.submit(GenerationRequest(prompt=prompt, width=64, height=64, steps=1))
    try:
        waiting = page.locator("#fw_queue li[draggable] strong")
        sync_api.expect(waiting).to_have_text(["one", "two", "three"])
        rows = page.locator("#fw_queue li[draggable]")
        first, last = (rows.filter(has=page.get_by_text(title, exact=True)) for title in ("one", "three"))
        drag(last, first, (200, 3))
        sync_api.expect(waiting).to_have_text(["three", "one", "two"])
        assert [entry.title for entry in fakes.queue.first(3)] == ["three", "one", "two"]
        page.once("dialog", lambda asked: asked.accept())
        page.click("#fw_queue [data-do=clear]")
        sync_api.expect(waiting).to_have_count(0)
    finally:
        fakes.queue.clear()
        fakes.queue.pause(False)


def test_a_style_is_saved_used_and_deleted(page: sync_api.Page, fakes: Services) -> None:
    page.click("#txt2img_styles_edit > button")
    name = page.locator("#txt2img_styles_edit_name input")
    name.fill("late")
    name.press("Tab")
    sync_api.expect(name).to_have_attribute("aria-expanded", "false")  # the list does not stay open, over other fields
    page.fill("#txt2img_styles_edit_prompt textarea", "{prompt}, at night")
    page.click("#txt2img_styles_edit_save")
    page.wait_for_selector("#txt2img_styles_message :text(\"Style 'late' saved.\")")
    page.click("#txt2img_styles input")
    page.click("#txt2img_styles [role=option]:has-text('late')")
    page.keyboard.press("Escape")
    page.fill("#txt2img_prompt textarea", "a house")
    page.wait_for_function("document.querySelector('#txt2img_prompt .fw-counter').textContent === '5/75'")
    page.fill("#txt2img_steps input[type=number]", "2")
    page.click("#txt2img_generate")
    page.wait_for_selector("#txt2img_infotext:has-text('a house, at night')")
    page.click("#txt2img_styles_edit_delete")
    page.wait_for_selector("#txt2img_styles_message :text(\"Style 'late' deleted.\")")
    sync_api.expect(page.locator("#txt2img_styles .token")).to_have_count(0)
    assert "late" not in fakes.paths.styles_files[0].read_text("utf-8")
    page.click("#txt2img_styles_edit > button")


def test_defaults_are_taken_from_the_form(page: sync_api.Page, fakes: Services) -> None:
    page.fill("#txt2img_steps input[type=number]", "33")
    page.keyboard.press("Tab")
    open_tab(page, "Settings")
    page.get_by_text("Defaults", exact=True).first.click()
    page.click("#ui_defaults_view")
    change = page.locator("#ui_defaults_changes label", has_text="txt2img/Sampling steps: 20 → 33")
    sync_api.expect(change.locator("input")).to_be_checked()
    page.click("#ui_defaults_apply")
    page.wait_for_selector("#ui_defaults_review :has-text('Defaults saved: ')")
    file = fakes.paths.data_dir / "ui-config.json"
    assert json.loads(file.read_text("utf-8"))["txt2img/Sampling steps/value"] == 33
    file.unlink()


def test_a_theme_and_a_density_are_chosen(page: sync_api.Page, fakes: Services) -> None:
    was_dark = page.evaluate("document.body.classList.contains('dark')")
    page.click("#fw_theme")
    assert page.evaluate("document.body.classList.contains('dark')") is not was_dark
    colors = "[document.documentElement, document.body].map((one) => getComputedStyle(one).backgroundColor)"
    gutter, body = page.evaluate(colors)
    assert gutter == body  # no stripe in the other theme's color beside the scroll bar
    page.click("#fw_theme")
    open_tab(page, "Settings")
    page.wait_for_selector("#setting_samples_save", state="attached")
    page.fill("#settings_search", "density")
    page.click("[role=radiogroup][aria-label=Density] label:has-text('Compact')")
    page.click("#settings_submit")
    page.wait_for_function("document.body.classList.contains('fw-compact')")
    fakes.settings.update({"ui_density": "Comfortable"})
