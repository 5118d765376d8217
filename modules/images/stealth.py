"""Infotext in the pixels themselves ("stealth PNG info"): the lowest bits of alpha, or of red, green and blue, column
by column. It outlives services that drop the texts of files.

The bits are a signature, the length of the data in bits (four bytes, the most significant first), and the data: UTF-8,
or that packed with gzip.
"""

import gzip
import zlib

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.images.infotext import MAX_TEXT_CHARS

SIGNATURES = {
    "alpha": (b"stealth_pnginfo", b"stealth_pngcomp"),
    "rgb": (b"stealth_rgbinfo", b"stealth_rgbcomp"),
}
"""Signatures of plain and of packed data, by where the bits are."""
HEAD_BYTES = len(SIGNATURES["alpha"][0]) + 4


def hidden_text(image: Image.Image) -> str | None:
    """Return the text in an image's pixels; None where there is none, or what remains of it cannot be read."""
    for place, (plain, packed) in SIGNATURES.items():
        if (place == "alpha" and image.mode != "RGBA") or image.mode not in ("RGB", "RGBA"):
            continue
        head = _bytes_in(image, place, HEAD_BYTES)
        if not head.startswith((plain, packed)):
            continue
        size = int.from_bytes(head[len(plain) : HEAD_BYTES]) // 8
        data = _bytes_in(image, place, HEAD_BYTES + size)[HEAD_BYTES:]
        try:
            unpacker = zlib.decompressobj(wbits=31)
            data = unpacker.decompress(data, 4 * MAX_TEXT_CHARS) if head.startswith(packed) else data
            return data.decode("utf-8") if len(data) and size else None
        except (zlib.error, UnicodeDecodeError):
            return None  # the pixels were changed
    return None


def with_hidden_text(image: Image.Image, text: str, place: str) -> Image.Image:
    """Return an image with a text in the lowest bits of "alpha" or "rgb"; the same image where it is too small for the
    text."""
    data = gzip.compress(text.encode("utf-8"), mtime=0)
    written = SIGNATURES[place][1] + (8 * len(data)).to_bytes(4) + data
    pixels = np.array(image.convert("RGBA" if place == "alpha" or "A" in image.getbands() else "RGB"))
    bits = np.unpackbits(np.frombuffer(written, dtype=np.uint8))
    values = _values(pixels, place).reshape(-1)
    if len(bits) > len(values):
        return image
    values[: len(bits)] = (values[: len(bits)] & 0xFE) | bits
    columns = values.reshape(pixels.shape[1], pixels.shape[0], -1).transpose(1, 0, 2)
    channels = slice(3, 4) if place == "alpha" else slice(0, 3)
    pixels[:, :, channels] = columns
    hidden = Image.fromarray(pixels)
    hidden.info = dict(image.info)
    return hidden


def _values(pixels: NDArray[np.uint8], place: str) -> NDArray[np.uint8]:
    """The bytes of pixels [height, width, channels] that hold bits, column by column."""
    channels = pixels[:, :, 3:4] if place == "alpha" else pixels[:, :, :3]
    return np.ascontiguousarray(channels.transpose(1, 0, 2))


def _bytes_in(image: Image.Image, place: str, count: int) -> bytes:
    """The first bytes in the bits of an image; only the columns that hold them are looked at."""
    per_column = image.height * (1 if place == "alpha" else 3)
    columns = min(image.width, -(-8 * count // per_column))
    pixels = np.asarray(image.crop((0, 0, columns, image.height)))
    return np.packbits(_values(pixels, place).reshape(-1)[: 8 * count] & 1).tobytes()
