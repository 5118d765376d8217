"""Weights in slices and as pages of a file, held against the format's own library."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError
from modules.memory.formats import format as slicing
from modules.memory.formats.format import FORMATS
from modules.models.files.tensor_file import TensorFile
from modules.models.loading.preparing import FileRows, OpenFile

NAMES = ("matrix", "kernel", "vector", "single")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    shapes = {"matrix": (37, 50), "kernel": (6, 5, 3, 3), "vector": (11,), "single": (1,)}
    path = tmp_path / "weights.safetensors"
    save_file({name: torch.randn(shape).half() for name, shape in shapes.items()}, path)
    return path


def rows_of(path: Path, file: OpenFile) -> dict[str, FileRows]:
    with TensorFile(path) as header:
        return {name: FileRows(file, e.begin, e.dtype, e.shape, name) for name, e in header.entries.items()}


def test_slices_the_whole_and_pages_are_the_tensor(path: Path) -> None:
    expected = load_file(path)
    with OpenFile(path) as file:
        rows = rows_of(path, file)
        for name in NAMES:
            weight = expected[name]
            assert torch.equal(rows[name].whole(), weight)
            pages = rows[name].mapped()
            assert pages is not None and torch.equal(pages, weight)
        assert torch.equal(rows["kernel"].read(2, 5), expected["kernel"][2:5].reshape(3, 45))
        mapped = rows["matrix"].mapped()
    assert mapped is not None and torch.equal(mapped, expected["matrix"])  # also after the file was closed


def test_what_is_written_to_pages_does_not_reach_the_file(path: Path) -> None:
    before = path.read_bytes()
    with OpenFile(path) as file:
        weight = rows_of(path, file)["matrix"].mapped()
        assert weight is not None
        weight.zero_()
        assert not weight.any()
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row", "fp32", "bf16"])
def test_encoding_slices_of_a_file_is_encoding_the_tensor(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slicing, "SLICE_ELEMENTS", 200)  # four rows of the matrix
    storage = FORMATS.get(name)
    weight = load_file(path)["matrix"] * 300  # beyond e4m3's range in places
    save_file({"matrix": weight}, path)
    with OpenFile(path) as file:
        got = storage.encode_rows(rows_of(path, file)["matrix"])
    monkeypatch.undo()
    expected = storage.encode(weight)
    assert torch.equal(got.data.float(), expected.data.float())
    assert got.saturated == expected.saturated
    assert (got.saturated > 0) == (name == "fp8_e4m3fn")
    if storage.scaled:
        assert got.scale is not None and expected.scale is not None and torch.equal(got.scale, expected.scale)


def test_threads_read_the_same_file_at_once(path: Path) -> None:
    expected = load_file(path)
    with OpenFile(path) as file, ThreadPoolExecutor(4) as pool:
        rows = rows_of(path, file)
        read = list(pool.map(lambda number: (NAMES[number % 4], rows[NAMES[number % 4]].whole()), range(200)))
    assert all(torch.equal(weight, expected[name]) for name, weight in read)


def test_systems_without_positioned_reads_read_the_same(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.preadv")
    with OpenFile(path) as file:
        assert torch.equal(rows_of(path, file)["kernel"].whole(), load_file(path)["kernel"])


def test_a_file_that_shrinks_is_an_error_that_names_the_tensor(path: Path) -> None:
    with OpenFile(path) as file:
        rows = rows_of(path, file)
        last = max(rows.values(), key=lambda r: r.begin)
        with path.open("r+b") as shrunk:
            shrunk.truncate(last.begin + 1)
        with pytest.raises(CheckpointError, match=f"ends inside of the tensor '{last.name}'"):
            last.whole()


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot be opened"):
        OpenFile(tmp_path / "gone.safetensors")


def test_where_the_system_maps_nothing_there_are_no_pages(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("mmap.mmap", refuse)
    with OpenFile(path) as file:
        assert rows_of(path, file)["matrix"].mapped() is None


def test_only_aligned_numbers_can_be_mapped(path: Path) -> None:
    with OpenFile(path) as file:
        assert not FileRows(file, 9, torch.float16, (2,), "odd").can_be_mapped
        assert FileRows(file, 8, torch.float16, (2,), "even").can_be_mapped
