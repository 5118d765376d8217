"""Bringing an image to a size: stretched, cropped, or filled up at its edges."""

from collections.abc import Callable
from enum import IntEnum

from PIL import Image

Scaler = Callable[[Image.Image, int, int], Image.Image]
"""Scales an image to a width and height in pixels."""


class ResizeMode(IntEnum):
    """The modes of img2img, with the numbers of the API field `resize_mode`."""

    JUST_RESIZE = 0
    CROP_AND_RESIZE = 1
    RESIZE_AND_FILL = 2
    LATENT_UPSCALE = 3  # the image is left; its latent is scaled


def scale_lanczos(image: Image.Image, width: int, height: int) -> Image.Image:
    """The default scaler."""
    return image.resize((width, height), Image.Resampling.LANCZOS)


def resize_image(
    image: Image.Image, width: int, height: int, mode: ResizeMode, scale: Scaler = scale_lanczos
) -> Image.Image:
    """The image in exactly `width` x `height` pixels."""
    match mode:
        case ResizeMode.CROP_AND_RESIZE:
            return _crop_and_resize(image, width, height, scale)
        case ResizeMode.RESIZE_AND_FILL:
            return _resize_and_fill(image, width, height, scale)
        case _:
            return scale(image, width, height)


def _crop_and_resize(image: Image.Image, width: int, height: int, scale: Scaler) -> Image.Image:
    """Scaled to cover the target; what stands over is cut off on both sides."""
    wider = width * image.height > image.width * height
    scaled_width = width if wider else image.width * height // image.height
    scaled_height = image.height * width // image.width if wider else height
    canvas = Image.new("RGB", (width, height))
    scaled = scale(image, scaled_width, scaled_height)
    canvas.paste(scaled, (width // 2 - scaled_width // 2, height // 2 - scaled_height // 2))
    return canvas


def _resize_and_fill(image: Image.Image, width: int, height: int, scale: Scaler) -> Image.Image:
    """Scaled to fit into the target; the bars that stay free are filled with the colors of the nearest edge."""
    narrower = width * image.height < image.width * height
    scaled_width = width if narrower else image.width * height // image.height
    scaled_height = image.height * width // image.width if narrower else height
    scaled_width, scaled_height = max(1, scaled_width), max(1, scaled_height)
    left, top = width // 2 - scaled_width // 2, height // 2 - scaled_height // 2
    canvas = Image.new("RGB", (width, height))
    scaled = scale(image, scaled_width, scaled_height)
    if narrower:
        _fill(canvas, scaled, (0, 0, width, top), (0, 0, scaled_width, 0))
        _fill(canvas, scaled, (0, top + scaled_height, width, height), (0, scaled_height, scaled_width, scaled_height))
    else:
        _fill(canvas, scaled, (0, 0, left, height), (0, 0, 0, scaled_height))
        _fill(canvas, scaled, (left + scaled_width, 0, width, height), (scaled_width, 0, scaled_width, scaled_height))
    canvas.paste(scaled, (left, top))
    return canvas


def _fill(
    canvas: Image.Image, scaled: Image.Image, bar: tuple[int, int, int, int], edge: tuple[int, int, int, int]
) -> None:
    """Fill the box `bar` with the edge of the image, given as a box without width or without height.

    Such a box lets Pillow's bicubic filter work out the colors at the edge line itself, and so the pixels of the
    reference UI come out; taking the outermost row of pixels would not give them.
    """
    width, height = bar[2] - bar[0], bar[3] - bar[1]
    if width > 0 and height > 0:
        canvas.paste(scaled.resize((width, height), Image.Resampling.BICUBIC, box=edge), bar[:2])
