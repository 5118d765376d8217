"""The img2img tab in a real browser: images, masks that are painted with the mouse (with a finger: test_phone.py), and
what arrives of them."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage
from modules.services import Services
from tests.ui.browser import needs_browser, open_page, until

pytestmark = needs_browser
SIZE_PX = (96, 64)
CANVAS = "[data-canvas={}] .fw-canvas-paint"
Stroke = list[tuple[float, float]]


def picture() -> Image.Image:
    """An image whose every pixel differs from its neighbors."""
    width, height = SIZE_PX
    rows, columns = np.mgrid[0:height, 0:width]
    values = np.stack([columns * 2, rows * 3, (rows + columns) % 256], axis=-1)
    return Image.fromarray(values.astype(np.uint8))


def as_uri(image: Image.Image) -> str:
    return "data:image/png;base64," + base64.b64encode(encode_image(image, "png")).decode("ascii")


def put_image(page: sync_api.Page, mode: str, image: Image.Image | None = None) -> None:
    """As another tab does it."""
    page.evaluate(
        "([mode, image]) => featherweight.tab('img2img').setImage(mode, image)", [mode, as_uri(image or picture())]
    )
    page.wait_for_selector(f"[data-canvas={mode}].fw-canvas-filled")


def draw(page: sync_api.Page, mode: str, points: Stroke, with_finger: bool = False) -> None:
    """One stroke over points of the image, in shares of its sides."""
    canvas = page.locator(CANVAS.format(mode))
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    places = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in points]
    if with_finger:
        touch(page, places)
        return
    page.mouse.move(*places[0])
    page.mouse.down()
    for place in places[1:]:
        page.mouse.move(*place, steps=4)
    page.mouse.up()


def touch(page: sync_api.Page, places: Stroke) -> None:
    """A finger that is put down, moved and lifted, as the browser's own input."""
    session = page.context.new_cdp_session(page)

    def send(kind: str, points: list[dict[str, float]]) -> None:
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    send("touchStart", [{"x": places[0][0], "y": places[0][1]}])
    for x, y in places[1:]:
        send("touchMove", [{"x": x, "y": y}])
    send("touchEnd", [])


def painted_pixels(page: sync_api.Page, mode: str) -> np.ndarray[Any, Any]:
    """The transparency of the canvas [height, width], read back from the browser."""
    values = page.evaluate(
        """(selector) => {
            const canvas = document.querySelector(selector);
            const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
            return [canvas.width, canvas.height, Array.from(data.filter((_, index) => index % 4 === 3))];
        }""",
        CANVAS.format(mode),
    )
    return np.array(values[2], dtype=np.uint8).reshape(values[1], values[0])


@pytest.fixture
def requests(fakes: Services, monkeypatch: pytest.MonkeyPatch) -> list[GenerationRequest]:
    """What is submitted."""
    found: list[GenerationRequest] = []
    submit: Callable[..., Any] = fakes.queue.submit

    def kept(request: GenerationRequest, *args: Any, **kwargs: Any) -> Any:
        found.append(request)
        return submit(request, *args, **kwargs)

    monkeypatch.setattr(fakes.queue, "submit", kept)
    return found


def generate(page: sync_api.Page, requests: list[GenerationRequest]) -> GenerationRequest:
    """What the server is asked for; its images are there."""
    before = len(requests)
    page.click("#img2img_generate")
    until(page, lambda: len(requests) > before)
    page.wait_for_selector("#img2img_generate", state="visible")
    page.wait_for_selector("#img2img_gallery .fw-image img")
    return requests[-1]


def test_what_was_painted_arrives_after_a_reload_and_changes_of_tab(
    page: sync_api.Page, address: str, requests: list[GenerationRequest]
) -> None:
    layers = "featherweight.tab('img2img').layers"
    page.evaluate("(image) => featherweight.tab('img2img').setImage('canvas', image)", as_uri(picture()))
    page.evaluate(
        f"""{layers}.change({{...{layers}.doc, layers: {layers}.doc.layers.map((layer) =>
        ({{...layer, name: layer.name + ", kept", x: 3}}))}})"""
    )
    put_image(page, "inpaint")
    page.evaluate("document.querySelector('[data-canvas=inpaint]').focus()")
    for _ in range(3):
        page.keyboard.press("]")
    draw(page, "inpaint", [(0.2, 0.3), (0.8, 0.3)])
    draw(page, "inpaint", [(0.5, 0.8)])
    draw(page, "inpaint", [(0.1, 0.9), (0.9, 0.1)])
    page.keyboard.press("Control+z")
    for _ in range(3):
        page.keyboard.press("[")
    before = painted_pixels(page, "inpaint")
    row, column = int(0.3 * SIZE_PX[1]), int(0.5 * SIZE_PX[0])
    assert before[row, column] == 255 and before[2, 2] == 0 and 0.05 < (before > 0).mean() < 0.6
    assert before[int(0.1 * SIZE_PX[1]), int(0.9 * SIZE_PX[0])] == 0, "undone"

    page.evaluate("featherweight.showTab('txt2img')")
    page.evaluate(f"{layers}.keep()")
    open_page(page, address)
    page.evaluate("featherweight.showTab('img2img')")
    page.wait_for_selector("[data-canvas=inpaint].fw-canvas-filled")
    assert page.is_visible("#img2img_mask_blur"), "the sub tab is shown again"
    assert np.array_equal(painted_pixels(page, "inpaint"), before)

    page.fill("#img2img_seed input", "7")
    start = generate(page, requests).start
    assert isinstance(start, FromImage) and start.mask is not None
    assert np.array_equal(np.asarray(start.images[0].image), np.asarray(picture()))
    assert np.array_equal(np.asarray(start.mask.image.image), before)
    page.evaluate("featherweight.showTab('img2img', 'img2img_batch_tab')")
    page.wait_for_function("featherweight.tab('img2img').mode() === 'batch'")

    page.evaluate("featherweight.showTab('img2img', 'img2img_canvas_tab')")
    page.wait_for_selector(".fw-layers-list li >> nth=1")
    assert page.locator(".fw-layers-list .fw-layers-name").all_inner_texts() == ["Mask 1, kept", "Base, kept"]
    assert 2 < page.evaluate(f"{layers}.outsidePercent()") < 10, "the picture is there again, 3 pixels to the right"


