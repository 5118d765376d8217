"""What a job of the canvas starts from, by what its frame shows: an image, one with room around it, holes, nothing."""

import numpy as np
from PIL import Image, ImageDraw

from modules.processing.request.source_images import FromImage, FromNoise
from modules.ui.form.canvas_start import canvas_sized, canvas_start
from tests.ui.test_start_form import FORM

WHOLE = {**FORM, "mask_full_resolution": 0}
RED = (255, 0, 0, 255)


def frame(*boxes: tuple[int, int, int, int]) -> Image.Image:
    """128x96 with red boxes (left, top, right, bottom) and nothing elsewhere."""
    made = Image.new("RGBA", (128, 96))
    for box in boxes:
        made.paste(RED, box)
    return made


def painted(box: tuple[int, int, int, int]) -> Image.Image:
    mask = Image.new("L", (128, 96))
    ImageDraw.Draw(mask).rectangle((box[0], box[1], box[2] - 1, box[3] - 1), fill=255)
    return mask


def started(image: Image.Image, mask: Image.Image | None = None, **form: object) -> tuple[FromImage, tuple[int, int]]:
    start, kept_px = canvas_start({**WHOLE, **form}, image, mask)
    assert isinstance(start, FromImage)
    return start, kept_px


def test_an_empty_frame_starts_from_noise_in_its_size() -> None:
    start, kept_px = canvas_start(WHOLE, frame(), painted((0, 0, 64, 64)))
    assert isinstance(start, FromNoise)
    sized = canvas_sized({**WHOLE, "width": 512}, start, kept_px)
    assert (sized["width"], sized["height"]) == (128, 96)


def test_a_full_frame_is_img2img_or_inpainting() -> None:
    start, kept_px = started(frame((0, 0, 128, 96)), outpaint_left=64)
    assert start.mask is None and not start.grows and kept_px == (128, 96)
    start, _ = started(frame((0, 0, 128, 96)), painted((8, 8, 40, 40)))
    assert start.mask is not None and start.mask.image.image.getbbox() == (8, 8, 40, 40)


def test_room_around_an_image_is_outpainting_and_its_mask_stays() -> None:
    start, kept_px = started(frame((32, 0, 128, 64)), painted((40, 8, 56, 24)), mask_full_resolution=1)
    assert start.margins == (32, 0, 0, 32) and start.images[0].image.size == kept_px == (96, 64)
    assert start.mask is not None and not start.mask.full_resolution
    assert start.mask.image.image.getbbox() == (8, 8, 24, 24)
    assert started(frame((32, 0, 128, 64)), painted((0, 70, 32, 96)))[0].mask is None, "only what is outside is masked"


def test_holes_of_other_shapes_are_filled_and_join_the_mask() -> None:
    holed = frame((0, 0, 128, 40), (0, 40, 64, 96))
    start, kept_px = started(holed, painted((0, 0, 8, 8)))
    assert not start.grows and start.mask is not None and kept_px == (128, 96)
    mask = np.asarray(start.mask.image.image)
    assert mask[2, 2] == 255 and mask[90, 120] == 255 and mask[60, 32] == 0
    assert start.images[0].image.getpixel((120, 90))[0] > 200, "the color around the hole"  # type: ignore[index]
    off_steps, _ = started(frame((30, 0, 128, 96)))
    assert not off_steps.grows and off_steps.mask is not None and off_steps.mask.image.image.getbbox() == (0, 0, 30, 96)


def test_a_mask_that_is_turned_around_leaves_the_holes_to_be_made() -> None:
    start, _ = started(frame((32, 0, 128, 96)), painted((40, 8, 56, 24)), mask_invert=1)
    assert start.mask is not None and not start.mask.invert
    mask = np.asarray(start.mask.image.image)
    assert (mask[10, 45], mask[80, 100], mask[10, 10]) == (0, 255, 255)


def test_the_size_is_that_of_the_form_where_only_a_part_is_made_or_a_factor_says_it() -> None:
    only = {**FORM, "width": 256, "height": 256}
    start, kept_px = canvas_start(only, frame((0, 0, 128, 96)), painted((8, 8, 40, 40)))
    assert canvas_sized(only, start, kept_px)["width"] == 256
    assert canvas_sized({**WHOLE, "sizing": "by", "width": 64}, start, kept_px)["width"] == 64
