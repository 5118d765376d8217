"""Images to base64 and back."""

import base64
import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Literal

import pytest
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.encode import (
    Quality,
    decode_base64,
    decode_image,
    encode_image,
    format_of,
    holds,
    to_base64,
    to_data_uri,
)
from modules.images.metadata import read_metadata
from modules.images.reading import read_image
from modules.settings.values import Settings

REFERENCE = Path(__file__).parents[1] / "reference"


def noisy() -> Image.Image:
    return Image.effect_noise((64, 64), 100).convert("RGB")


def test_png_comes_back_bit_for_bit_with_its_infotext() -> None:
    image = noisy()
    back = decode_image(to_base64(image, "png", "p\nSteps: 1"))
    assert back.tobytes() == image.tobytes()
    assert read_metadata(back)[0] == "p\nSteps: 1"


def test_a_data_uri_comes_back() -> None:
    uri = to_data_uri(noisy(), "webp")
    assert uri.startswith("data:image/webp;base64,")
    assert decode_image(uri).size == (64, 64)


@pytest.mark.parametrize(
    "dress", [str, lambda t: f"data:image/png;base64,{t}", lambda t: t.rstrip("="), lambda t: f" {t}\n"]
)
def test_base64_in_all_dresses_is_read(dress: type[str]) -> None:
    data = encode_image(noisy())
    assert decode_base64(dress(base64.b64encode(data).decode())) == data


@pytest.mark.parametrize("text", ["not base64!", "data:image/png,abc", "äöü", "http://example.com/a.png", "a"])
def test_text_that_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(InvalidValueError, match="mask is no base64 text"):
        decode_image(text, "mask")


def test_base64_of_something_else_is_refused() -> None:
    with pytest.raises(InvalidValueError, match="mask is no image file"):
        decode_image(base64.b64encode(b"hello").decode(), "mask")
    with pytest.raises(InvalidValueError, match="mask is empty"):
        decode_image("", "mask")


def png_of_size(width: int, height: int) -> bytes:
    """A valid PNG header that promises an image of this size, and a little data."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [100_000, 12_000, 2_000_000_000])
def test_a_decompression_bomb_is_refused(side: int) -> None:
    with pytest.raises(InvalidValueError, match=r"too large|damaged"):
        read_image(png_of_size(side, side))


def test_the_size_limit_is_the_callers() -> None:
    with pytest.raises(InvalidValueError, match=r"init image is too large: 64x64; allowed are 0 megapixels"):
        decode_image(to_base64(noisy()), "init image", max_pixels=1000)


def test_a_cut_off_image_is_refused() -> None:
    data = encode_image(noisy())
    with pytest.raises(InvalidValueError, match="damaged or cut off"):
        read_image(data[: len(data) // 2])


def test_the_exif_orientation_is_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = BytesIO()
    Image.new("RGB", (20, 10)).save(stream, "JPEG", exif=exif)
    assert read_image(stream.getvalue()).size == (10, 20)


def test_a_palette_with_transparency_becomes_rgba() -> None:
    image = Image.new("P", (4, 4))
    stream = BytesIO()
    image.save(stream, "PNG", transparency=0)
    assert read_image(stream.getvalue()).mode == "RGBA"


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "I;16", "I", "F", "CMYK"])
@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "avif", "gif"])
def test_every_mode_can_be_written_in_every_format(mode: str, extension: str) -> None:
    assert read_image(encode_image(Image.new(mode, (8, 8)), extension)).size == (8, 8)


def test_sixteen_bits_are_scaled_not_cut() -> None:
    image = Image.new("I;16", (8, 8), 0x8000)
    assert read_image(encode_image(image, "jpg")).getpixel((0, 0)) == (128, 128, 128)


@pytest.mark.parametrize(("mode", "name"), [("I;16", "PNG"), ("I;16", "TIFF"), ("I;16B", "TIFF"), ("I", "TIFF")])
def test_grey_images_of_16_bits_are_read_in_8(mode: str, name: str) -> None:
    values = (0, 0x00FF, 0x0100, 0x8000, 0xFFFF)
    order: Literal["big", "little"] = "big" if mode.endswith("B") else "little"
    data = b"".join(value.to_bytes(4 if mode == "I" else 2, order) for value in values)
    file = BytesIO()
    Image.frombytes(mode, (5, 1), data).save(file, name)
    found = read_image(file.getvalue())
    assert (found.mode, list(found.tobytes())) == ("L", [value >> 8 for value in values])


def test_transparency_is_put_on_white_where_there_is_none() -> None:
    image = read_image(encode_image(Image.new("RGBA", (8, 8), (0, 0, 0, 0)), "jpg"))
    assert image.getpixel((4, 4)) == (255, 255, 255)


def test_quality_counts() -> None:
    image = noisy()
    for extension in ("jpg", "webp", "avif"):
        small = encode_image(image, extension, quality=Quality(quality=10))
        assert len(small) < len(encode_image(image, extension, quality=Quality(quality=95)))
    lossless = encode_image(image, "webp", quality=Quality.of(Settings().changed(webp_lossless=True)))
    assert read_image(lossless).convert("RGB").tobytes() == image.tobytes()


def test_what_a_format_cannot_hold_is_refused_or_sent_as_png(caplog: pytest.LogCaptureFixture) -> None:
    assert not holds("webp", (16_384, 1), None)
    assert holds("webp", (16_383, 1), None)
    assert not holds("jpg", (65_536, 1), None)
    assert not holds("jpg", (8, 8), "x" * 40_000)
    with pytest.raises(InvalidValueError, match=r"16384x1 .* WEBP; choose png"):
        encode_image(Image.new("RGB", (16_384, 1)), "webp")
    data = decode_base64(to_base64(Image.new("RGB", (16_384, 1)), "webp", "text"))
    assert data.startswith(b"\x89PNG")
    assert "sent as PNG" in caplog.text


def test_an_unknown_format_is_refused() -> None:
    assert format_of(".JPG") == "JPEG"
    with pytest.raises(InvalidValueError, match=r"'bmp'; known are png"):
        encode_image(noisy(), "bmp")
