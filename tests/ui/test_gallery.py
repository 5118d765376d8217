"""The buttons below an image, and where images can be sent, in a real browser."""

import base64
import zipfile
from pathlib import Path

import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.services import Services
from tests.thorough import thoroughly
from tests.ui.browser import needs_browser, send_to

pytestmark = needs_browser
PROMPT = "#txt2img_prompt textarea"
THUMBS = "#txt2img_gallery .fw-thumbs button"
INFOTEXT = "a dog\nSteps: 7, Sampler: Euler a, CFG scale: 5, Seed: 42, Size: 192x256"
DROP = """([selector, data, type]) => {
  const bytes = Uint8Array.from(atob(data), (character) => character.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], "dropped.png", { type }));
  document.querySelector(selector).dispatchEvent(
    new DragEvent("drop", { bubbles: true, cancelable: true, dataTransfer: transfer }));
}"""


@pytest.fixture
def page(shared_page: sync_api.Page) -> sync_api.Page:
    """The page with txt2img in front."""
    shared_page.click("#tab_txt2img-button")
    shared_page.wait_for_selector(PROMPT, state="visible")
    return shared_page


def make(page: sync_api.Page, prompt: str, images: int, seed: int = 5) -> None:
    page.fill(PROMPT, prompt)
    for name, value in (("steps", 2), ("width", 64), ("height", 64), ("batch_count", images)):
        page.fill(f"#txt2img_{name} input[type=number]", str(value))
    page.fill("#txt2img_seed input", str(seed))
    page.wait_for_function(f"featherweight.tab('txt2img').form.seed === '{seed}'")
    page.click("#txt2img_generate")
    page.wait_for_selector(f"#txt2img_infotext:has-text('{prompt}')")


def seeds(page: sync_api.Page) -> list[int]:
    found: list[int] = page.evaluate("featherweight.tab('txt2img').images().map((image) => Number(image.seed))")
    return found


def image_file(infotext: str | None = INFOTEXT) -> bytes:
    return encode_image(Image.new("RGB", (192, 256), "teal"), "png", infotext)


def drop(page: sync_api.Page, selector: str, data: bytes, kind: str = "image/png") -> None:
    page.evaluate(DROP, [selector, base64.b64encode(data).decode(), kind])


def read(page: sync_api.Page, data: bytes) -> None:
    """Give PNG Info an image."""
    page.click("#tab_pnginfo-button")
    page.wait_for_selector("#pnginfo_html", state="visible")
    earlier = page.locator("#pnginfo_image button[aria-label='Clear']")
    if earlier.count():
        earlier.click()
        page.wait_for_selector("#pnginfo_send", state="hidden")
    field = "#pnginfo_image input[type=file]"
    page.wait_for_selector(field, state="attached")
    page.set_input_files(field, {"name": "a.png", "mimeType": "image/png", "buffer": data})
    page.wait_for_selector("#pnginfo_send:not([hidden]) button")


def test_an_image_is_deleted_by_key_after_a_question_and_the_others_stay(page: sync_api.Page, fakes: Services) -> None:
    make(page, "one of these goes", 3)
    page.focus(f"{THUMBS} >> nth=0")
    page.keyboard.press("ArrowRight")
    page.once("dialog", lambda dialog: dialog.dismiss())
    page.keyboard.press("Delete")
    assert seeds(page) == [5, 6, 7]
    page.once("dialog", lambda dialog: dialog.accept())
    page.keyboard.press("Delete")
    page.wait_for_selector("#txt2img_messages :text('Deleted')")
    assert seeds(page) == [5, 7]
    assert "Seed: 7" in page.inner_text("#txt2img_infotext")
    job = fakes.queue.known.get(page.evaluate("featherweight.tab('txt2img').task()"))
    assert [image.seed for image in job.result().images] == [5, 7]
    for left in (1, 0):
        page.once("dialog", lambda dialog: dialog.accept())
        page.click("#txt2img_delete")
        page.wait_for_function(f"featherweight.tab('txt2img').images().length === {left}")
    assert page.locator("#txt2img_image_tools").is_hidden()