@pytest.fixture(scope="module")
def opened(shared_page: sync_api.Page) -> sync_api.Page:
    """One page for the tests that only use the form, because opening it takes longer than they do."""
    shared_page.evaluate("featherweight.showTab('img2img')")
    shared_page.wait_for_selector("#img2img_inpaint_tab-button")
    return shared_page


@pytest.fixture
def form(opened: sync_api.Page) -> sync_api.Page:
    """All sub tabs without images."""
    opened.evaluate(
        """async () => {
            for (const mode of ["sketch", "inpaint", "inpaint_upload", "img2img"]) {
                await featherweight.tab("img2img").setImage(mode, null);
            }
        }"""
    )
    return opened


def show(page: sync_api.Page, sub_tab: str) -> None:
    page.evaluate(f"featherweight.showTab('img2img', '{sub_tab}')")
    page.wait_for_selector(f"#{sub_tab}-button[aria-selected=true]")


def test_a_form_without_an_image_says_what_is_missing(form: sync_api.Page) -> None:
    show(form, "img2img_inpaint_tab")
    form.click("#img2img_generate")
    form.wait_for_selector("#img2img_notice .fw-error")
    assert "There is no image to start from" in form.inner_text("#img2img_notice")
    assert form.is_visible("#img2img_generate")
    put_image(form, "inpaint")
    form.click("#img2img_generate")
    form.wait_for_function("document.querySelector('#img2img_notice').textContent.includes('Nothing is painted')")


def test_a_file_that_is_no_image_is_named(form: sync_api.Page) -> None:
    show(form, "img2img_img2img_tab")
    note = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"hello"}
    form.set_input_files("[data-canvas=img2img] input[type=file]", note)  # type: ignore[arg-type]
    form.wait_for_selector("#img2img_messages .fw-error")
    assert "notes.txt is no image file" in form.inner_text("#img2img_messages")


def test_a_zoomed_canvas_is_painted_where_the_pointer_is_and_keys_change_the_brush(form: sync_api.Page) -> None:
    put_image(form, "inpaint")
    canvas = form.locator("[data-canvas=inpaint]")
    canvas.focus()
    for key in ("[", "[", "[", "+", "+", "+"):
        form.keyboard.press(key)
    canvas.locator(".fw-canvas-scroll").evaluate("(element) => element.scrollTo(0, 0)")
    box = canvas.locator(".fw-canvas-paint").bounding_box()
    shown = canvas.locator(".fw-canvas-scroll").bounding_box()
    assert box is not None and shown is not None and box["width"] > 1.8 * shown["width"]
    draw(form, "inpaint", [(0.2, 0.25)])
    rows, columns = np.nonzero(painted_pixels(form, "inpaint") > 127)
    assert abs(rows.mean() - 0.25 * SIZE_PX[1]) < 1 and abs(columns.mean() - 0.2 * SIZE_PX[0]) < 1
    assert rows.max() - rows.min() <= 4, "the brush began with 6 pixels and lost 3"
    form.keyboard.press("Delete")
    assert not painted_pixels(form, "inpaint").any()
    form.keyboard.press("Control+z")
    assert painted_pixels(form, "inpaint").any()


def test_a_sketch_arrives_in_the_color_of_the_brush(form: sync_api.Page, requests: list[GenerationRequest]) -> None:
    put_image(form, "sketch", Image.new("RGB", SIZE_PX, (0, 0, 0)))
    form.locator("[data-canvas=sketch] input[type=color]").fill("#20c040")
    draw(form, "sketch", [(0.2, 0.5), (0.8, 0.5)])
    start = generate(form, requests).start
    assert isinstance(start, FromImage) and start.mask is None
    sent = start.images[0].image
    assert sent.getpixel((48, 32)) == (0x20, 0xC0, 0x40) and sent.getpixel((2, 2)) == (0, 0, 0)


