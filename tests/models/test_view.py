"""One view over files: places of tensors, whatever lies over whatever."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.view import Place, View, Zeros, lies_in_one_row, renamed
from tests.models.dit_files import HeaderOnly

ROWS = ((2, 4), (0, 1))


@pytest.fixture
def weights() -> dict[str, Tensor]:
    return {"a": torch.arange(24.0).reshape(6, 4), "b": torch.arange(4, dtype=torch.float16)}


@pytest.fixture(params=[".safetensors", ".pt"])
def file(tmp_path: Path, weights: dict[str, Tensor], request: pytest.FixtureRequest) -> TensorSource:
    path = tmp_path / f"weights{request.param}"
    if path.suffix == ".pt":
        torch.save(weights, path)
    else:
        save_file(weights, path)
    return open_tensors(path)


def view(file: TensorSource, places: dict[str, Place]) -> View:
    files = ExitStack()
    files.push(file)
    return View(file.path, places, files)


def test_a_view_of_views_reads_the_file_itself(file: TensorSource, weights: dict[str, Tensor]) -> None:
    places = {
        "part": Place(renamed(file, {"a": "x"}), "x", rows=((2, 4),)),
        "mixed": Place(renamed(file, {"a": "x"}), "x", rows=ROWS),
        "turned": Place(renamed(file, {}), "a", transposed=True),
        "flat": Place(file, "a", shape=(24,)),
    }
    with view(file, places) as seen:
        again = renamed(seen, {"part": "piece", "flat": "line"})
        assert {place.file for place in again.places.values()} == {file}
        a = weights["a"]
        wanted = {"piece": a[2:4], "mixed": torch.cat([a[2:4], a[:1]]), "turned": a.T, "line": a.reshape(-1)}
        for name, tensor in wanted.items():
            assert again.entries[name].shape == tuple(tensor.shape)
            assert torch.equal(again.read(name), tensor)
        target = torch.empty(24)
        assert torch.equal(again.read("line", target), a.reshape(-1))
        assert [name for name in again.entries if lies_in_one_row(again, name)] == (
            ["piece", "line"] if file.has_offsets else []
        )
        if file.has_offsets:
            whole = file.entries["a"]
            assert again.entries["piece"].begin == whole.begin + 2 * 16 and again.entries["piece"].size_bytes == 32


def test_what_cannot_be_said_as_one_place_stays_two(file: TensorSource, weights: dict[str, Tensor]) -> None:
    with view(file, {"line": Place(file, "a", shape=(24,))}) as lines:
        pieces = view(lines, {"piece": Place(lines, "line", rows=((4, 8),))})
        assert torch.equal(pieces.read("piece"), weights["a"][1])


def test_zeros_lie_in_no_file(tmp_path: Path) -> None:
    zeros = Zeros(tmp_path, {"z": TensorEntry(torch.float16, (2, 3), 0, 0)})
    with View(tmp_path, {"z": Place(zeros, "z", shape=(3, 2))}, ExitStack()) as seen:
        assert torch.equal(seen.read("z"), torch.zeros(3, 2, dtype=torch.float16))
        assert seen.entries["z"].size_bytes == 0


def test_each_tensor_of_several_files_lies_where_its_own_file_says(tmp_path: Path) -> None:
    entries = {"z": TensorEntry(torch.float16, (2, 3), 0, 12)}
    known, unknown = Zeros(tmp_path, entries), HeaderOnly(entries)
    with View(tmp_path, {"a": Place(known, "z"), "b": Place(unknown, "z")}, ExitStack()) as seen:
        again = renamed(seen, {"b": "c"})
        assert again.has_offsets and [lies_in_one_row(again, name) for name in ("a", "c")] == [True, False]
