"""Files to networks: both key layouts, both file kinds, and files that must not or cannot be read."""

import pickle
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.errors import CheckpointError
from modules.upscalers.loading import load_upscaler, read_weights
from modules.upscalers.spandrel_import import import_spandrel
from tests.upscalers.models import esrgan_weights, old_layout, save_esrgan

CPU = torch.device("cpu")


class Malicious:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str, int]]:
        return Path.mkdir, (self.folder, 0o777)  # type: ignore[return-value]


def test_all_layouts_and_types_of_files_give_the_same_upscaler(tmp_path: Path) -> None:
    old = tmp_path / "old.pth"
    torch.save(old_layout(esrgan_weights()), old)
    image = torch.rand(1, 3, 12, 10, generator=torch.Generator().manual_seed(1))
    models = [load_upscaler(save_esrgan(tmp_path / name), CPU) for name in ("new.pth", "new.safetensors")]
    models.append(load_upscaler(old, CPU))
    expected = import_spandrel().ModelLoader().load_from_state_dict(esrgan_weights()).eval()(image)
    assert expected.shape == (1, 3, 48, 40)
    for model in models:
        assert model.scale == 4
        assert torch.equal(model(image), expected)


def test_the_scale_comes_from_the_weights(tmp_path: Path) -> None:
    assert load_upscaler(save_esrgan(tmp_path / "a.safetensors", scale=2), CPU).scale == 2


def test_importing_leaves_no_stand_in_behind() -> None:
    import_spandrel()
    assert "torchvision" not in sys.modules


def test_a_pickle_runs_nothing(tmp_path: Path) -> None:
    path, folder = tmp_path / "evil.pth", tmp_path / "made"
    torch.save({"model.0.weight": Malicious(folder)}, path)
    with pytest.raises(CheckpointError, match=r"evil\.pth cannot be read: .*never run"):
        load_upscaler(path, CPU)
    path.write_bytes(pickle.dumps(Malicious(folder), protocol=2))
    with pytest.raises(CheckpointError, match=r"evil\.pth"):
        load_upscaler(path, CPU)
    assert not folder.exists()


@pytest.mark.parametrize("name", ["bad.pth", "bad.pt", "bad.safetensors"])
@pytest.mark.parametrize("content", [b"", b"not a model", b"PK\x03\x04 broken"])
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=rf"{name} cannot be read"):
        read_weights(path)


def test_a_file_that_is_gone_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"gone\.pth is not there any more"):
        read_weights(tmp_path / "gone.pth")


def test_weights_of_something_else_are_refused(tmp_path: Path) -> None:
    save_file({"layer.weight": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"other\.safetensors is no upscaler"):
        load_upscaler(tmp_path / "other.safetensors", CPU)


def test_weights_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    weights = esrgan_weights()
    del weights["body.0.rdb2.conv3.weight"]
    save_file(weights, tmp_path / "half.safetensors")
    with pytest.raises(CheckpointError, match=r"half\.safetensors is no upscaler"):
        load_upscaler(tmp_path / "half.safetensors", CPU)


def test_a_list_is_no_state_dict(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(CheckpointError, match=r"list\.pth holds a list"):
        load_upscaler(tmp_path / "list.pth", CPU)
