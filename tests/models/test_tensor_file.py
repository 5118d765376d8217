from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError
from modules.models.files.tensor_file import TensorFile
from tests.models.files import entry, write_raw

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.int64, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_are_read_bit_for_bit(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.arange(6).reshape(2, 3).to(dtype)
    save_file({"a": tensor, "empty": torch.empty(0, 3), "scalar": torch.tensor(2.5)}, tmp_path / "x.safetensors")
    with TensorFile(tmp_path / "x.safetensors") as file:
        read = file.read("a")
        assert read.dtype == dtype
        assert torch.equal(read.view(torch.uint8), tensor.view(torch.uint8))
        assert file.read("empty").shape == (0, 3)
        assert file.read("scalar").item() == 2.5


def test_metadata_is_read(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors", metadata={"format": "pt"})
    with TensorFile(tmp_path / "x.safetensors") as file:
        assert file.metadata == {"format": "pt"}


def broken(folder: Path) -> dict[str, tuple[Path, str]]:
    good = folder / "good.safetensors"
    save_file({"a": torch.zeros(64), "b": torch.zeros(64)}, good)
    data = good.read_bytes()
    (folder / "empty.safetensors").write_bytes(b"")
    (folder / "truncated.safetensors").write_bytes(data[:-100])
    (folder / "cut-header.safetensors").write_bytes(data[:40])
    (folder / "random.safetensors").write_bytes(bytes(range(256)) * 8)
    overlap = {"a": entry("F32", [4], 0, 16), "b": entry("F32", [4], 8, 24)}
    return {
        "empty": (folder / "empty.safetensors", "only 0 bytes"),
        "truncated": (folder / "truncated.safetensors", "truncated or damaged"),
        "cut header": (folder / "cut-header.safetensors", "header is"),
        "random": (folder / "random.safetensors", "not a safetensors file"),
        "not json": (write_raw(folder / "nj.safetensors", b"{nope"), "not JSON"),
        "deep json": (write_raw(folder / "deep.safetensors", b"[" * 100_000), "not JSON"),
        "a list": (write_raw(folder / "l.safetensors", [1]), "not a table"),
        "huge claim": (write_raw(folder / "h.safetensors", {}, claimed=2**62), "truncated"),
        "no tensors": (write_raw(folder / "n.safetensors", {}), "no tensors"),
        "unknown dtype": (write_raw(folder / "d.safetensors", {"a": entry("F3", [1], 0, 4)}), "unknown dtype 'F3'"),
        "lying offsets": (
            write_raw(folder / "o.safetensors", {"a": entry("F32", [4], 0, 99)}, b"x" * 16),
            "header places 'a'",
        ),
        "negative shape": (write_raw(folder / "s.safetensors", {"a": entry("F32", [-4], 0, 16)}), "no usable shape"),
        "bomb": (write_raw(folder / "z.safetensors", {"a": entry("F32", [10**12], 0, 4 * 10**12)}, b"xxxx"), "needs"),
        "overlap": (write_raw(folder / "v.safetensors", overlap, b"x" * 24), "overlap"),
        "no table": (write_raw(folder / "e.safetensors", {"a": 3}), "not a table"),
    }


BROKEN = (
    *("empty", "truncated", "cut header", "random", "not json", "deep json", "a list", "huge claim", "no tensors"),
    *("unknown dtype", "lying offsets", "negative shape", "bomb", "overlap", "no table"),
)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_say_what_is_wrong(tmp_path: Path, name: str) -> None:
    path, message = broken(tmp_path)[name]
    with pytest.raises(CheckpointError, match=message) as caught:
        TensorFile(path)
    assert path.name in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.safetensors: cannot be opened"):
        TensorFile(tmp_path / "gone.safetensors")


def test_a_file_that_shrinks_while_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(100_000)}, path)
    with TensorFile(path) as file:
        with path.open("r+b") as other:
            other.truncate(1000)
        with pytest.raises(CheckpointError, match="ends inside"):
            file.read("a")
