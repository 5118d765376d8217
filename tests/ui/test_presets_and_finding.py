"""Groups of folds, finding controls, presets of the form, borders that are dragged, and views of the page."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright import sync_api

from modules.services import Services
from tests.ui.browser import SIZE, needs_browser, open_group, until

pytestmark = needs_browser
STEPS = "#txt2img_steps input[type=number]"
FREEU = "#txt2img_group_guidance .fw-script:has(> .label-wrap:has-text('FreeU'))"
MARKUP = "mine <img src=x onerror=alert(1)>"
POST = """async (body) => {
  const reply = await fetch("internal/presets", {
    method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  return [reply.status, await reply.json()];
}"""
SHIFTS = """() => {
  window.shifted = 0;
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
  }).observe({ type: "layout-shift" });
}"""


@pytest.fixture
def file(fakes: Services) -> Iterator[Path]:
    found = fakes.paths.data_dir / "presets.json"
    yield found
    found.unlink(missing_ok=True)


def open_presets(page: sync_api.Page) -> sync_api.Locator:
    page.click("#fw_presets > [data-menu]")
    return page.locator("#fw_presets > div")


def fold(page: sync_api.Page, is_open: bool) -> None:
    """Unfold FreeU in its group, or fold it."""
    open_group(page, "guidance")
    head = page.locator(f"{FREEU} > .label-wrap")
    if ("open" in (head.get_attribute("class") or "").split()) is not is_open:
        head.click()


def save(page: sync_api.Page, name: str) -> None:
    menu = open_presets(page)
    menu.get_by_label("Name of the preset").fill(name)
    menu.get_by_role("button", name="Save", exact=True).click()
    menu.locator(".fw-preset-name", has_text=name).wait_for(state="attached")


def apply(page: sync_api.Page, name: str) -> None:
    open_presets(page).locator(".fw-preset-name", has_text=name).click()


def open_file(page: sync_api.Page, name: str, content: Any) -> None:
    given: sync_api.FilePayload = {"name": name, "mimeType": "application/json", "buffer": json.dumps(content).encode()}
    open_presets(page).locator("input[type=file]").set_input_files(given)


def test_folds_stand_in_groups_whose_heads_say_what_is_on(page: sync_api.Page) -> None:
    heads = page.locator("#txt2img_script_container .fw-group-head:visible b")
    assert heads.all_inner_texts()[:3] == ["Control", "Guidance", "Large images and finishing"]
    script, group = (page.locator(f"#txt2img_{name}").bounding_box() for name in ("script_list", "group_control"))
    assert script and group and script["y"] < group["y"], "scripts do not stand below everything"
    fold(page, True)
    page.click(f"{FREEU} label:has-text('Enable') input")
    page.wait_for_selector("#txt2img_group_guidance .fw-group-head span:has-text('FreeU')")
    page.click(f"{FREEU} label:has-text('Enable') input")
    page.wait_for_selector("#txt2img_group_guidance .fw-group-head span:text-is('')", state="attached")
    fold(page, False)
    page.click("#txt2img_group_guidance .fw-group-head")
    assert page.is_hidden(FREEU)


@pytest.mark.parametrize(
    ("words", "first", "shown"),
    [
        ("backbone freeu", "Backbone 1", FREEU),
        ("live preview period", "Live preview display period", "#tab_settings"),
        ("merger", "Checkpoint Merger", "#tab_modelmerger"),
        ("x/y/z", "X/Y/Z plot", "#txt2img_script_list"),
    ],
)
def test_any_control_is_found_by_its_words(page: sync_api.Page, words: str, first: str, shown: str) -> None:
    page.keyboard.press("Control+k")
    page.keyboard.type(words)
    found = page.locator("#fw_finder li")
    found.first.wait_for()
    assert any(first.lower() in text.lower() for text in found.all_inner_texts()[:4]), found.all_inner_texts()[:6]
    page.keyboard.press("Enter")
    page.wait_for_selector(shown, state="visible")
    assert page.is_hidden("#fw_finder")


def test_what_one_never_uses_is_hidden_by_one_list(page: sync_api.Page) -> None:
    open_presets(page).get_by_role("button", name="What is shown").click()
    check = page.locator("#fw_shown_parts").get_by_label("Refiner")
    check.uncheck()
    page.wait_for_selector("#txt2img_refiner", state="hidden")
    check.check()
    page.wait_for_selector("#txt2img_refiner", state="visible")
    page.locator("#fw_shown_parts").get_by_role("button", name="Done").click()


def test_a_preset_keeps_the_whole_form_and_gives_it_back(page: sync_api.Page, file: Path) -> None:
    page.fill("#txt2img_prompt textarea", "stays")
    page.fill(STEPS, "33")
    fold(page, True)
    page.click(f"{FREEU} label:has-text('Enable') input")
    page.wait_for_function("featherweight.tab('txt2img').form.steps === 33")
    page.wait_for_selector("#txt2img_group_guidance .fw-group-head span:has-text('FreeU')")
    save(page, MARKUP)
    kept = json.loads(file.read_text(encoding="utf-8"))[MARKUP]
    assert kept["fields"]["steps"] == 33 and "prompt" not in kept["fields"] and kept["scripts"]["FreeU/Enable"] is True
    page.click(f"{FREEU} label:has-text('Enable') input")
    page.fill(STEPS, "7")
    page.wait_for_function("featherweight.tab('txt2img').form.steps === 7")
    apply(page, MARKUP)
    page.wait_for_function("featherweight.tab('txt2img').form.steps === 33")
    assert page.is_checked(f"{FREEU} label:has-text('Enable') input")
    assert page.input_value("#txt2img_prompt textarea") == "stays"
    assert page.inner_text("#fw_presets > [data-menu]") == MARKUP
    open_presets(page).get_by_role("button", name="Reset to the model's own").click()
    page.wait_for_function("featherweight.tab('txt2img').form.steps === 20")
    assert not page.is_checked(f"{FREEU} label:has-text('Enable') input")
    open_presets(page).get_by_role("button", name=f"Delete {MARKUP}").click()
    until(page, lambda: json.loads(file.read_text(encoding="utf-8")) == {})
    fold(page, False)


def test_presets_of_other_versions_say_what_was_left_out(page: sync_api.Page, file: Path) -> None:
    other = {
        "featherweight_preset": 1,
        "fields": {"steps": 9, "sampler": "Sampler of tomorrow", "warmth": 3},
        "scripts": {"Gone/Enable": True},
    }
    open_file(page, "other.preset.json", other)
    message = page.locator("#txt2img_messages .fw-note")
    message.wait_for()
    text = message.inner_text()
    assert all(name in text for name in ("sampler", "warmth", "Gone/Enable")) and "steps" not in text, text
    page.wait_for_function("featherweight.tab('txt2img').form.steps === 9")
    for content, said in (
        ({**other, "featherweight_preset": 99}, "is of a newer version"),
        ({"anything": 1}, "is no preset of this program"),
        ({**other, "fields": {"prompt": "x" * 1_100_000}}, "is larger than 1 MB"),
    ):
        open_file(page, "bad.preset.json", content)
        page.wait_for_selector(f"#txt2img_messages .fw-error:has-text('{said}')")
        page.keyboard.press("Escape")


def test_presets_are_bounded_and_a_broken_file_is_not_overwritten(page: sync_api.Page, file: Path) -> None:
    full = {"name": "full", "preset": {"fields": {"prompt": "x" * 2_100_000}}}
    status, reply = page.evaluate(POST, full)
    assert status == 422 and "more than 2 MB" in reply["errors"] and not file.exists()
    assert page.evaluate(POST, {"name": "", "preset": None})[0] == 422
    file.write_text("{", encoding="utf-8")
    status, reply = page.evaluate(POST, {"name": "mine", "preset": {"fields": {}}})
    assert status == 422 and "presets.json was left out" in reply["errors"]
    assert file.read_text(encoding="utf-8") == "{"


def test_a_border_is_dragged_and_its_place_kept(page: sync_api.Page) -> None:
    page.wait_for_function("document.body.classList.contains('fw-working')")
    form, handle = page.locator("#txt2img_work .fw-left"), page.locator("#txt2img_work .fw-handle[data-panel=form]")

    def width() -> float:
        box = form.bounding_box()
        assert box
        return round(box["width"])

    assert width() == 420
    box = handle.bounding_box()
    assert box
    page.mouse.move(box["x"] + 4, 400)
    page.mouse.down()
    page.mouse.move(box["x"] + 104, 400, steps=4)
    page.mouse.up()
    assert width() == 520 and page.evaluate("JSON.parse(featherweight.kept('panels')).form") == 520
    handle.focus()
    page.keyboard.press("ArrowLeft")
    assert width() == 504
    handle.dblclick()
    assert width() == 420


def test_the_simple_view_shows_prompt_size_style_and_generate(page: sync_api.Page) -> None:
    open_presets(page).get_by_role("button", name="Simple").click()
    page.wait_for_selector("#txt2img_steps", state="hidden")
    for name in ("prompt", "styles", "generate"):
        assert page.is_visible(f"#txt2img_{name}"), name
    for name in ("#txt2img_neg_prompt", "#txt2img_script_list", "#setting_fp8_storage", "#tab_extras-button"):
        assert page.is_hidden(name), name
    page.click(".fw-shapes:visible button:has-text('Wide')")
    page.wait_for_function("(({ width, height }) => width > 1.6 * height)(featherweight.tab('txt2img').form)")
    open_presets(page).get_by_role("button", name="Full").click()
    page.wait_for_selector("#txt2img_steps", state="visible")
    page.evaluate("for (const store of [sessionStorage, localStorage]) store.removeItem('featherweight.view')")


@pytest.mark.parametrize("width", [SIZE["width"], 1280])
def test_nothing_moves_while_a_job_runs(page: sync_api.Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    page.fill("#txt2img_prompt textarea", "at rest")
    page.wait_for_timeout(500)
    page.evaluate(SHIFTS)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#txt2img_infotext:has-text('at rest')")
    page.wait_for_selector("#txt2img_generate", state="visible")
    assert page.evaluate("window.shifted") < 0.05
    page.set_viewport_size(SIZE)
