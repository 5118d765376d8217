"""The canvas with layers in a real browser: painted, expanded, sent, and what comes back becomes a layer."""

import base64
import io
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, FromNoise
from modules.services import Services
from tests.ui.browser import needs_browser

pytestmark = needs_browser
SIDE_PX = 128
STAGE = ".fw-layers-canvas"
LAYERS = ".fw-layers-list li"
ON_SCREEN = "([x, y]) => featherweight.tab('img2img').layers.view.toScreen(x, y)"
RESIZED = """() => {
  const { layers } = featherweight.tab("img2img");
  layers.change(featherweight.layers.withLayer(layers.doc, layers.doc.active, { scale: [0.7, 0.7], x: 5, y: 3.5 }));
}"""
SEEN = """(points) => {
  const { pictures, doc } = featherweight.tab("img2img").layers;
  const context = pictures.seen(doc, { x: 0, y: 0, width: 128, height: 128 }).getContext("2d");
  return points.map(([x, y]) => [...context.getImageData(x, y, 1, 1).data].slice(0, 3));
}"""
LAID_OUT = "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
"""The canvas has the size of its place: what watches that is told once in a frame."""
KEPT_MEANWHILE = """() => {
  const { canvasStore } = featherweight;
  const { put } = canvasStore;
  canvasStore.put = async (name, value) => {
    await put(name, value);
    if (value.blob) await featherweight.tab("img2img").layers.keep();
  };
  return () => (canvasStore.put = put);
}"""
"""The document is kept, as after each change, while a picture is on its way into it."""
Point = tuple[float, float]


@pytest.fixture(scope="module")
def canvas(shared_page: sync_api.Page) -> sync_api.Page:
    """One page with an image on its canvas, sent there as by the button of a gallery; the tests build on each other's
    layers no further than they say."""
    begin(shared_page)
    shared_page.fill("#img2img_steps input[type=number]", "1")
    shared_page.keyboard.press("Tab")
    return shared_page


def begin(page: sync_api.Page) -> None:
    image = Image.new("RGB", (SIDE_PX, SIDE_PX), (40, 90, 200))
    image.paste((250, 200, 0), (0, 0, 64, 64))
    uri = "data:image/png;base64," + base64.b64encode(encode_image(image, "png")).decode("ascii")
    page.evaluate("featherweight.tab('img2img').setImage('canvas', null)")
    page.wait_for_selector(".fw-layers-list .fw-empty")
    page.evaluate("(url) => featherweight.send('canvas', {url, infotext: '', width: 128, height: 128})", uri)
    page.wait_for_selector(f"{LAYERS} >> nth=1")
    page.wait_for_function("featherweight.tab('img2img').mode() === 'canvas'")
    page.evaluate("featherweight.tab('img2img').layers.view.fit()")


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


def draw(page: sync_api.Page, *points: Point) -> None:
    """A stroke with the mouse over points of the canvas, in its pixels."""
    page.evaluate(LAID_OUT)
    box = page.locator(STAGE).bounding_box()
    assert box is not None
    places = [page.evaluate(ON_SCREEN, list(point)) for point in points]
    page.mouse.move(box["x"] + places[0][0], box["y"] + places[0][1])
    page.mouse.down()
    for x, y in places[1:]:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=4)
    page.mouse.up()


def press(page: sync_api.Page, name: str, within: str = ".fw-layers") -> None:
    page.locator(within).get_by_role("button", name=name, exact=True).click()


def sent(page: sync_api.Page, requests: list[GenerationRequest]) -> GenerationRequest:
    """Generate, and wait until the results lie on the canvas."""
    count, waiting = len(requests), page.locator(".fw-layers-variants button").count()
    page.click("#img2img_generate")
    page.wait_for_selector(f".fw-layers-variants button >> nth={waiting}")
    page.wait_for_selector("#img2img_generate", state="visible")
    assert len(requests) == count + 1
    return requests[-1]


def names(page: sync_api.Page) -> list[str]:
    return page.locator(f"{LAYERS} .fw-layers-name").all_inner_texts()


def test_masks_paint_and_an_expanded_frame_are_sent_and_a_result_becomes_a_layer(
    canvas: sync_api.Page, requests: list[GenerationRequest]
) -> None:
    page = canvas
    assert names(page) == ["Mask 1", "Base"], "a mask lies ready on the first image"
    page.locator(STAGE).click(modifiers=["Shift"], position={"x": 3, "y": 3})  # outside: only takes the keyboard
    page.keyboard.press("Control+z")
    page.keyboard.press("m")
    draw(page, (80, 80), (112, 112))
    for key, size_px in (("q", 43), ("w", 47)):  # those of the settings
        page.keyboard.press(key)
        assert page.evaluate("featherweight.tab('img2img').layers.brush") == size_px
    for is_full in ("true", "false"):
        page.keyboard.press("s")
        page.wait_for_function(f"Boolean(document.querySelector('.fw-layers:fullscreen')) === {is_full}")
    press(page, "+ Paint")
    page.locator(".fw-layers input[type=color]").fill("#00ff00")
    page.keyboard.press("Escape")
    press(page, "Lasso")
    draw(page, (8, 8), (40, 8), (40, 40), (8, 40))
    press(page, "Expand to the right")
    assert "33 % of the frame is empty" in page.inner_text(".fw-layers-outside")
    page.fill("#img2img_batch_count input[type=number]", "2")
    page.keyboard.press("Tab")
    page.wait_for_function("featherweight.tab('img2img').form.batch_count === 2")
    request = sent(page, requests)
    start = request.start
    assert isinstance(start, FromImage) and start.mask is not None
    assert start.margins == (0, 64, 0, 0) and request.size_px == (192, 128)
    shown = start.images[0].image
    assert [shown.getpixel(place) for place in ((24, 24), (60, 60), (100, 30))] == [
        *((0, 255, 0), (250, 200, 0), (40, 90, 200)),
    ]
    box = start.mask.image.image.getbbox()
    assert box is not None and np.allclose(box, (80, 80, 112, 112), atol=1)

    page.wait_for_selector(".fw-layers-variants button >> nth=1")
    assert page.inner_text(".fw-layers-which") == "1 of 2"
    press(page, "Next result (.)")
    assert page.inner_text(".fw-layers-which") == "2 of 2"
    press(page, "Accept")
    assert names(page) == ["Mask 1", "Result 1", "Paint 1", "Base"]
    assert page.is_hidden(".fw-layers-results")
    press(page, "Undo (Ctrl+Z)")
    assert page.inner_text(".fw-layers-which") == "2 of 2", "the results wait again"
    press(page, "Discard all")


