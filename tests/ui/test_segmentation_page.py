"""Masks by clicks, boxes and words in a real browser: what is asked for, its outline, and the mask that arrives."""

import base64
import json
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageDraw
from playwright import sync_api

from tests.ui.browser import needs_browser
from tests.ui.test_img2img_page import CANVAS, as_uri, painted_pixels, picture, put_image

pytestmark = needs_browser
PREVIEW = "[data-canvas=inpaint] .fw-segment-preview"
SIZE_PX = (96, 64)
BOX = (20, 10, 60, 50)


@pytest.fixture
def asked(page: sync_api.Page) -> Iterator[list[dict[str, Any]]]:
    """What the page asks the server for, which finds an oval in `BOX`, and no zebra."""
    bodies: list[dict[str, Any]] = []

    def answer(route: sync_api.Route) -> None:
        bodies.append(json.loads(route.request.post_data or ""))
        if bodies[-1].get("words") == "zebra":
            text = "Nothing in the image is found for 'zebra', and nothing is masked."
            route.fulfill(status=422, content_type="application/json", body=json.dumps({"errors": text}))
            return
        mask = Image.new("L", SIZE_PX)
        ImageDraw.Draw(mask).ellipse(BOX, fill=255)
        file = BytesIO()
        mask.save(file, "PNG")
        text = base64.b64encode(file.getvalue()).decode()
        route.fulfill(content_type="application/json", body=json.dumps({"mask": text, "found": []}))

    page.route("**/featherweight/v1/segment", answer)
    page.evaluate("featherweight.showTab('img2img')")
    put_image(page, "inpaint")
    page.click("#img2img_segment_select")
    yield bodies
    # By script: another canvas may be shown, and it would go on to select where later tests paint.
    page.evaluate("document.querySelector('#img2img_segment_select[aria-pressed=true]')?.click()")
    page.unroute("**/featherweight/v1/segment")


def point_at(page: sync_api.Page, x: float, y: float, **more: Any) -> None:
    """Click a point of the image, in its pixels."""
    box = page.locator(CANVAS.format("inpaint")).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + x / SIZE_PX[0] * box["width"], box["y"] + y / SIZE_PX[1] * box["height"], **more)


def is_outlined(page: sync_api.Page) -> bool:
    """Whether the oval is outlined: there is a line at its left edge, and little inside of it."""
    alphas: list[int] = page.evaluate(
        """(selector) => {
            const context = document.querySelector(selector).getContext("2d");
            return [[19, 30], [40, 40], [5, 5]].map(([x, y]) => context.getImageData(x, y, 1, 1).data[3]);
        }""",
        PREVIEW,
    )
    return alphas[0] > 200 and 0 < alphas[1] < 128 and alphas[2] == 0


def test_clicks_and_a_box_are_outlined_and_become_the_mask(page: sync_api.Page, asked: list[dict[str, Any]]) -> None:
    point_at(page, 30, 20)
    page.wait_for_selector("#img2img_segment_add:enabled")
    assert is_outlined(page) and not painted_pixels(page, "inpaint").any()
    point_at(page, 80, 60, button="right")
    page.wait_for_function("() => document.querySelector('#img2img_segment_add').disabled === false")
    page.click("#img2img_segment_exclude")
    point_at(page, 10, 60)
    page.wait_for_selector("#img2img_segment_add:enabled")
    page.wait_for_function("() => !document.querySelector('#img2img_segment_select').hasAttribute('aria-busy')")
    points = asked[-1]["points"]
    assert [point[2] for point in points] == [1, 0, 0]
    assert np.allclose([point[:2] for point in points], [(30, 20), (80, 60), (10, 60)], atol=1)
    assert asked[0]["image"].startswith("data:image/png;base64,") and "words" not in asked[0]

    page.focus("[data-canvas=inpaint]")
    page.keyboard.press("Enter")
    mask = painted_pixels(page, "inpaint")
    wanted = Image.new("L", SIZE_PX)
    ImageDraw.Draw(wanted).ellipse(BOX, fill=255)
    assert np.array_equal(mask, np.asarray(wanted))
    assert page.is_disabled("#img2img_segment_add")

    box = page.locator(CANVAS.format("inpaint")).bounding_box()
    assert box is not None
    scale = box["width"] / SIZE_PX[0]
    page.mouse.move(box["x"] + 70 * scale, box["y"] + 50 * scale)
    page.mouse.down()
    page.mouse.move(box["x"] + 10 * scale, box["y"] + 5 * scale, steps=4)
    page.mouse.up()
    page.wait_for_selector("#img2img_segment_take:enabled")
    assert np.allclose(asked[-1]["box"], (10, 5, 70, 50), atol=1) and asked[-1]["points"] == []
    page.click("#img2img_segment_take")
    assert not painted_pixels(page, "inpaint").any(), "what is found is taken from the mask"
    page.keyboard.press("Control+z")
    page.click("#img2img_segment_select")
    assert page.is_hidden("#img2img_segment_words")


def test_a_word_is_outlined_and_one_that_names_nothing_is_said(
    page: sync_api.Page, asked: list[dict[str, Any]]
) -> None:
    page.fill("#img2img_segment_words", "zebra")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=Nothing in the image is found for 'zebra', and nothing is masked.")
    assert page.is_disabled("#img2img_segment_add") and not painted_pixels(page, "inpaint").any()
    page.fill("#img2img_segment_words", "hat")
    page.fill("#img2img_segment_grow", "3")
    page.click("#img2img_segment_find")
    page.wait_for_selector("#img2img_segment_add:enabled")
    assert (asked[-1]["words"], asked[-1]["grow"]) == ("hat", 3) and is_outlined(page)
    assert page.locator(".fw-error:visible").count() == 0
    page.click("#img2img_segment_discard")
    assert page.is_disabled("#img2img_segment_add") and not painted_pixels(page, "inpaint").any()


def test_the_canvas_with_layers_takes_what_is_selected_into_its_mask(
    page: sync_api.Page, asked: list[dict[str, Any]]
) -> None:
    page.evaluate("featherweight.tab('img2img').setImage('canvas', null)")
    page.evaluate("(uri) => featherweight.tab('img2img').setImage('canvas', uri)", as_uri(picture()))
    page.click("#img2img_canvas_segment_select")
    place = page.evaluate(
        """() => {
            const { view, doc } = featherweight.tab("img2img").layers;
            const box = view.canvas.getBoundingClientRect();
            const [x, y] = view.toScreen(doc.frame.x + 30, doc.frame.y + 20);
            return [box.left + x, box.top + y];
        }"""
    )
    page.mouse.click(*place)
    page.wait_for_selector("#img2img_canvas_segment_add:enabled")
    assert np.allclose(asked[-1]["points"], [(30, 20, 1)], atol=1)
    assert page.evaluate("featherweight.tab('img2img').layers.view.marks.length") > 2
    page.click("#img2img_canvas_segment_add")
    alphas = page.evaluate(
        """() => {
            const { doc, pictures } = featherweight.tab("img2img").layers;
            const masks = doc.layers.filter(({ kind }) => kind === "mask");
            const context = pictures.flat(masks, doc.frame, 1).getContext("2d");
            return [[40, 30], [22, 12], [70, 30]].map(([x, y]) => context.getImageData(x, y, 1, 1).data[3]);
        }"""
    )
    assert alphas == [255, 0, 0] and page.evaluate("featherweight.tab('img2img').layers.view.marks") == []
    page.click("#img2img_canvas_segment_select")
    page.evaluate("featherweight.tab('img2img').setImage('canvas', null)")
