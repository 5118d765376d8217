"""Textual inversion embeddings inside of images, as people share them: in a text chunk, or hidden in the pixels.

The hidden form survives sites that strip text chunks. From left to right: a block of pixels, a column of black, the
image, another column of black, a second block. Of a block the lower four bits of each channel count (the upper four
are decoration): in the left one they are the lower halves of bytes, in the right one the upper halves, row by row, red
first. Both are combined by xor with a fixed sequence of a linear congruential generator (multiplier 1664525, increment
1013904223 modulo 2^32, begun at 0; each state modulo 255). The bytes are a zlib stream, padded, of the same JSON that
the text chunk holds in base64.
"""

import base64
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from modules.adapters.adapter_facts import AdapterError
from modules.system.bounded import read_json

CHUNK = "sd-ti-embedding"
TENSOR = "TORCHTENSOR"  # the JSON's word for a list of numbers
MULTIPLIER, INCREMENT, MODULUS, LEVELS = 1664525, 1013904223, 1 << 32, 255
HALF = np.uint8(0x0F)
ZLIB_HEADERS = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
MAX_PIXELS = 16 << 20
MAX_JSON_BYTES = 8 << 20  # 75 vectors of two encoders, 768 and 1280 wide, are 4 MB

Bytes = NDArray[np.uint8]


def read_image(path: Path, with_pixels: bool = True) -> dict[str, Any] | None:
    """The embedding's table in the image's text chunk, or else in its pixels; None for an image that has none.

    Raises `AdapterError` for an image that cannot be read, or whose embedding is damaged, cut off or far too large.
    """
    try:
        with Image.open(path) as image:
            text = image.info.get(CHUNK)
            if text:
                return _table(path, _from_base64(path, text))
            if not with_pixels or image.width * image.height > MAX_PIXELS:
                return None
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise AdapterError(f"{path.name}: is no image that can be read ({error}).") from error
    packed = hidden_bytes(pixels)
    return None if packed is None else _table(path, _unpacked(path, packed))


def hidden_bytes(pixels: Bytes) -> bytes | None:
    """The zlib stream in an image [height, width, 3], with its padding; None where there is none."""
    low = without_margins(pixels) & HALF
    if low.size == 0:
        return None
    black = np.flatnonzero(low.max(axis=(0, 2)) == 0)
    if len(black) < 2:
        return None
    left, right = low[:, : black[0]].reshape(-1), low[:, black[-1] + 1 :].reshape(-1)
    if len(left) != len(right) or not 2 <= len(left) <= MAX_JSON_BYTES:
        return None
    if _joined(left[:2], right[:2]) not in ZLIB_HEADERS:
        return None
    return _joined(left, right)


def _joined(lower: Bytes, upper: Bytes) -> bytes:
    pattern = xor_pattern(len(lower))
    return ((upper ^ pattern) << np.uint8(4) | (lower ^ pattern)).tobytes()


def without_margins(pixels: Bytes) -> Bytes:
    """The part of an image [height, width, 3] without the rows and columns at its sides where each pixel lacks a
    channel: what programs that fit images into a frame registered them."""
    least = pixels.min(axis=2)
    rows, columns = np.flatnonzero(least.max(axis=1)), np.flatnonzero(least.max(axis=0))
    if len(rows) == 0:
        return pixels[:0, :0]
    return pixels[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def xor_pattern(count: int) -> Bytes:
    """The first `count` numbers of the sequence, their lower four bits."""
    states = np.array([INCREMENT], dtype=np.uint32)  # whose arithmetic is modulo 2^32
    multiplier, increment = MULTIPLIER, INCREMENT  # of as many steps at once as there are states
    while len(states) < count:
        states = np.concatenate((states, states * np.uint32(multiplier) + np.uint32(increment)))
        increment = (multiplier * increment + increment) % MODULUS
        multiplier = multiplier * multiplier % MODULUS
    return (states[:count] % LEVELS).astype(np.uint8) & HALF


def _unpacked(path: Path, packed: bytes) -> bytes:
    unpacking = zlib.decompressobj()
    try:
        text = unpacking.decompress(packed, MAX_JSON_BYTES)
    except zlib.error as error:
        raise AdapterError(
            f"{path.name}: the embedding in its pixels is damaged ({error}). The image was changed, or saved with loss."
        ) from error
    if not unpacking.eof:
        if len(text) >= MAX_JSON_BYTES:
            raise AdapterError(
                f"{path.name}: what is hidden in its pixels is larger than any embedding (more than "
                f"{MAX_JSON_BYTES >> 20} MB), and was not read."
            )
        raise AdapterError(f"{path.name}: the embedding in its pixels is cut off. Get the image in its full size.")
    return text


def _from_base64(path: Path, text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError as error:
        raise AdapterError(f"{path.name}: the embedding in the image is damaged.") from error


def _table(path: Path, text: bytes) -> dict[str, Any]:
    try:
        found = _with_tensors(read_json(text, constant=float))
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:  # torch raises all four
        raise AdapterError(f"{path.name}: the embedding in the image is damaged.") from error
    if not isinstance(found, dict):
        raise AdapterError(f"{path.name}: the embedding in the image is damaged.")
    return found


def _with_tensors(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_tensors(item) for item in value]
    if not isinstance(value, dict):
        return value
    return torch.tensor(value[TENSOR]) if TENSOR in value else {key: _with_tensors(each) for key, each in value.items()}
