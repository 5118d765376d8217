"""Images from untrusted bytes: opened with limits, and with an error a user can act on."""

import struct
import zlib
from io import BytesIO
from pathlib import Path

from PIL import Image, ImageOps, UnidentifiedImageError

from modules.errors import InvalidValueError

MAX_PIXELS = 178_956_970
"""Where Pillow itself refuses (two times its warning limit): an image of a few kB can ask for terabytes."""

ORIENTATION = 0x0112
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""By the number of the EXIF orientation; 1 is upright."""

_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error, zlib.error)
"""What Pillow's decoders raise on damaged files."""


def open_image(
    source: bytes | Path, what: str = "The image", max_pixels: int = MAX_PIXELS, enough_px: int | None = None
) -> Image.Image:
    """Open and decode an image as it is stored, grey ones of 16 bits in 8, with its `info`. With `enough_px` a JPEG may
    be decoded smaller, which is quicker, as long as its shorter side has so many pixels.

    Raises InvalidValueError, beginning with `what`, for bytes that are no image, damaged, or larger than
    `max_pixels`; a missing file is one too.
    """
    data = source if isinstance(source, bytes) else _read(source, what)
    if not data:
        raise InvalidValueError(f"{what} is empty: 0 bytes.")
    try:
        image = Image.open(BytesIO(data))
        if image.width * image.height > max_pixels:
            raise _too_large(what, f"{image.width}x{image.height}", max_pixels)
        if enough_px is not None:
            image.draft(None, (enough_px, enough_px))
        image.load()
    except UnidentifiedImageError as error:
        raise InvalidValueError(
            f"{what} is no image file that can be read ({len(data)} bytes, beginning with {data[:8]!r}). "
            "Give a PNG, JPEG, WebP, AVIF or GIF file."
        ) from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_large(what, "far too many pixels", max_pixels) from error
    except _DAMAGED as error:
        raise InvalidValueError(f"{what} is damaged or cut off: {error}. Give the whole file.") from error
    return in_8_bits(image)


def read_image(
    source: bytes | Path, what: str = "The image", max_pixels: int = MAX_PIXELS, enough_px: int | None = None
) -> Image.Image:
    """`open_image`, turned upright as its EXIF orientation says, and palettes with transparency made RGBA."""
    image = open_image(source, what, max_pixels, enough_px)
    try:
        upright = ImageOps.exif_transpose(image)
    except _DAMAGED:
        upright = image  # an EXIF block that cannot be read turns nothing
    if upright.mode == "P" and "transparency" in upright.info:
        info = {name: value for name, value in upright.info.items() if name != "transparency"}
        upright = upright.convert("RGBA")
        upright.info = info
    return upright


def turn_of(image: Image.Image) -> Image.Transpose | None:
    """How an image is to be turned, as its EXIF orientation says."""
    try:
        return TURNS.get(int(image.getexif().get(ORIENTATION, 1)))
    except _DAMAGED:
        return None  # an EXIF block that cannot be read turns nothing


def _read(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        named = what if what.endswith(str(path)) else f"{what} {path}"
        raise InvalidValueError(f"{named} cannot be read: {error.strerror}.") from error


def _too_large(what: str, size: str, max_pixels: int) -> InvalidValueError:
    return InvalidValueError(
        f"{what} is too large: {size}; allowed are {max_pixels / 1e6:.0f} megapixels. Make it smaller first."
    )


def in_8_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 or 32 bits in 8 bits, others unchanged. Pillow's own conversion cuts off at 255. Whole numbers
    count as 16 bits, as in PNG files of depth."""
    return image.convert("I").point(lambda value: value / 256).convert("L") if image.mode.startswith("I") else image
