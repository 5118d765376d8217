"""The Extras tab in a real browser: one image, a folder with a broken file, refusals, and what a reload finds."""

from pathlib import Path

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.reading import open_image
from modules.services import Services
from tests.ui.browser import needs_browser, open_page

pytestmark = [
    *needs_browser,
    pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning"),  # Gradio looks into each upload
]
LIST = "ul[role=listbox]"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "in"
    folder.mkdir()
    Image.new("RGB", (40, 24), "red").save(folder / "a.png")
    Image.new("RGB", (24, 40), "blue").save(folder / "b.jpg")
    (folder / "c.png").write_bytes(b"no image")
    return folder


def open_tab(page: sync_api.Page) -> None:
    page.click("button[role=tab]:has-text('Extras')")
    page.wait_for_selector("#extras_generate", state="visible")


def choose(page: sync_api.Page, field: str, text: str) -> None:
    page.click(f"#{field} input")
    page.click(f"{LIST} li:has-text('{text}')")


def test_one_image_is_upscaled_and_still_there_after_a_reload(
    page: sync_api.Page, address: str, fakes: Services, folder: Path
) -> None:
    open_page(page, address)  # without an image that another test has sent here
    open_tab(page)
    page.click("#extras_generate")
    page.wait_for_selector("#extras_notice :text('There is no image to work on')")
    page.set_input_files("#extras_image input[type=file]", str(folder / "a.png"))
    page.wait_for_selector("#extras_image img")
    choose(page, "extras_upscaler_1", "Lanczos")
    page.fill("#extras_upscaling_resize input[type=number]", "2")
    page.click("#extras_generate")
    page.wait_for_selector("#html_info_extras:has-text('Postprocess upscale by: 2.0')")
    page.wait_for_function("document.querySelector('#extras_gallery img').naturalWidth === 80")
    assert page.inner_text("#extras_notice").strip() == ""
    saved = fakes.queue.known.tasks("extras")[0].result()["results"][0]["path"]
    assert open_image(Path(saved)).size == (80, 48)
    open_page(page, address)
    open_tab(page)
    page.wait_for_selector("#html_info_extras:has-text('80x48')")


def test_a_folder_is_done_but_for_its_broken_file(page: sync_api.Page, folder: Path) -> None:
    open_tab(page)
    page.click("button[role=tab]:has-text('Batch from Directory')")
    page.fill("#extras_batch_input_dir input, #extras_batch_input_dir textarea", str(folder / "nowhere"))
    page.click("#extras_generate")
    page.wait_for_selector("#extras_notice :text('There is no folder')")
    page.fill("#extras_batch_input_dir input, #extras_batch_input_dir textarea", str(folder))
    page.fill("#extras_batch_output_dir input, #extras_batch_output_dir textarea", str(folder / "out"))
    choose(page, "extras_upscaler_1", "Nearest")
    page.click("button[role=tab]:has-text('Scale to')")
    page.fill("#extras_upscaling_resize_w input[type=number]", "64")
    page.fill("#extras_upscaling_resize_h input[type=number]", "64")
    page.press("#extras_upscaling_resize_h input[type=number]", "Tab")
    page.click("#extras_generate")
    page.wait_for_selector("#extras_gallery .fw-failures li:has-text('c.png')")
    assert page.locator("#extras_gallery .fw-extras img").count() == 2
    page.locator("#extras_gallery .fw-extras summary").nth(1).click()
    page.wait_for_selector("#extras_result_1 button:has-text('img2img')")
    found = {path.name: open_image(path).size for path in (folder / "out").rglob("*.png")}
    assert found == {"a.png": (64, 64), "b.png": (64, 64)}
    assert len(list((folder / "out").glob("failures-*.txt"))) == 1


def test_a_refusal_is_shown_where_the_button_is(page: sync_api.Page, folder: Path) -> None:
    open_tab(page)
    page.click("button[role=tab]:has-text('Single Image')")
    page.set_input_files("#extras_image input[type=file]", str(folder / "a.png"))
    page.wait_for_selector("#extras_image img")
    page.check("#extras_gfpgan-checkbox input")
    page.click("#extras_generate")
    page.wait_for_selector("#extras_progress [role=alert]:has-text('GFPGAN has no file')")
    page.uncheck("#extras_gfpgan-checkbox input")
