"""Checkpoints in pickle form: the same model as in safetensors, and nothing in them is ever run."""

import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from modules.errors import CheckpointError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.pickle_file import PickleFile
from modules.models.files.tensor_source import open_tensors
from modules.models.loading.load_model import load_model
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.models.files import tiny_tensors
from tests.recordings import CONFIGS, TINY, cpu_machine


class Malicious:
    """Unpickled carelessly, this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def save(path: Path, content: object, legacy: bool = False) -> Path:
    torch.save(content, path, _use_new_zipfile_serialization=not legacy)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save(folder / "tiny.ckpt", {"state_dict": OrderedDict(tiny_tensors()), "global_step": 3})
    (folder / "tiny.yaml").write_bytes(TINY.with_suffix(".yaml").read_bytes())
    return folder


def engine_of(folder: Path, cache: Path) -> Engine:
    return Engine(CheckpointCatalogue([folder], HashCache(cache / "hashes.json")), CONFIGS, cpu_machine)


def image(engine: Engine, checkpoint: str, output: Path) -> bytes:
    settings = Settings().with_changes({"samples_save": False, "grid_save": False})
    request = GenerationRequest(
        prompt="a dog",
        width=64,
        height=64,
        steps=2,
        seed=1,
        subseed=0,
        sampler="Euler",
        checkpoint=checkpoint,
        settings=settings,
    )
    result: bytes = generate(request, engine, Output(output), Silent()).images[0].image.tobytes()
    return result


def test_the_same_image_as_from_safetensors(folder: Path, tmp_path: Path) -> None:
    ours = image(engine_of(folder, tmp_path), "tiny.ckpt", tmp_path)
    assert ours == image(engine_of(TINY.parent, tmp_path), TINY.name, tmp_path)


@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e4m3fn_row"])
def test_straight_into_fp8(folder: Path, storage: str, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    plan = PrecisionPlan(
        device=cpu,
        compute_dtype=torch.float32,
        vae_dtype=torch.float32,
        unet_storage=storage,
        text_storage=storage,
    )
    states = []
    for models, name in ((folder, "tiny.ckpt"), (TINY.parent, TINY.name)):
        info = CheckpointCatalogue([models], HashCache(tmp_path / "hashes.json")).get(name)
        states.append(load_model(info, CONFIGS, lambda _: plan).unet.state_dict())
    assert set(states[0]) == set(states[1])
    for name, tensor in states[0].items():
        other = states[1][name]
        assert tensor.dtype == other.dtype
        assert torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8)), name


@pytest.mark.parametrize("legacy", [False, True])
def test_both_forms_of_file_read_alike(tmp_path: Path, legacy: bool) -> None:
    strided = torch.arange(12.0).reshape(3, 4).T
    path = save(tmp_path / "a.pt", {"state_dict": {"a": strided, "b": torch.ones(2, dtype=torch.float16)}}, legacy)
    with open_tensors(path) as file:
        assert isinstance(file, PickleFile)
        assert {name: (entry.dtype, entry.shape) for name, entry in file.entries.items()} == {
            "a": (torch.float32, (4, 3)),
            "b": (torch.float16, (2,)),
        }
        read = file.read("a")
        assert read.is_contiguous() and torch.equal(read, strided)
        assert file.entries["b"].size_bytes == 4
    path.unlink()
    assert torch.equal(read, strided)


def test_tensors_are_read_from_their_places(tmp_path: Path) -> None:
    """Parameters, parts of other tensors, tied and empty ones."""
    whole = torch.arange(24.0).reshape(4, 6)
    weights = {
        "whole": torch.nn.Parameter(whole),
        "rows": whole[1:3],
        "tied": whole,
        "none": torch.empty(0, 3),
        "flag": torch.tensor(True),
        "small": torch.arange(5).to(torch.float8_e4m3fn),
    }
    path = save(tmp_path / "a.ckpt", weights)
    with open_tensors(path) as file, path.open("rb") as raw:
        assert file.has_offsets
        for name, tensor in weights.items():
            entry = file.entries[name]
            raw.seek(entry.begin)
            assert raw.read(entry.size_bytes) == bytes(tensor.detach().reshape(-1).view(torch.uint8).tolist())
            target = torch.empty(entry.shape, dtype=entry.dtype)
            assert file.read(name, target) is target
            assert torch.equal(target.view(-1).view(torch.uint8), tensor.detach().reshape(-1).view(torch.uint8))
    with open_tensors(save(tmp_path / "b.ckpt", {**weights, "columns": whole[:, 2:4]})) as file:
        assert not file.has_offsets and file.entries["whole"].begin == 0
        target = torch.empty(4, 2)
        assert torch.equal(file.read("columns", target), whole[:, 2:4]) and torch.equal(file.read("whole"), whole)


def test_a_file_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    path = save(tmp_path / "a.ckpt", {"a": torch.ones(100_000)})
    with open_tensors(path) as file:
        os.truncate(path, 50_000)
        with pytest.raises(CheckpointError, match="ends inside of the tensor 'a'"):
            file.read("a")


def test_a_zip_that_torch_did_not_write_is_refused(tmp_path: Path) -> None:
    path, packed = save(tmp_path / "a.ckpt", {"a": torch.ones(1000)}), tmp_path / "packed.ckpt"
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for item in plain.namelist():
            target.writestr(item, plain.read(item))
    with pytest.raises(CheckpointError, match=r"packed\.ckpt: .*larger than what the file holds"):
        open_tensors(packed)
    with zipfile.ZipFile(path) as plain, zipfile.ZipFile(tmp_path / "short.ckpt", "w") as target:
        for item in plain.namelist():
            target.writestr(item, plain.read(item)[: 100 if "/data/" in item else None])
    with pytest.raises(CheckpointError, match=r"short\.ckpt"):
        open_tensors(tmp_path / "short.ckpt")


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("where", ["beside", "among"])
def test_nothing_is_run(tmp_path: Path, legacy: bool, where: str) -> None:
    made = tmp_path / "made"
    weights: dict[str, object] = {"a": torch.ones(2)}
    content = {"state_dict": weights, "x": Malicious(made)} if where == "beside" else weights | {"x": Malicious(made)}
    path = save(tmp_path / "evil.ckpt", content, legacy)
    with pytest.raises(CheckpointError, match=r"evil\.ckpt: was refused.*mkdir.*safetensors version"):
        open_tensors(path)
    assert not made.exists()


def test_a_plain_pickle_is_not_run_either(tmp_path: Path) -> None:
    made, path = tmp_path / "made", tmp_path / "evil.pt"
    path.write_bytes(pickle.dumps(Malicious(made)))
    with pytest.raises(CheckpointError, match=r"evil\.pt"):
        open_tensors(path)
    assert not made.exists()


def test_what_training_left_behind_is_passed_over(tmp_path: Path) -> None:
    path = save(tmp_path / "old.ckpt", {"state_dict": {"a": torch.ones(2)}, "loss": np.float64(3), "x": np.ones(3)})
    with open_tensors(path) as file:
        assert list(file.entries) == ["a"]


def test_damaged_files_are_named(tmp_path: Path, folder: Path) -> None:
    whole = (folder / "tiny.ckpt").read_bytes()
    for name, content in {"cut.ckpt": whole[: len(whole) // 2], "none.ckpt": b"", "text.pt": b"<html>\n"}.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=name):
            open_tensors(path)
    with pytest.raises(CheckpointError, match="cannot be opened"):
        open_tensors(tmp_path / "gone.ckpt")
    with pytest.raises(CheckpointError, match="no tensors"):
        open_tensors(save(tmp_path / "empty.ckpt", {"state_dict": {}}))
    with pytest.raises(CheckpointError, match="unknown dtype"):
        open_tensors(save(tmp_path / "complex.ckpt", {"a": torch.ones(2, dtype=torch.complex64)}))


def test_a_small_file_cannot_claim_gigabytes(tmp_path: Path) -> None:
    path = save(tmp_path / "bomb.ckpt", {"a": torch.ones(1).expand(1 << 20, 1 << 14)})
    with pytest.raises(CheckpointError, match="larger than what the file holds"):
        open_tensors(path)


def test_the_catalogue_lists_them_but_no_vae_files(tmp_path: Path) -> None:
    for name in ("a.ckpt", "b.pt", "c.safetensors", "c.vae.pt", "d.txt"):
        (tmp_path / name).touch()
    names = [info.name for info in CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes.json")).entries]
    assert names == ["a.ckpt", "b.pt", "c.safetensors"]


def test_safetensors_still_go_to_their_own_reader() -> None:
    with open_tensors(TINY) as file:
        assert file.has_offsets
        name = next(iter(file.entries))
        assert torch.equal(file.read(name), load_file(TINY)[name])
