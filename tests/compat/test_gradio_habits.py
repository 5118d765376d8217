"""Habits of Gradio 3 hold while an extension's own functions run, and at no other time."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path
from typing import Any

import pytest

gr = pytest.importorskip("gradio")

from compat.habits import gradio_habits  # noqa: E402
from modules.scripts.acting import Acting, acting  # noqa: E402
from modules.scripts.extension import Extension  # noqa: E402

THEIRS = Acting("old/old.py", owner=Extension("old", Path("old")))
OURS = Acting("ours/ours.py", owner=Extension("ours", Path("ours"), is_built_in=True))


@pytest.fixture(autouse=True)
def wrapped() -> None:
    gradio_habits.install()


def built(build: Callable[[], Any]) -> Any:
    """What `build` gives in a page of its own."""

    async def run() -> Any:
        with gr.Blocks(analytics_enabled=False) as page:
            return build(), page

    with ThreadPoolExecutor(1) as elsewhere:  # an open browser's loop may run in this thread
        return elsewhere.submit(copy_context().run, lambda: asyncio.run(run())).result()


def old_tab() -> Any:
    with (
        gr.Blocks(analytics_enabled=False, css="a", theme=None, variant="panel"),
        gr.Box(),
        gr.Row().style(equal_height=False),
    ):
        image = gr.Image(source="upload", type="pil", brush_color="#fff", shape=(8, 8)).style(height=300)
        upload = gr.UploadButton("Load", type="file")
        raw = gr.File(type="bytes", keep_filename=True)
        number = gr.Variable(3)
        names = gr.Dropdown(["a", "b"], value="a", label="Names", multiselect=False)
        button = gr.Button("Go", variant="tool").style(full_width=True)
        sketch = gr.Image(source="canvas", tool="sketch", type="pil", label="Mask")
        old = gr.inputs.Textbox(label="Old", default="as before")
        column = gr.Column(scale=0.5)
    return image, upload, raw, number, names, button, sketch, old, column


def test_arguments_and_classes_of_old_versions() -> None:
    with acting(THEIRS):
        (image, upload, raw, number, names, button, sketch, old, column), _ = built(old_tab)
    assert image.sources == ["upload"] and upload.type == "filepath" and raw.type == "binary"
    assert isinstance(number, gr.State) and names.value == "a" and column.scale == 1
    assert sketch.get_block_name() == "imageeditor" and button.value == "Go" and old.value == "as before"


def test_old_names_of_pillow_and_numpy() -> None:
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    draw, font = ImageDraw.Draw(Image.new("L", (64, 16))), ImageFont.load_default()
    uses: list[Callable[[], Any]] = [
        lambda: getattr(Image, "ANTIALIAS"),  # noqa: B009 - the name is not there for type checkers
        lambda: getattr(np, "NaN"),  # noqa: B009
        lambda: getattr(font, "getsize")("a word"),  # noqa: B009
        lambda: getattr(draw, "textsize")("a word", font=font),  # noqa: B009
    ]
    with acting(THEIRS):
        found = [use() for use in uses]
    assert found[0] is Image.Resampling.LANCZOS and np.isnan(found[1])
    assert found[2][0] > 20 and found[3][0] > 20
    for use in uses:
        with pytest.raises(AttributeError):
            use()


@pytest.mark.parametrize("author", [None, OURS])
def test_our_own_mistakes_stay_errors(author: Acting | None) -> None:
    with acting(author):
        with pytest.raises(TypeError, match="source"):
            built(lambda: gr.Image(source="upload"))
        with pytest.raises(AttributeError, match="Box"):
            _ = gr.Box
        with pytest.raises(AttributeError, match="update"):
            _ = gr.Dropdown.update
        with pytest.raises(AttributeError, match="style"):
            built(lambda: gr.Button("a").style())
        with pytest.raises(TypeError, match="_js"):
            built(lambda: gr.Button("a").click(None, _js="() => 1"))
        assert not hasattr(gr.Dropdown, "update")


def test_events_with_scripts_and_updates() -> None:
    def refresh(name: str) -> Any:
        return gr.Dropdown.update(choices=["c"], value="c", label=None)

    def each(name: str) -> Iterator[Any]:
        yield gr.update(value=name)
        yield gr.Textbox.update("done", visible=True)

    def build() -> Any:
        names = gr.Dropdown(["a"], value="a")
        text = gr.Textbox()
        button = gr.Button("Go")
        button.click(fn=refresh, _js="myFunction", inputs=[names], outputs=[names], show_progress=False)
        button.click(refresh, [names], [names], every=None).then(each, names, text, _js="(a) => a")
        return None

    with acting(THEIRS):
        _, page = built(build)
    first, second, third = (page.fns[number] for number in sorted(page.fns))
    assert first.js == "(...args) => (myFunction)(...args)" and third.js == "(a) => a"
    assert first.fn("a") == {"choices": ["c"], "value": "c", "__type__": "update"}
    assert second.fn("a")["choices"] == ["c"]
    assert [one["value"] for one in third.fn("x")] == ["x", "done"]
    assert first.name == "refresh"


def test_components_of_their_own_classes_keep_their_arguments() -> None:
    def build() -> Any:
        from compat.facades.ui_components import DropdownMulti, ToolButton

        class Ratio(ToolButton):
            def __init__(self, ratio: float = 1.0, **keywords: Any) -> None:
                super().__init__(**keywords)
                self.ratio = ratio

        return [Ratio(ratio=1.5, value="3:2"), ToolButton("x"), DropdownMulti(choices=["a"], label="Several")]

    with acting(THEIRS):
        (ratio, tool, several), _ = built(build)
    assert ratio.get_config()["value"] == "3:2" and tool.get_config()["value"] == "x"
    assert several.get_config()["label"] == "Several" and several.get_config()["multiselect"]


def test_what_is_not_visible_stays_on_the_page() -> None:
    def build() -> Any:
        return gr.Textbox(visible=False), gr.Row(visible=False, elem_classes="mine")

    with acting(THEIRS):
        (text, row), _ = built(build)
    (our_text, our_row), _ = built(build)
    assert (text.visible, our_text.visible, our_row.visible) == ("hidden", False, False)
    assert row.visible is True and row.elem_classes == ["mine", "fw-away"]

    def look() -> Any:
        return [gr.update(visible=True), gr.update(visible=False, value="x"), "unchanged"]

    def pages() -> Any:
        yield gr.update(visible=True)
        yield gr.update(visible=False)

    shown, kept, other = gradio_habits.fitting(look, [row, text, text])()
    assert shown["visible"] is True and shown["elem_classes"] == ["mine"]
    assert kept["visible"] == "hidden" and kept["value"] == "x" and other == "unchanged"
    assert [one["elem_classes"] for one in gradio_habits.fitting(pages, row)()] == [["mine"], ["mine", "fw-away"]]


def test_the_sketch_gives_image_and_mask() -> None:
    from PIL import Image

    with acting(THEIRS):
        (*_, sketch, _, _), _ = built(old_tab)
    layer = Image.new("RGBA", (4, 4))
    layer.putpixel((1, 1), (255, 0, 0, 255))
    value = {"background": Image.new("RGB", (4, 4)), "layers": [layer], "composite": None}

    def preprocess(self: Any, payload: Any) -> Any:
        return value

    before = gr.ImageEditor.preprocess
    gr.ImageEditor.preprocess = preprocess
    try:
        found = sketch.preprocess("something")
    finally:
        gr.ImageEditor.preprocess = before
    assert found["mask"].getpixel((1, 1))[0] == 255 and found["mask"].getpixel((0, 0))[0] == 0


def test_values_that_components_had() -> None:
    def build() -> Any:
        return gr.Dropdown(["a", "b"], value="a"), gr.Textbox(), gr.Textbox("x"), gr.ImageMask(type="pil")

    with acting(THEIRS):
        (names, empty, text, mask), _ = built(build)
        assert "b" in names.choices and "c" not in names.choices
        assert names.update(value="b", visible=True)["value"] == "b"
    assert (empty.value, text.value) == ("", "x")
    given = mask.preprocess(None)
    assert given is None and mask.get_block_name() == "imageeditor"
    (own, blank), _ = built(lambda: (gr.Dropdown(["a"]), gr.Textbox()))
    assert "a" not in own.choices and blank.value is None
