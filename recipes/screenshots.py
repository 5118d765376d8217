"""The pictures of the page in `docs/images`: the page with an image, the memory of its job, a comparison of precisions.

Run `python -m recipes.screenshots` (needs Chromium and the packages of requirements-test.txt). A server of its own
with the bundled model is started, its page is used as a user would, and what stands there is saved.
"""

import re
import shutil
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.page import ARGUMENTS, program

IMAGES = Path(__file__).parent.parent / "docs" / "images"
PROMPT = "a large red circle on a blue background"
LIMIT_MS = 120_000


def make_image(page: Page) -> None:
    """One image on txt2img, as the page is when it is ready."""
    page.fill("#txt2img_prompt textarea", PROMPT)
    page.press("#txt2img_prompt textarea", "Control+Enter")
    page.wait_for_selector("#txt2img_messages:has-text('Time taken')")
    page.mouse.move(0, 0)
    page.get_by_text(re.compile(r"^needs ")).first.wait_for()
    page.screenshot(path=IMAGES / "page.png")


def show_memory(page: Page) -> None:
    """The memory timeline of the job, opened."""
    page.click("#txt2img_memory summary")
    memory = page.locator("#txt2img_memory")
    memory.locator("svg").first.wait_for()
    memory.screenshot(path=IMAGES / "memory-timeline.png")


def compare_precisions(page: Page) -> None:
    """The comparison of the Precision tab with one prompt."""
    page.evaluate("featherweight.showTab('precision')")
    page.click("#precision_tabs button[role=tab]:has-text('Compare images'):visible")
    page.fill("#precision_prompts textarea", PROMPT)
    page.click("#precision_compare")
    page.frame_locator("#precision_result iframe").locator("p.verdict").wait_for()
    page.wait_for_timeout(1000)
    page.locator("#precision_result").screenshot(path=IMAGES / "precision-comparison.png")


def main() -> None:
    """Make them all."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("Chromium is not installed (apt-get install chromium).")
    with program() as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(ARGUMENTS))
        page = browser.new_page(viewport={"width": 1440, "height": 900}, locale="en-US", color_scheme="light")
        page.set_default_timeout(LIMIT_MS)
        page.goto(address)
        page.wait_for_selector("#txt2img_generate")
        page.wait_for_timeout(3000)
        page.keyboard.press("Escape")  # the tour of a first visit
        make_image(page)
        show_memory(page)
        compare_precisions(page)
        browser.close()


if __name__ == "__main__":
    main()
