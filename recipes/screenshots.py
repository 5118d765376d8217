"""The pictures of the page in `docs/images`: the page with an image, the memory of its job, inpainting, the canvas, a
comparison of precisions.

`python -m recipes.screenshots tabs` saves a sheet of each tab in both themes at three widths in `docs/images/tabs`, to
be looked at; `tabs FOLDER` saves them there, and every picture by itself.

`python -m recipes.screenshots demo` records `docs/images/demo.webp`: a prompt is typed, an image made in 16 bits and
again in fp8 with the same seed, and both are compared.

Run `python -m recipes.screenshots` (needs Chromium and the packages of requirements-test.txt). A server of its own
with the bundled model is started, its page is used as a user would, and what stands there is saved.
"""

import io
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

from benchmarks.page import ARGUMENTS, chromium_path, program

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PROMPT = "a large red circle on a blue background"
SEED = 7
"""With this one the circle lies in the middle, where the mask of `inpaint` covers it."""
LIMIT_MS = 120_000
PLAN = ".fw-plan-text:visible:text('needs')"
"""What the form's image needs, once that is known."""


def make_image(page: Page) -> None:
    """One image on txt2img, as the page is when it is ready."""
    page.fill("#txt2img_seed input", str(SEED))
    page.fill("#txt2img_prompt textarea", PROMPT)
    page.press("#txt2img_prompt textarea", "Control+Enter")
    page.wait_for_selector("#txt2img_messages:has-text('Time taken')")
    page.mouse.move(0, 0)
    page.wait_for_selector(PLAN)
    page.evaluate("document.querySelectorAll('#tab_txt2img *').forEach((one) => (one.scrollTop = 0))")
    _save(page.screenshot(), "page.png")


def show_memory(page: Page) -> None:
    """The memory timeline of the job, opened."""
    page.click("#txt2img_memory summary")
    memory = page.locator("#txt2img_memory")
    memory.locator("svg").first.wait_for()
    memory.screenshot(path=IMAGES / "memory-timeline.png")


def inpaint(page: Page) -> None:
    """The circle of `make_image` painted over on img2img, and the star that came there."""
    page.click("#txt2img_image_tools [data-menu]")
    page.click("#txt2img_send_to_inpaint")
    page.wait_for_selector("[data-canvas=inpaint].fw-canvas-filled")
    page.fill("#img2img_prompt textarea", "a large yellow star on a blue background")
    page.fill("#img2img_denoising_strength input[type=number]", "1")
    canvas = page.locator("[data-canvas=inpaint] .fw-canvas-paint")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    if box is None:
        raise SystemExit("The canvas of img2img is not in sight.")
    x, y, width, height = box["x"], box["y"], box["width"], box["height"]
    page.focus("[data-canvas=inpaint]")
    page.mouse.move(x + 0.1 * width, y + 0.1 * height)
    page.mouse.down()
    for line in range(20):  # to and fro, until the circle is covered
        down = y + (0.1 + 0.044 * line) * height
        for across in (0.1, 0.9) if line % 2 == 0 else (0.9, 0.1):
            page.mouse.move(x + across * width, down, steps=6)
    page.mouse.up()
    page.press("#img2img_prompt textarea", "Control+Enter")
    page.wait_for_selector("#img2img_messages:has-text('Time taken')")
    page.wait_for_selector(".fw-line-jobs .fw-empty", state="attached")
    page.wait_for_selector(".fw-strip > :nth-child(2)", state="attached")
    page.locator("#img2img_extra_tabs").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#mode_img2img').scrollIntoView()")
    page.evaluate("document.activeElement.blur()")  # its tip hides what is below
    page.mouse.move(0, 0)
    _save(page.screenshot(), "inpainting.png")