def test_a_picture_is_not_dropped_before_it_is_in_the_document(canvas: sync_api.Page) -> None:
    put_back = canvas.evaluate_handle(KEPT_MEANWHILE)
    begin(canvas)
    put_back.evaluate("(put_back) => put_back()")
    assert canvas.evaluate(SEEN, [[20, 20], [100, 100]]) == [[250, 200, 0], [40, 90, 200]]


def test_layers_are_renamed_moved_and_hidden(canvas: sync_api.Page, requests: list[GenerationRequest]) -> None:
    page = canvas
    begin(page)
    press(page, "Base", LAYERS)
    page.locator(".fw-layers").get_by_label("Name", exact=True).fill("Blue one")
    page.keyboard.press("Enter")
    page.locator(".fw-layers-list").get_by_role("button", name="Blue one", exact=True).wait_for()
    press(page, "Move layer")
    page.locator(".fw-layers-stage").focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    page.fill("#img2img_batch_count input[type=number]", "1")
    page.keyboard.press("Tab")
    page.wait_for_function("featherweight.tab('img2img').form.batch_count === 1")
    start = sent(page, requests).start
    assert isinstance(start, FromImage) and start.margins == (32, 0, 0, 0), "the frame stayed"
    press(page, "Discard")
    press(page, "Fill")
    page.locator(".fw-layers input[type=color]").fill("#00ff00")
    page.evaluate(RESIZED)
    draw(page, (20, 20))
    assert page.evaluate(SEEN, [[20, 20], [8, 6], [60, 60]]) == [[0, 255, 0], [0, 255, 0], [40, 90, 200]]
    page.locator(f"{LAYERS}:has-text('Blue one')").get_by_role("button", name="Blue one: further up").click()
    assert names(page) == ["Blue one", "Mask 1"]
    page.locator(f"{LAYERS}:has-text('Blue one')").get_by_role("button", name="Blue one: visible").click()
    assert page.evaluate("featherweight.tab('img2img').layers.outsidePercent()") is None, "what is hidden is not sent"
    press(page, "Undo (Ctrl+Z)")
    press(page, "Undo (Ctrl+Z)")
    assert page.locator(LAYERS).get_by_role("button", name="Blue one: visible").get_attribute("aria-pressed") == "true"


def test_a_painted_region_and_a_control_image_are_arguments_of_their_scripts(
    canvas: sync_api.Page, requests: list[GenerationRequest]
) -> None:
    page = canvas
    begin(page)
    page.fill("#img2img_prompt textarea", "a landscape")
    for number, left in enumerate((0, 64)):
        press(page, "+ Region")
        page.locator(".fw-layers").get_by_label("Prompt of this region").fill(("a red house", "a blue tree")[number])
        press(page, "Rectangle")
        draw(page, (left, 2), (left + 62, 126))
    page.locator(".fw-layers-stage").focus()
    request = sent(page, requests)
    assert request.prompt == "a landscape ADDBASE a red house BREAK a blue tree"
    args = dict(request.alwayson_args)["Regional Prompter"]
    encoded = next(arg for arg in args if isinstance(arg, str) and len(arg) > 100)
    colors = np.asarray(Image.open(io.BytesIO(base64.b64decode(encoded))).convert("RGB"))
    assert colors.shape == (SIDE_PX, SIDE_PX, 3)
    assert tuple(colors[64, 30]) == (255, 0, 0) and tuple(colors[64, 95]) == (0, 255, 255)
    page.locator(LAYERS).get_by_role("button", name="Base", exact=True).click()
    page.locator(".fw-layers").get_by_label("Use as").select_option("control")
    count = len(requests)
    page.click("#img2img_generate")
    page.wait_for_function("featherweight.tab('img2img').isRunning() === false")
    assert len(requests) == count + 1
    assert isinstance(requests[-1].start, FromNoise), "a control image is not sampled from"
    (unit,) = json.loads(dict(requests[-1].alwayson_args)["ControlNet"][0])
    image = Image.open(io.BytesIO(base64.b64decode(unit["image"])))
    assert unit["enabled"] and image.size == (SIDE_PX, SIDE_PX) and image.getpixel((10, 10)) == (250, 200, 0, 255)
