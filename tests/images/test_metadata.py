"""Infotext inside files of all formats."""

import json
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.encode import encode_image
from modules.images.metadata import decode_user_comment, encode_user_comment, exif_bytes, fits_jpeg, read_metadata

REFERENCE = Path(__file__).parents[1] / "reference"
CASES: list[dict[str, Any]] = json.loads((REFERENCE / "cases.json").read_text(encoding="utf-8"))["cases"]
PNG_INFO_CASES = [
    case
    for case in CASES
    if case["endpoint"].endswith("png-info") and (REFERENCE / case["payload"]["image"]["$file"]).exists()
]
INFOTEXT = 'a cat, ünïcödé 猫 🐈 עברית\nsecond line\nNegative prompt: bad\nSteps: 1, Seed: 2, Lora hashes: "a: 1, b: 2"'


def image(mode: str = "RGB") -> Image.Image:
    return Image.new(mode, (16, 8))


@pytest.mark.parametrize("case", PNG_INFO_CASES, ids=lambda case: case["id"])
def test_reads_as_recorded(case: dict[str, Any]) -> None:
    infotext, items = read_metadata(REFERENCE / case["payload"]["image"]["$file"])
    assert infotext == (case["reply"]["info"] or None)
    assert items == case["reply"]["items"]


def test_there_are_recorded_images() -> None:
    assert len(PNG_INFO_CASES) >= 3


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "avif", "gif"])
def test_infotext_survives_in_every_format(extension: str) -> None:
    infotext, items = read_metadata(encode_image(image(), extension, INFOTEXT))
    assert infotext == INFOTEXT
    assert set(items) <= {"exif comment", "comment"}


@pytest.mark.parametrize("extension", ["png", "jpg", "webp", "avif", "gif"])
def test_an_image_without_infotext_has_none(extension: str) -> None:
    assert read_metadata(encode_image(image(), extension)) == (None, {})


def test_other_chunks_of_a_png_are_kept() -> None:
    data = encode_image(image(), "png", INFOTEXT, items={"extras": "Upscale: 2", "parameters": "old"})
    assert read_metadata(data) == (INFOTEXT, {"extras": "Upscale: 2"})


def test_null_characters_and_lone_surrogates_do_no_harm() -> None:
    for extension in ("png", "jpg", "webp", "avif"):
        assert read_metadata(encode_image(image(), extension, "a\0b\ud800c"))[0] == "ab?c"


def test_a_path_and_an_open_image_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode_image(image(), "png", INFOTEXT))
    assert read_metadata(path)[0] == INFOTEXT
    with Image.open(path) as source:
        assert read_metadata(source)[0] == INFOTEXT


def test_the_source_exif_does_not_travel_along() -> None:
    with Image.open(BytesIO(encode_image(image(), "jpg", "old"))) as source:
        source.load()
        assert read_metadata(encode_image(source, "jpg"))[0] is None


@pytest.mark.parametrize("content", [b"no source", b"\x89PNG\r\n\x1a\n", b"", b"GIF89a", b"RIFF\0\0\0\0WEBP"])
def test_bytes_that_are_no_image_are_refused(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"The image is (no image file|damaged|empty)"):
        read_metadata(content)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match=r"none\.png cannot be read: No such file"):
        read_metadata(tmp_path / "none.png")


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_a_damaged_exif_block_is_no_error() -> None:
    stream = BytesIO()
    image().save(stream, "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x87\x69\0\x04\0\0\0\x01\xff\xff\xff\x00")
    assert read_metadata(stream.getvalue())[0] is None


@pytest.mark.parametrize("text", ["", "a", INFOTEXT, "猫\n" * 50, "\ufeffa"])
def test_user_comments_in_both_byte_orders_are_read(text: str) -> None:
    assert decode_user_comment(encode_user_comment(text)) == text.removeprefix("\ufeff")
    if text != "猫\n" * 50:
        assert decode_user_comment(b"UNICODE\0" + text.encode("utf-16-le")) == text.removeprefix("\ufeff")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"ASCII\0\0\0plain\0", "plain"),
        (b"\0\0\0\0\0\0\0\0m\xc3\xbcde", "müde"),
        (b"JIS\0\0\0\0\0\x1b$BG-\x1b(B", "猫"),
        (b"no header", "no header"),
        (b"UNICODE\0\xff", "\ufffd"),
    ],
)
def test_other_user_comments_are_read(data: bytes, text: str) -> None:
    assert decode_user_comment(data) == text


def test_a_jpeg_holds_so_much_and_no_more() -> None:
    assert fits_jpeg("x" * 32_000)
    assert not fits_jpeg("x" * 33_000)
    longest = max(n for n in range(32_600, 32_800) if fits_jpeg("x" * n))
    assert len(exif_bytes("x" * longest)) <= 65_533
    assert read_metadata(encode_image(image(), "jpg", "x" * longest))[0] == "x" * longest