def use_canvas(page: Page) -> None:
    """The image of `make_image` on the canvas, expanded by a result, with room below it and a region."""
    page.evaluate("featherweight.showTab('txt2img')")
    page.click("#txt2img_image_tools [data-menu]")
    page.click("#txt2img_send_to_canvas")
    page.wait_for_selector(".fw-layers-list li >> nth=1")
    page.wait_for_selector("#img2img_notice:has-text('filled in')")
    layers = page.locator(".fw-layers")
    for name in ("Expand to the left", "Expand to the right"):
        layers.get_by_role("button", name=name).click()
    page.press("#img2img_prompt textarea", "Control+Enter")
    page.wait_for_selector(".fw-layers-variants button")
    layers.get_by_role("button", name="Accept").click()
    layers.get_by_role("button", name="Expand at the bottom").click()
    layers.get_by_role("button", name="+ Region").click()
    layers.get_by_label("Prompt of this region").fill("a small yellow star")
    layers.get_by_role("button", name="Rectangle").click()
    box = page.locator(".fw-layers-canvas").bounding_box()
    if box is None:
        raise SystemExit("The canvas is not in sight.")
    page.mouse.move(box["x"] + 0.4 * box["width"], box["y"] + 0.55 * box["height"])
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.8 * box["height"], steps=6)
    page.mouse.up()
    page.mouse.move(0, 0)
    page.wait_for_selector(PLAN)
    _save(page.screenshot(), "canvas.png")


def compare_precisions(page: Page) -> None:
    """The comparison of the Precision tab with one prompt."""
    page.evaluate("featherweight.showTab('precision')")
    page.click("#precision_tabs button[role=tab]:has-text('Compare images'):visible")
    page.fill("#precision_prompts textarea", PROMPT)
    page.click("#precision_compare")
    page.frame_locator("#precision_result iframe").locator("p.verdict").wait_for()
    page.wait_for_timeout(1000)
    page.locator("#precision_result").screenshot(path=IMAGES / "precision-comparison.png")


TABS = (
    *("txt2img", "img2img", "extras", "pnginfo", "modelmerger", "train", "precision", "getmodels", "queue", "history"),
    *("settings", "extensions"),
)
THEMES = ("light", "dark")
WIDTHS = {1440: 900, 1280: 800, 390: 844}
"""In pixels, with their heights."""
GAP_PX = 12
SETTLE_MS = 1500
SHEET_SCALE = 0.6


def show_tabs(browser: Browser, address: str, folder: Path) -> None:
    """Every tab in light and dark at each width, after one image was made, and a sheet of each tab."""
    folder.mkdir(parents=True, exist_ok=True)
    shots: dict[tuple[str, str, int], bytes] = {}
    for theme in THEMES:
        for width, height in WIDTHS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, locale="en-US")
            page.set_default_timeout(LIMIT_MS)
            page.goto(f"{address}/?__theme={theme}")
            page.wait_for_selector("#txt2img_generate")
            page.wait_for_function("featherweight.tab('txt2img').hasKeptForm !== undefined")
            page.keyboard.press("Escape")
            if not shots:
                page.fill("#txt2img_prompt textarea", PROMPT)
                page.press("#txt2img_prompt textarea", "Control+Enter")
                page.wait_for_selector("#txt2img_messages:has-text('Time taken')")
            for tab in TABS:
                page.evaluate("name => featherweight.showTab(name)", tab)
                page.wait_for_function("name => document.querySelector(`#tab_${name}`)?.offsetParent", arg=tab)
                page.wait_for_timeout(SETTLE_MS)
                shots[tab, theme, width] = page.screenshot(path=folder / f"{tab}-{width}-{theme}.png")
            page.close()
    for tab in TABS:
        _sheet({key[1:]: shot for key, shot in shots.items() if key[0] == tab}).save(folder / f"{tab}.webp", quality=70)


DEMO_PX = (880, 550)
DEMO_PROMPT = "a large yellow star on a purple background"
FRAME_MS = 250


