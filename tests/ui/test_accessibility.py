"""The page for those who cannot see it well, or use no mouse: axe's rules, sizes of targets, keys only.

One page for the whole file: the window is resized, the theme switched and the tabs opened in turn. What is looked at in
one tab comes first: each tab that was opened stays in the page, and axe walks through it.
"""

import base64
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.services import Services
from tests.history.test_history import png
from tests.thorough import is_thorough
from tests.ui.browser import needs_browser
from tests.ui.test_history_page import import_folder
from tests.ui.test_train_page import few_steps, fill, slow_steps, write_images

pytestmark = needs_browser
__all__ = ["few_steps", "slow_steps"]  # fixtures
AXE = Path(__file__).parent / "axe"
NPM = shutil.which("npm")
INSTALL_S = 600
TRAINING_MS = 240_000
"""Until a training begins or pauses on a busy machine."""
PHONE, DESKTOPS = 390, (1280, 1440)  # widths of windows, in pixels
TABS: tuple[str, ...] = ("txt2img", "img2img", "extras", "pnginfo", "modelmerger", "precision", "getmodels", "queue")
TABS += ("history", "settings", "extensions")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
OF_WIDTH = {"type": "rule", "values": ["target-size", "scrollable-region-focusable"]}
"""What else depends on how wide a window is; names, roles and states of elements do not."""
OWN_ON_PHONES = ("txt2img", "img2img")
"""Tabs that are arranged otherwise on a phone."""
COLORS = {"type": "rule", "values": ["color-contrast"]}
"""For the dark theme after the light one, between which nothing else differs."""
SERIOUS = """async (rules) => {
  const hidden = [...document.querySelectorAll(".tabitem")].filter((tab) => !tab.offsetParent);
  const found = await axe.run({ exclude: hidden }, { resultTypes: ["violations"], runOnly: rules });
  return found.violations.filter((one) => ["serious", "critical"].includes(one.impact))
    .map((one) => `${one.id}: ${one.nodes.map((node) => node.html.slice(0, 160)).join(" | ")}`);
}"""
SMALL = """() => [...document.querySelectorAll("button, a[href], input, select, textarea, summary, [role=button]")]
  .filter((item) => item.checkVisibility({ opacityProperty: true, visibilityProperty: true }))
  .map((item) => (["checkbox", "radio"].includes(item.type) && item.closest("label")) || item)
  .map((item) => [item, item.getBoundingClientRect()])
  .filter(([, box]) => box.width > 1 && box.height > 1 && (box.width < 23.9 || box.height < 23.9))
  .map(([item, box]) => `${item.closest("[id]")?.id} ${item.outerHTML.slice(0, 120)} ${box.width}x${box.height}`)"""
FOCUSED = "() => document.activeElement.id || document.activeElement.closest('[id]')?.id || ''"