def test_the_archive_is_downloaded_under_its_name(page: sync_api.Page, tmp_path: Path) -> None:
    make(page, "into an archive", 2, seed=20)
    with page.expect_download() as download:
        page.click("#save_zip_txt2img")
    assert download.value.suggested_filename.endswith("_20-21.zip")
    download.value.save_as(tmp_path / "images.zip")
    assert len(zipfile.ZipFile(tmp_path / "images.zip").namelist()) == 2


def test_hires_of_an_image_stands_behind_it_and_leaves_the_form(page: sync_api.Page, fakes: Services) -> None:
    make(page, "to be enlarged", 2, seed=30)
    page.fill(PROMPT, "the next prompt")
    page.click(f"{THUMBS} >> nth=1")
    page.click("#txt2img_upscale")
    page.wait_for_function("featherweight.tab('txt2img').images().length === 3")
    assert seeds(page) == [30, 31, 31]
    assert page.inner_text("#txt2img_infotext").startswith("to be enlarged")
    assert page.input_value(PROMPT) == "the next prompt"
    request = fakes.queue.known.get(page.evaluate("featherweight.tab('txt2img').selectedImage().task")).request
    assert request.hires is not None and request.seed == 31


def test_a_file_dropped_on_the_gallery_is_shown_and_sent(page: sync_api.Page) -> None:
    drop(page, "#txt2img_gallery", image_file())
    page.wait_for_selector("#txt2img_infotext:has-text('a dog')")
    for name in ("#save_txt2img", "#save_zip_txt2img", "#txt2img_upscale", "#txt2img_delete"):
        assert page.locator(name).is_hidden(), "the server knows nothing of this image"
    page.click("#txt2img_image_tools [data-do=paste]")
    page.wait_for_function(f"document.querySelector('{PROMPT}').value === 'a dog'")
    assert page.input_value("#txt2img_seed input") == "42"
    drop(page, "#txt2img_gallery", b"no image", "text/plain")
    page.wait_for_selector("#txt2img_messages .fw-error:has-text('cannot show dropped.png as an image')")


# `test_what_is_not_sent_along_stays_as_it_is` of test_page_settings.py has both.
@pytest.mark.parametrize("is_sent", [thoroughly(True), False])
def test_size_and_seed_go_along_by_setting(page: sync_api.Page, fakes: Services, is_sent: bool) -> None:
    fakes.settings.update({"send_seed": is_sent, "send_size": is_sent})
    page.fill(PROMPT, "")
    page.fill("#txt2img_seed input", "9")
    page.fill("#txt2img_width input[type=number]", "512")
    read(page, image_file())
    page.click("#pnginfo_send_to_txt2img")
    page.wait_for_function(f"document.querySelector('{PROMPT}').value === 'a dog'")
    page.wait_for_selector(PROMPT, state="visible")
    assert page.input_value("#txt2img_seed input") == ("42" if is_sent else "9")
    assert page.input_value("#txt2img_width input[type=number]") == ("192" if is_sent else "512")
    fakes.settings.update({"send_seed": True, "send_size": True})


@pytest.mark.parametrize("name", [thoroughly("img2img"), "inpaint"])  # both are one table, `takes`
def test_an_image_goes_into_a_sub_tab_of_img2img_with_its_parameters_and_its_own_size(
    page: sync_api.Page, name: str
) -> None:
    text = INFOTEXT.replace("192x256", "96x128")  # as hires fix records it: the first pass was smaller
    drop(page, "#txt2img_gallery", image_file(text))
    send_to(page, name)
    page.wait_for_selector("#img2img_prompt textarea", state="visible")
    page.wait_for_function("document.querySelector('#img2img_prompt textarea').value === 'a dog'")
    page.wait_for_function(f"featherweight.tab('img2img').mode() === '{name}'")
    page.wait_for_function("featherweight.tab('img2img').imageSize()?.width === 192")
    assert page.evaluate(f"featherweight.tab('img2img').getImage('{name}') !== null")
    assert page.input_value("#img2img_width input[type=number]") == "192"
    assert page.input_value("#img2img_height input[type=number]") == "256"


def test_an_image_goes_to_extras_as_if_it_were_dropped_there(page: sync_api.Page) -> None:
    drop(page, "#txt2img_gallery", image_file())
    send_to(page, "extras")
    page.wait_for_function("document.querySelector('#extras_image img')?.naturalWidth === 192")