class Reel:
    """Frames of the page and how long each is shown, for an animated image."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[Image.Image] = []
        self._durations: list[int] = []

    def show(self, milliseconds: int) -> None:
        """Add the page as it is now."""
        with Image.open(io.BytesIO(self._page.screenshot())) as shot:
            frame = shot.convert("RGB").resize(DEMO_PX, Image.Resampling.LANCZOS)
        if self._frames and frame.tobytes() == self._frames[-1].tobytes():
            self._durations[-1] += milliseconds
            return
        self._frames.append(frame)
        self._durations.append(milliseconds)

    def until(self, selector: str, frames: int = 6) -> None:
        """Add frames until something is on the page, at most so many, and then one more."""
        shown = 0
        while not self._page.locator(selector).first.is_visible():
            if shown < frames:
                self.show(FRAME_MS)
                shown += 1
            self._page.wait_for_timeout(FRAME_MS)
        self.show(FRAME_MS)

    def save(self, path: Path) -> None:
        """Write the frames as an animated WebP."""
        first, *rest = self._frames
        first.save(path, save_all=True, append_images=rest, duration=self._durations, loop=0, quality=55, method=6)


def record_demo(page: Page) -> None:
    """Type a prompt, generate, switch fp8 on, generate with the same seed, and compare both images."""
    reel = Reel(page)
    page.fill("#txt2img_seed input", str(SEED))
    reel.show(1000)
    page.focus("#txt2img_prompt textarea")
    for begin in range(0, len(DEMO_PROMPT), 5):
        page.keyboard.type(DEMO_PROMPT[begin : begin + 5])
        reel.show(120)
    page.keyboard.press("Escape")
    _generate(page, reel, "#txt2img_messages:has-text('Time taken')")
    reel.show(2500)
    page.click("#setting_fp8_storage input")
    reel.show(700)
    page.get_by_role("option", name="Enable", exact=True).click()
    reel.show(700)
    page.wait_for_timeout(SETTLE_MS)
    _generate(page, reel, "#txt2img_messages:has-text('FP8'), .fw-strip > :nth-child(2)")
    reel.show(2500)
    page.evaluate("featherweight.showTab('history')")
    page.locator(".fw-history-item").nth(1).wait_for()
    reel.show(1000)
    page.locator(".fw-history-item").first.click()
    page.get_by_role("button", name="Choose to compare").click()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="Compare with the chosen one").click()
    box = page.locator("#fw_history_compare")
    box.locator("[role=status]", has_text="PSNR").wait_for()
    box.get_by_role("button", name="Side by side").click()
    page.wait_for_timeout(SETTLE_MS)
    reel.show(6500)
    reel.save(IMAGES / "demo.webp")


def _generate(page: Page, reel: Reel, done: str) -> None:
    """Press *Generate* and record until the image is there."""
    page.click("#txt2img_generate")
    reel.until(done)
    page.mouse.move(0, 0)
    page.wait_for_timeout(SETTLE_MS)
    reel.show(FRAME_MS)


def _sheet(shots: Mapping[tuple[str, int], bytes]) -> Image.Image:
    """The pictures of a tab: a row for each theme, a column for each width."""
    sheet = Image.new("RGB", (sum(WIDTHS) + GAP_PX * (len(WIDTHS) - 1), 2 * max(WIDTHS.values()) + GAP_PX), "gray")
    for row, theme in enumerate(THEMES):
        left = 0
        for width in WIDTHS:
            with Image.open(io.BytesIO(shots[theme, width])) as shot:
                sheet.paste(shot.convert("RGB"), (left, row * (max(WIDTHS.values()) + GAP_PX)))
            left += width + GAP_PX
    return sheet.resize((round(sheet.width * SHEET_SCALE), round(sheet.height * SHEET_SCALE)), Image.Resampling.LANCZOS)


def _save(shot: bytes, name: str) -> None:
    """With 256 colors, which nobody sees: a third of the size."""
    with Image.open(io.BytesIO(shot)) as opened:
        opened.convert("RGB").quantize(256).save(IMAGES / name, optimize=True)


def main(words: Sequence[str] = ()) -> None:
    """Make the pictures of `docs/images`; with `tabs FOLDER` all tabs into that folder, with `demo` the recording."""
    with program() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium_path(), args=list(ARGUMENTS))
        if words[:1] == ["tabs"]:
            with tempfile.TemporaryDirectory() as folder:
                kept = Path(words[1]) if len(words) > 1 else Path(folder)
                show_tabs(browser, address, kept)
                if len(words) == 1:
                    (IMAGES / "tabs").mkdir(exist_ok=True)
                    for sheet in kept.glob("*.webp"):
                        shutil.copy(sheet, IMAGES / "tabs" / sheet.name)
            return
        width, height = (1280, 800) if words[:1] == ["demo"] else (1440, 900)
        page = browser.new_page(viewport={"width": width, "height": height}, locale="en-US", color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        page.goto(address)
        page.wait_for_selector("#txt2img_generate")
        page.wait_for_timeout(3000)
        page.keyboard.press("Escape")  # the tour of a first visit
        if words[:1] == ["demo"]:
            record_demo(page)
            return
        make_image(page)
        show_memory(page)
        inpaint(page)
        use_canvas(page)
        compare_precisions(page)
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1:])