@pytest.fixture(scope="module")
def axe() -> str:
    """axe-core's script, as the lock file pins it."""
    script = AXE / "node_modules" / "axe-core" / "axe.min.js"
    if not script.exists():
        if NPM is None:
            pytest.skip("Node.js is not installed (apt-get install nodejs npm)")
        words = [NPM, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        done = subprocess.run(words, cwd=AXE, capture_output=True, text=True, timeout=INSTALL_S)
        if done.returncode != 0:
            pytest.skip(f"npm could not install axe-core (no network?): {done.stderr.strip()[-300:]}")
    return script.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def axe_page(shared_page: sync_api.Page, axe: str) -> Iterator[sync_api.Page]:
    """The shared page with axe in it; its window and theme are put back."""
    size: Any = shared_page.viewport_size
    shared_page.emulate_media(reduced_motion="reduce")  # no colors halfway between two themes
    shared_page.evaluate(axe)
    yield shared_page
    shared_page.set_viewport_size(size)
    shared_page.emulate_media(reduced_motion="no-preference")
    set_theme(shared_page, "light")


def set_theme(page: sync_api.Page, theme: str) -> None:
    if (theme == "dark") is not page.evaluate("document.body.classList.contains('dark')"):
        page.evaluate("document.querySelector('#fw_theme').click()")


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


def test_the_canvas_with_layers_and_waiting_results(axe_page: sync_api.Page) -> None:
    page = axe_page
    page.set_viewport_size({"width": DESKTOPS[-1], "height": 900})
    square = encode_image(Image.new("RGB", (128, 128), (40, 90, 200)), "png")
    uri = "data:image/png;base64," + base64.b64encode(square).decode("ascii")
    page.evaluate("(uri) => featherweight.tab('img2img').setImage('canvas', uri)", uri)
    page.wait_for_selector(".fw-layers-list li >> nth=1")
    page.click("#img2img_generate")
    page.wait_for_selector(".fw-layers-variants button")
    page.wait_for_selector("#img2img_generate", state="visible")
    page.locator(".fw-layers").get_by_role("button", name="+ Region", exact=True).click()
    page.get_by_label("Prompt of this region").wait_for()
    check(page, DESKTOPS[-1], RULES)
    page.set_viewport_size({"width": PHONE, "height": 844})
    page.evaluate("scrollTo(0, 0)")  # the canvas comes before the prompt
    page.wait_for_function("document.querySelector('.fw-layers-stage').getBoundingClientRect().top < 844 / 2")
    page.evaluate("featherweight.tab('img2img').setImage('canvas', null)")
    page.wait_for_selector(".fw-layers-list .fw-empty")


def test_the_dialogs_of_the_history(axe_page: sync_api.Page, fakes: Services, tmp_path: Path) -> None:
    page = axe_page
    page.set_viewport_size({"width": DESKTOPS[-1], "height": 900})
    for steps in (10, 11):
        png(tmp_path / f"{steps}.png", (20 * steps, 20, 10), f"a beacon\nSteps: {steps}, Sampler: Euler, Size: 64x64")
    import_folder(page, fakes, tmp_path)
    page.fill("#fw_history_search", "beacon")
    sync_api.expect(page.locator(".fw-history-item")).to_have_count(2)
    page.locator(".fw-history-item").first.click()
    page.click("#fw_history_dialog button:has-text('Choose to compare')")
    check_state(page)
    page.keyboard.press("ArrowRight")
    page.click("#fw_history_dialog button:has-text('Compare with the chosen one')")
    sync_api.expect(page.locator("#fw_history_compare [role=status]")).to_contain_text("PSNR")
    check_state(page)
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.click("button:has-text('Choose none')")
    page.fill("#fw_history_search", "")


def test_a_training_that_runs(axe_page: sync_api.Page, tmp_path: Path, slow_steps: None) -> None:
    page = axe_page
    page.set_viewport_size({"width": DESKTOPS[-1], "height": 900})
    page.evaluate("featherweight.showTab('train')")
    page.locator("#train_name").wait_for()
    fill(page, "seen by axe", write_images(tmp_path), 5000)
    page.click("#train_start")
    page.wait_for_selector("#train_result >> text=/step \\d+ of 5000/", timeout=TRAINING_MS)
    try:
        check_state(page)
    finally:
        page.click("#train_pause:has-text('Pause')")
        page.wait_for_selector("#train_result >> text=/Paused at step \\d+/", timeout=TRAINING_MS)
    check_state(page)


@pytest.mark.parametrize("tab", TABS)
def test_no_serious_finding_and_no_small_target(axe_page: sync_api.Page, tab: str) -> None:
    page = axe_page
    page.evaluate(f"featherweight.showTab('{tab}')")
    page.wait_for_selector(f"#tab_{tab}-button[aria-selected=true]", state="attached")
    page.wait_for_function(f"document.querySelector('#tab_{tab}')?.offsetParent")
    page.wait_for_timeout(300)
    page.evaluate(f"""document.querySelectorAll('#tab_{tab} button.label-wrap:not(.open)').forEach((head) =>
        head.offsetParent && head.click())""")
    check(page, DESKTOPS[TABS.index(tab) % 2], RULES if tab in OWN_ON_PHONES else OF_WIDTH)


def check_state(page: sync_api.Page) -> None:
    """Nothing serious is found in what the page shows at this moment, in both themes."""
    set_theme(page, "light")
    assert page.evaluate(SERIOUS, RULES) == [], "light"
    set_theme(page, "dark")
    assert page.evaluate(SERIOUS, COLORS) == [], "dark"
    set_theme(page, "light")


def check(page: sync_api.Page, desktop: int, on_phone: Any) -> None:
    """Nothing serious is found, on a phone by these rules, no target is too small, nothing scrolls sideways: on a phone
    and a desktop, in both themes. The other width of such windows is looked at with other tabs."""
    for width in (PHONE, *DESKTOPS) if is_thorough() else (PHONE, desktop):
        page.set_viewport_size({"width": width, "height": 900})
        set_theme(page, "light")
        page.wait_for_timeout(200)
        rules = on_phone if width == PHONE and not is_thorough() else RULES
        assert page.evaluate(SERIOUS, rules) == [], f"{width} px, light"
        assert page.evaluate(SMALL) == [], f"{width} px"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{width} px: it scrolls sideways"
        if width != desktop and not is_thorough():
            continue  # colors of a theme are the same at every width
        set_theme(page, "dark")
        page.wait_for_timeout(100)
        assert page.evaluate(SERIOUS, COLORS) == [], f"{width} px, dark"
