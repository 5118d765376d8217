"""A larger canvas around an image: kept pixels, content that continues the border, no seam."""

import numpy as np
import pytest
from PIL import Image

from modules.images.outpaint import Margins, distance_px, grown, joined, on_canvas, painted_mask

SIZE = (64, 48)
MARGINS = Margins(left=16, right=32, up=0, down=24)


def ramp() -> Image.Image:
    """A smooth image."""
    across, down = np.meshgrid(np.linspace(40, 200, SIZE[0]), np.linspace(0, 40, SIZE[1]))
    return Image.fromarray(np.stack([across, across + down, 255 - across], axis=-1).astype(np.uint8))


def kept_part(image: Image.Image) -> np.ndarray:
    return np.asarray(image.crop(MARGINS.kept(image.size)))


def test_sizes_and_places() -> None:
    assert MARGINS.size_of(SIZE) == (112, 72) and MARGINS.kept((112, 72)) == (16, 0, 80, 48)
    distance = distance_px((112, 72), MARGINS)
    assert distance[10, 40] == 0 and distance[10, 80] == 1 and distance[10, 0] == 16 and distance[71, 40] == 24


def test_content_begins_as_the_border_and_keeps_the_image() -> None:
    image = ramp()
    canvas = grown(image, MARGINS, seed=1)
    assert canvas.size == (112, 72) and (kept_part(canvas) == np.asarray(image)).all()
    pixels = np.asarray(canvas, dtype=int)
    assert abs(pixels[10, 80] - pixels[10, 79]).max() <= 6 and abs(pixels[10, 15] - pixels[10, 16]).max() <= 6
    assert canvas.tobytes() == grown(image, MARGINS, seed=1).tobytes() != grown(image, MARGINS, seed=2).tobytes()


def test_an_image_narrower_than_its_margin_is_mirrored_more_than_once() -> None:
    assert grown(Image.new("RGB", (8, 8), "red"), Margins(right=64), seed=1).size == (72, 8)


def test_the_mask_paints_what_was_added_and_what_the_user_paints() -> None:
    mask = np.asarray(painted_mask((112, 72), MARGINS, Image.new("L", SIZE, 40)))
    assert (mask[:48, 16:80] == 40).all() and (mask[:, :16] == 255).all() and (mask[48:] == 255).all()


@pytest.mark.parametrize("shift", [0, 25])
def test_joining_keeps_pixels_and_leaves_no_seam(shift: int) -> None:
    image = ramp()
    made = Image.fromarray((np.asarray(grown(image, MARGINS, seed=1), dtype=int) + shift).clip(0, 255).astype(np.uint8))
    overlay = on_canvas(image.convert("RGBA"), MARGINS)
    whole = joined(made, overlay, MARGINS)
    assert (kept_part(whole) == np.asarray(image)).all()
    pixels = np.asarray(whole, dtype=int)
    inside = max(abs(np.diff(pixels[:48, 16:80], axis=axis)).mean() for axis in (0, 1))
    seams = [abs(pixels[:48, 80] - pixels[:48, 79]), abs(pixels[:48, 15] - pixels[:48, 16])]
    seams.append(abs(pixels[48, 16:80] - pixels[47, 16:80]))
    assert max(seam.mean() for seam in seams) <= inside + 1


def test_painted_parts_of_the_kept_image_come_from_the_result() -> None:
    overlay = Image.new("RGBA", SIZE, (255, 0, 0, 255))
    overlay.paste((0, 0, 0, 0), (0, 0, 32, 48))
    whole = np.asarray(joined(Image.new("RGB", (112, 72), "blue"), on_canvas(overlay, MARGINS), MARGINS))
    assert (whole[20, 20] == (0, 0, 255)).all() and (whole[20, 70] == (255, 0, 0)).all()
