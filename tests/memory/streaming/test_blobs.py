"""Files named by content: written once, never trusted by name, never mixed, never more than allowed."""

import os
from pathlib import Path

import pytest
import torch

from modules.errors import CheckpointError, OutputError
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.source import read


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*/*"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int8])
def test_what_was_kept_comes_back(dtype: torch.dtype, tmp_path: Path) -> None:
    tensor = torch.randn(5, 7).mul(20).to(dtype)
    source = BlobStore(tmp_path).keep(tensor)
    assert (source.dtype, source.shape) == (dtype, tensor.shape)
    assert torch.equal(read(source).view(torch.uint8), tensor.view(torch.uint8))


def test_the_same_content_is_written_once_by_all_programs(tmp_path: Path) -> None:
    tensor = torch.randn(64, 64)
    BlobStore(tmp_path).keep(tensor)
    (path,) = files(tmp_path)
    written = path.stat().st_mtime_ns
    BlobStore(tmp_path).keep(tensor.T.contiguous().T)
    assert files(tmp_path) == [path] and path.stat().st_mtime_ns == written


def test_other_numbers_shapes_and_dtypes_have_other_files(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    zeros = torch.zeros(4, 6)
    for tensor in (
        zeros,
        zeros.view(6, 4),
        zeros.view(torch.int32).view(torch.float32) + 1,
        zeros.half(),
        zeros[:, :3],
    ):
        store.keep(tensor)
    assert len(files(tmp_path)) == 5


def test_a_file_that_holds_something_else_is_written_anew(tmp_path: Path) -> None:
    tensor = torch.randn(64, 64)
    BlobStore(tmp_path).keep(tensor)
    (path,) = files(tmp_path)
    data = bytearray(path.read_bytes())
    for wrong in (data[:-1], data[:100] + b"\1\2\3\4" + data[104:], b""):
        path.write_bytes(wrong)
        assert torch.equal(read(BlobStore(tmp_path).keep(tensor)), tensor)


def test_a_file_that_changes_or_goes_while_it_is_used_is_an_error(tmp_path: Path) -> None:
    source = BlobStore(tmp_path).keep(torch.randn(64, 64))
    (path,) = files(tmp_path)
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CheckpointError, match=r"has changed since it was written.*loads the checkpoint again"):
        read(source)
    path.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        read(source)
    path.mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read(source)


def test_what_was_unused_for_longest_makes_room_and_nothing_in_use(tmp_path: Path) -> None:
    old, older, used = (torch.full((256, 4), float(number)) for number in range(3))
    before = BlobStore(tmp_path)
    for number, tensor in enumerate((older, old)):
        before.keep(tensor)
        newest = max(files(tmp_path), key=lambda path: path.stat().st_ctime_ns)
        os.utime(newest, ns=(number, newest.stat().st_mtime_ns))
    store = BlobStore(tmp_path, quota_bytes=3 * 4096)
    kept = store.keep(used)
    store.keep(used + 1)
    assert len(files(tmp_path)) == 3
    store.keep(used + 2)
    with pytest.raises(OutputError, match=r"may hold\. Raise the limit"):
        store.keep(used + 3)
    assert torch.equal(read(kept), used)


def test_what_was_released_may_go(tmp_path: Path) -> None:
    store = BlobStore(tmp_path, quota_bytes=2 * 4096)
    for number in range(5):
        store.release(store.keep(torch.full((1024,), float(number))))
    first, second = (store.keep(torch.zeros(1024)) for _ in range(2))
    store.release(first)
    store.keep(torch.ones(1024))
    with pytest.raises(OutputError):
        store.keep(torch.full((1024,), 9.0))
    assert torch.equal(read(second), torch.zeros(1024))


def test_cleaning_leaves_what_is_in_use(tmp_path: Path) -> None:
    BlobStore(tmp_path).keep(torch.zeros(10))
    store = BlobStore(tmp_path)
    source = store.keep(torch.ones(10))
    left = tmp_path / "ab" / "x.weight.1-2.tmp"
    left.parent.mkdir(exist_ok=True)
    left.write_bytes(b"half")
    assert store.clean() == (1, 40)
    assert not left.exists()
    assert torch.equal(read(source), torch.ones(10))
    assert BlobStore(tmp_path).clean() == (1, 40)
    assert BlobStore(tmp_path / "nothing").clean() == (0, 0)


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match=r"could not be saved in .*file"):
        BlobStore(tmp_path / "file").keep(torch.zeros(4))
