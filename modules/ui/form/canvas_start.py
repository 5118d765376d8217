"""Start of a job of the canvas: the flattened layers inside of its frame, and the masks over them. No Gradio.

Where the frame holds nothing, the image is transparent, and that part is always made again. Around an image that fills
a rectangle this is outpainting as the form's own fields do it; holes of any other shape are filled with the colors
around them and become a part of the mask. An empty frame starts from noise.
"""

from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageChops

from modules.images.masks import fill_masked
from modules.images.outpaint import Margins
from modules.processing.request.source_images import (
    MAX_OUTPAINT_PX,
    OUTPAINT_STEP_PX,
    FromImage,
    FromNoise,
    Mask,
    RequestStart,
    SourceImage,
)
from modules.ui.form.form import start_values

OPAQUE = 128
"""Alpha from which on a pixel counts as there."""


def canvas_start(
    form: Mapping[str, Any], image: Image.Image, mask: Image.Image | None
) -> tuple[RequestStart, tuple[int, int]]:
    """The start for what the frame shows [any mode, transparent where nothing is] with its masks ("L" of the same
    size, 255 is made again), and the width and height of what is kept of it, in pixels."""
    there = image.convert("RGBA").getchannel("A").point(lambda alpha: 255 if alpha >= OPAQUE else 0)
    box = there.getbbox()
    if box is None:
        return FromNoise(), image.size
    values, mask_values = start_values(form)
    values |= {f"outpaint_{side}": 0 for side in Margins._fields}  # the frame says it
    if there.getextrema() == (255, 255):
        return _from(image.convert("RGB"), mask, values, mask_values), image.size
    is_changed = mask is not None and mask.crop(box).getbbox() is not None
    margins = Margins(box[0], image.width - box[2], box[1], image.height - box[3])
    kept_px = (box[2] - box[0], box[3] - box[1])
    is_rectangle = there.crop(box).getextrema() == (255, 255)
    is_on_steps = all(px % OUTPAINT_STEP_PX == 0 for px in (*margins, *kept_px)) and max(margins) <= MAX_OUTPAINT_PX
    if is_rectangle and is_on_steps and form.get("sizing") != "by" and not (is_changed and mask_values["invert"]):
        values |= {f"outpaint_{side}": px for side, px in zip(Margins._fields, margins, strict=True)}
        inside = mask.crop(box) if mask is not None and is_changed else None
        whole = {**mask_values, "full_resolution": False}
        return _from(image.convert("RGB").crop(box), inside, values, whole), kept_px
    holes = ImageChops.invert(there)
    again = mask if mask is not None and is_changed else Image.new("L", image.size)
    if mask_values["invert"] and is_changed:
        again = ImageChops.invert(again)
    filled = fill_masked(image.convert("RGB"), holes)
    return _from(filled, ImageChops.lighter(again, holes), values, {**mask_values, "invert": False}), image.size


def canvas_sized(form: Mapping[str, Any], start: RequestStart, kept_px: tuple[int, int]) -> dict[str, Any]:
    """The form with the size of a job of the canvas: that of the frame, so that the result fits into it. With "Only
    masked" and with a factor ("Resize by") the form's own size holds."""
    is_part = isinstance(start, FromImage) and start.mask is not None and start.mask.full_resolution
    if is_part or form.get("sizing") == "by":
        return dict(form)
    return {**form, "width": kept_px[0], "height": kept_px[1]}


def _from(
    image: Image.Image, mask: Image.Image | None, values: Mapping[str, Any], mask_values: Mapping[str, Any]
) -> FromImage:
    asked = None
    if mask is not None and (mask.getbbox() is not None or mask_values["invert"]):
        asked = Mask(image=SourceImage.of(mask), **mask_values)
    return FromImage(images=(SourceImage.of(image),), mask=asked, **values)
