"""Rows and columns of weights, read from memory and from files."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.source import FileRegion, PartSource, RamSource, Source, WatchedFile, as_bytes, read

SHAPES = [(7, 5), (600, 900), (3, 4000), (1200, 64, 3, 3), (50,)]


def weight(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def sources(tensor: Tensor, folder: Path) -> list[Source]:
    path = folder / "some.bin"
    path.write_bytes(b"ahead" + as_bytes(tensor).numpy().tobytes() + b"behind")
    region = FileRegion(WatchedFile(path).open(), 5, tensor.dtype, tensor.shape)
    return [RamSource(tensor), RamSource(torch.stack([tensor, tensor])[1]), BlobStore(folder).keep(tensor), region]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float8_e4m3fn])
def test_parts_are_what_views_of_the_whole_are(shape: tuple[int, ...], dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = weight(shape, dtype)
    for source in sources(tensor, tmp_path):
        for dimension, length in enumerate(shape):
            for start, stop in ((0, length), (0, 1), (length - 1, length), (length // 3, length - length // 4)):
                part = PartSource(lambda source=source: source, dimension, start, stop)  # type: ignore[misc]
                expected = tensor.narrow(dimension, start, stop - start).contiguous()
                assert (part.shape, part.dtype) == (expected.shape, dtype)
                assert torch.equal(as_bytes(read(part)), as_bytes(expected))


@pytest.mark.parametrize("columns", [10, 4000])
def test_a_file_that_ends_too_early_is_an_error(columns: int, tmp_path: Path) -> None:
    """Whether columns are read one row at a time, or with what lies between them."""
    path = tmp_path / "short.bin"
    path.write_bytes(bytes(100))
    region = FileRegion(WatchedFile(path).open(), 0, torch.float32, torch.Size((3, 2 * columns)))
    with pytest.raises(CheckpointError, match=r"short\.bin has become shorter"):
        read(PartSource(lambda: region, 1, columns, 2 * columns))
