"""Embeddings hidden in the pixels of images: written here after the description of the form, byte by byte."""

import base64
import json
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.adapters.adapter_facts import AdapterError
from modules.adapters.embeddings import EmbeddingStore, read_embedding
from modules.adapters.image_embedding import MAX_JSON_BYTES, read_image, xor_pattern

HEIGHT = 96
VECTORS = [[0.5, -1.25, 3.0], [1e-3, 0.0, -7.5]]
TABLE = {
    "string_to_token": {"*": 265},
    "string_to_param": {"*": {"TORCHTENSOR": VECTORS}},
    "name": "hidden",
    "step": 1500,
    "sd_checkpoint": "e1441589",
    "sd_checkpoint_name": "model",
}
PUBLISHED = (253, 242, 127, 44, 157, 27, 239, 133, 38, 79, 167, 4, 177, 95, 130, 79, 78, 14, 52, 215, 220, 194)
"""The generator's first values in the reference UI's own test of it (pull request 2010)."""


def image_with(packed: bytes, height: int = HEIGHT) -> NDArray[np.uint8]:
    """The image [height, width, 3] that hides these bytes, one number after the other."""
    columns = -(-len(packed) // (height * 3))
    blocks = np.zeros((2, height, columns, 3), dtype=np.uint8)
    random = np.random.default_rng(0)
    state = 0
    for number in range(height * columns * 3):
        state = (state * 1664525 + 1013904223) % 2**32
        byte = packed[number] if number < len(packed) else 0
        row, rest = divmod(number, columns * 3)
        column, channel = divmod(rest, 3)
        for block, half in zip(blocks, (byte % 16, byte // 16), strict=True):
            decoration = int(random.integers(1, 16)) * 16
            block[row, column, channel] = decoration + (half ^ (state % 255 % 16))
    middle = random.integers(1, 256, (height, 40, 3), dtype=np.uint8)
    middle[:, 7] &= 0xF0  # a dark column inside of the image is none of the two
    black = np.zeros((height, 1, 3), dtype=np.uint8)
    return np.concatenate((blocks[0], black, middle, black, blocks[1]), axis=1)


def packed_table(table: object = TABLE) -> bytes:
    return zlib.compress(json.dumps(table).encode(), 9)


def save(pixels: NDArray[np.uint8], path: Path) -> Path:
    Image.fromarray(pixels).save(path, lossless=True)
    return path


def test_the_sequence_is_the_published_one() -> None:
    assert xor_pattern(len(PUBLISHED)).tolist() == [value & 15 for value in PUBLISHED]
    assert xor_pattern(1000)[: len(PUBLISHED)].tolist() == xor_pattern(len(PUBLISHED)).tolist()


@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_an_embedding_in_the_pixels_is_read(tmp_path: Path, suffix: str) -> None:
    found = read_embedding(save(image_with(packed_table()), tmp_path / f"card.{suffix}"))
    assert found is not None
    assert (found.name, found.step, found.checkpoint_hash, found.checkpoint_name) == (
        "hidden",
        1500,
        "e1441589",
        "model",
    )
    assert torch.equal(found.vectors[3], torch.tensor(VECTORS))


def test_one_without_a_name_is_called_as_its_file(tmp_path: Path) -> None:
    path = save(image_with(packed_table({"string_to_param": {"*": {"TORCHTENSOR": VECTORS}}})), tmp_path / "card.png")
    found = read_embedding(path)
    assert found is not None and found.name == "card"


def test_a_large_one_in_a_frame_with_transparency(tmp_path: Path) -> None:
    vectors = np.random.default_rng(1).standard_normal((12, 768)).tolist()
    pixels = image_with(packed_table({"string_to_param": {"*": {"TORCHTENSOR": vectors}}}), 256)
    framed = np.pad(pixels, ((16, 3), (0, 21), (0, 0)))
    opaque = np.full((*framed.shape[:2], 1), 255, dtype=np.uint8)
    found = read_embedding(save(np.concatenate((framed, opaque), axis=2), tmp_path / "card.png"))
    assert found is not None
    torch.testing.assert_close(found.vectors[768], torch.tensor(vectors))


def test_the_text_chunk_goes_first(tmp_path: Path) -> None:
    info = PngInfo()
    info.add_text("sd-ti-embedding", base64.b64encode(json.dumps({**TABLE, "name": "chunk"}).encode()).decode())
    Image.fromarray(image_with(packed_table())).save(tmp_path / "card.png", pnginfo=info)
    found = read_embedding(tmp_path / "card.png")
    assert found is not None and found.name == "chunk"


def test_other_images_have_none(tmp_path: Path) -> None:
    noise = np.random.default_rng(2).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    black, striped = np.zeros_like(noise), noise.copy()
    striped[:, [9, 50]] = 0
    for name, pixels in {"noise": noise, "black": black, "striped": striped, "uneven": striped[:, :60]}.items():
        assert read_image(save(pixels, tmp_path / f"{name}.png")) is None
    right_half_missing = image_with(packed_table())[:, :-4]
    assert read_image(save(right_half_missing, tmp_path / "half.png")) is None


def test_the_list_says_why_an_image_is_skipped_but_of_previews(tmp_path: Path) -> None:
    torch.save({"string_to_param": {"*": torch.ones(1, 3)}}, tmp_path / "word.pt")
    save(image_with(packed_table()), tmp_path / "word.png")  # shows word.pt
    Image.new("RGB", (8, 8)).save(tmp_path / "lone.png")
    save(image_with(packed_table()[:-30]), tmp_path / "cut.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "word.png").read_bytes()[:5000])
    store = EmbeddingStore(tmp_path)
    store.refresh()
    assert set(store.usable([3])) == {"word"}
    reasons = store.skipped([3])
    assert set(reasons) == {"lone", "cut", "broken"}
    assert "no embedding in it" in reasons["lone"]
    assert "no image that can be read" in reasons["broken"]


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (packed_table()[:-4] + bytes(4), "damaged"),
        (zlib.compress(bytes(4 * MAX_JSON_BYTES), 9), "larger than any embedding"),
        (zlib.compress(b"[" * 100_000), "damaged"),
        (zlib.compress(b"no json"), "damaged"),
        (packed_table([1, 2]), "damaged"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": [[1.0], [1.0, 2.0]]}}}), "damaged"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": {"a": None}}}}), "damaged"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": [10**30]}}}), "damaged"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": [[float("nan")]]}}}), "no textual inversion"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": [[[1.0]]]}}}), "no textual inversion"),
        (packed_table({"string_to_param": {"*": {"TORCHTENSOR": [[1.0]] * 76}}}), "1 to 75 vectors"),
    ],
    ids=["checksum", "bomb", "nested", "text", "list", "ragged", "odd", "huge", "nan", "shape", "many"],
)
def test_what_is_refused_says_why(tmp_path: Path, packed: bytes, message: str) -> None:
    with pytest.raises(AdapterError, match=message):
        read_embedding(save(image_with(packed), tmp_path / "card.png"))


def test_a_stream_that_fills_the_blocks_and_does_not_end_is_cut_off(tmp_path: Path) -> None:
    packed = zlib.compress(np.random.default_rng(3).bytes(3 * HEIGHT * 8), 9)[: 3 * HEIGHT * 4]
    with pytest.raises(AdapterError, match="cut off"):
        read_embedding(save(image_with(packed), tmp_path / "card.png"))
