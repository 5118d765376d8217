"""The img2img tab in a real browser: images, masks that are painted with the pointer, and what arrives of them."""

import base64
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright import sync_api

from modules.images.encode import encode_image
from modules.processing.request import GenerationRequest
from modules.processing.start import FromImage
from modules.services import Services
from tests.ui.browser import needs_browser, open_page, watched_page

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


@pytest.fixture(params=[{"width": 1400, "height": 900}, {"width": 390, "height": 844}], ids=["wide", "narrow"])
def sized_page(
    browser: sync_api.Browser, address: str, request: pytest.FixtureRequest
) -> Iterator[tuple[sync_api.Page, bool]]:
    """The page with a mouse, and on a narrow screen with a finger; and whether it is narrow."""
    is_narrow = request.param["width"] < 760
    context = browser.new_context(viewport=request.param, has_touch=is_narrow)
    context.set_default_timeout(30_000)
    with watched_page(context, address) as page:
        yield page, is_narrow
    context.close()


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


def generate(page: sync_api.Page) -> None:
    page.click("#img2img_generate")
    page.wait_for_selector("#img2img_gallery .fw-image img")


def test_what_was_painted_arrives_after_a_reload_and_changes_of_tab(
    sized_page: tuple[sync_api.Page, bool], address: str, requests: list[GenerationRequest]
) -> None:
    page, is_narrow = sized_page
    put_image(page, "inpaint")
    page.evaluate("document.querySelector('[data-canvas=inpaint]').focus()")
    for _ in range(3):
        page.keyboard.press("]")
    draw(page, "inpaint", [(0.2, 0.3), (0.8, 0.3)], with_finger=is_narrow)
    draw(page, "inpaint", [(0.5, 0.8)], with_finger=is_narrow)
    draw(page, "inpaint", [(0.1, 0.9), (0.9, 0.1)], with_finger=is_narrow)
    page.keyboard.press("Control+z")
    before = painted_pixels(page, "inpaint")
    row, column = int(0.3 * SIZE_PX[1]), int(0.5 * SIZE_PX[0])
    assert before[row, column] == 255 and before[2, 2] == 0 and 0.05 < (before > 0).mean() < 0.6
    assert before[int(0.1 * SIZE_PX[1]), int(0.9 * SIZE_PX[0])] == 0, "undone"

    page.evaluate("featherweight.showTab('txt2img')")
    page.wait_for_timeout(100)
    open_page(page, address)
    page.evaluate("featherweight.showTab('img2img')")
    page.wait_for_selector("[data-canvas=inpaint].fw-canvas-filled")
    assert page.is_visible("#img2img_mask_blur"), "the sub tab is shown again"
    assert np.array_equal(painted_pixels(page, "inpaint"), before)

    page.fill("#img2img_seed input", "7")
    generate(page)
    start = requests[-1].start
    assert isinstance(start, FromImage) and start.mask is not None
    assert np.array_equal(np.asarray(start.images[0].image), np.asarray(picture()))
    assert np.array_equal(np.asarray(start.mask.image.image), before)
    assert page.evaluate("document.documentElement.scrollWidth") <= page.viewport_size["width"]  # type: ignore[index]
