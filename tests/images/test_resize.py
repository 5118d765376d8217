"""The resize modes."""

from PIL import Image

from modules.images.resize import ResizeMode, resize_image
from tests.cases import for_each


def thirds(width: int, height: int) -> Image.Image:
    """Red, green and blue stripes, across or down the longer side."""
    image = Image.new("RGB", (width, height), "green")
    if width > height:
        image.paste("red", (0, 0, width // 3, height))
        image.paste("blue", (width - width // 3, 0, width, height))
    else:
        image.paste("red", (0, 0, width, height // 3))
        image.paste("blue", (0, height - height // 3, width, height))
    return image


@for_each("mode", list(ResizeMode))
@for_each("source", [(100, 72), (72, 100), (64, 64), (1, 500), (500, 1)])
@for_each("target", [(64, 64), (128, 64), (40, 104)])
def test_the_size_is_the_asked_one(mode: ResizeMode, source: tuple[int, int], target: tuple[int, int]) -> None:
    assert resize_image(Image.new("RGB", source), *target, mode).size == target


def test_just_resize_stretches() -> None:
    image = resize_image(thirds(90, 30), 30, 30, ResizeMode.JUST_RESIZE)
    assert image.getpixel((1, 15)) == (255, 0, 0)
    assert image.getpixel((28, 15)) == (0, 0, 255)


def test_crop_keeps_the_middle() -> None:
    for size in ((90, 30), (30, 90)):
        image = resize_image(thirds(*size), 30, 30, ResizeMode.CROP_AND_RESIZE)
        assert image.getcolors() == [(900, (0, 128, 0))]


def test_fill_continues_the_edges() -> None:
    wide = resize_image(thirds(30, 90), 90, 90, ResizeMode.RESIZE_AND_FILL)
    assert wide.getpixel((0, 5)) == wide.getpixel((45, 5)) == (255, 0, 0)
    assert wide.getpixel((89, 85)) == (0, 0, 255)
    tall = resize_image(thirds(90, 30), 90, 91, ResizeMode.RESIZE_AND_FILL)
    assert tall.getpixel((5, 0)) == (255, 0, 0)
    assert tall.getpixel((85, 90)) == (0, 0, 255)


def test_the_scaler_can_be_chosen() -> None:
    seen: list[tuple[int, int]] = []

    def scale(image: Image.Image, width: int, height: int) -> Image.Image:
        seen.append((width, height))
        return image.resize((width, height))

    resize_image(Image.new("RGB", (100, 72)), 64, 64, ResizeMode.CROP_AND_RESIZE, scale)
    resize_image(Image.new("RGB", (100, 72)), 64, 64, ResizeMode.RESIZE_AND_FILL, scale)
    assert seen == [(88, 64), (64, 46)]