def test_a_batch_makes_what_it_can_and_lists_the_rest(form: sync_api.Page, requests: list[GenerationRequest]) -> None:
    before = len(requests)
    show(form, "img2img_batch_tab")
    form.wait_for_function("featherweight.tab('img2img').mode() === 'batch'")
    files = [
        {"name": "a.png", "mimeType": "image/png", "buffer": encode_image(picture(), "png")},
        {"name": "b.png", "mimeType": "image/png", "buffer": b"no image"},
        {"name": "c.png", "mimeType": "image/png", "buffer": encode_image(Image.new("RGB", (32, 32)), "png")},
    ]
    form.set_input_files(".fw-batch-files input[type=file]", files)  # type: ignore[arg-type]
    form.wait_for_function(
        "featherweight.tab('img2img').batchFiles().every((file) => file.key || !/not sent/.test(file.error))"
    )
    assert "b.png is no image file" in form.inner_text(".fw-batch-list")
    form.click("#img2img_generate")
    state = form.locator("#img2img_batch_state")
    sync_api.expect(state).to_contain_text("3 of 3 · 1 failed · done")
    assert "b.png is no image file" in form.inner_text("#img2img_batch_state")
    form.wait_for_selector("#img2img_gallery .fw-thumbs button >> nth=1")
    assert [start_size(request) for request in requests[before:]] == [SIZE_PX, (32, 32)]
    form.wait_for_selector("#img2img_generate", state="visible")
    form.click("#img2img_batch_clear")
    assert form.evaluate("featherweight.tab('img2img').batchFiles().length") == 0


def start_size(request: GenerationRequest) -> tuple[int, int]:
    assert isinstance(request.start, FromImage)
    return request.start.images[0].image.size


def test_interrogation_says_why_an_image_cannot_be_described(form: sync_api.Page) -> None:
    show(form, "img2img_img2img_tab")
    form.click("#interrogate")
    form.wait_for_selector("#img2img_messages .fw-error")
    assert "There is no image to describe" in form.inner_text("#img2img_messages")


def test_references_are_put_into_another_order(form: sync_api.Page, tmp_path: Path) -> None:
    show(form, "img2img_img2img_tab")
    for name, color in (("one", "red"), ("two", "lime"), ("three", "blue")):
        Image.new("RGB", (40, 30), color).save(tmp_path / f"{name}.png")
    form.evaluate("document.querySelector('#img2img_references button').click()")
    files = [str(tmp_path / f"{name}.png") for name in ("one", "two", "three")]
    form.set_input_files("#img2img_references input[type=file]", files)
    listed = "[...document.querySelectorAll('#img2img_references li img')].map((one) => one.alt)"
    form.wait_for_function(f"{listed}.length === 3")
    form.click("#img2img_references li:nth-child(3) button[aria-label='three.png: further up']")
    assert form.evaluate(listed) == ["one.png", "three.png", "two.png"]
    assert form.is_disabled("#img2img_references li:first-child button[aria-label='one.png: further up']")
    form.drag_and_drop("#img2img_references li:nth-child(1)", "#img2img_references li:nth-child(3)")
    assert form.evaluate(listed) == ["three.png", "two.png", "one.png"]
    form.evaluate("document.querySelector('#img2img_references .fw-batch-clear').click()")


def test_a_prompt_is_written_from_the_words_and_again_from_the_same(form: sync_api.Page) -> None:
    asked: list[str] = []

    def answer(route: sync_api.Route) -> None:
        words = json.loads(route.request.post_data or "")["prompt"]
        asked.append(words)
        text = f"{words}, at length {len(asked)}"
        record = json.dumps({"text": text, "from": words, "by": "m, seed 1"})
        route.fulfill(json={"text": text, "record": record, "is_whole": len(asked) > 1})

    form.route("**/featherweight/v1/write", answer)
    form.fill("#img2img_prompt textarea", "a fox")
    for number in (1, 2):
        form.click("#img2img_write")
        form.wait_for_function(
            f"document.querySelector('#img2img_prompt textarea').value === 'a fox, at length {number}'"
        )
    assert asked == ["a fox", "a fox"]
    assert '"from": "a fox"' in form.input_value("#img2img_write_record textarea")
    form.fill("#img2img_prompt textarea", "a dog")
    form.click("#img2img_write")
    form.wait_for_function("document.querySelector('#img2img_prompt textarea').value === 'a dog, at length 3'")
    form.unroute("**/featherweight/v1/write")
    form.route("**/featherweight/v1/write", lambda route: route.fulfill(status=422, json={"errors": "no head"}))
    form.click("#img2img_write")
    form.wait_for_selector("#img2img_messages .fw-error")
    assert "No prompt was written: no head" in form.inner_text("#img2img_messages")
    form.unroute("**/featherweight/v1/write")
    form.fill("#img2img_prompt textarea", "")
