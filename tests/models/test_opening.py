"""A checkpoint is opened in one pass: each file once, and one view of them at the end."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from modules.models.families.family import ModelFamily
from modules.models.files.tensor_file import TensorFile
from modules.models.loading.load_model import load_model
from modules.models.loading.meta_model import build_meta_model
from modules.models.loading.precision import PrecisionPlan
from modules.models.names.view import View
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.diffusers_sd3_folders import write_sd3_folder
from tests.models.family_files import write_family
from tests.models.split_models import split_model
from tests.models.test_conversion import info_of
from tests.recordings import CONFIGS

PLAN = PrecisionPlan(
    device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32, with_optional=True
)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """How often each safetensors file was opened, by its name."""
    counts: Counter[str] = Counter()
    init = TensorFile.__init__

    def counting(self: TensorFile, path: Path) -> None:
        counts[path.name] += 1
        init(self, path)

    monkeypatch.setattr(TensorFile, "__init__", counting)
    yield counts


def test_a_checkpoint_with_an_optional_encoder_is_opened_once(tmp_path: Path, opened: Counter[str]) -> None:
    path = write_family(tmp_path, "sd3")
    load_model(info_of(path), CONFIGS, lambda _: PLAN)
    assert opened == {path.name: 1}
    opened.clear()
    build_meta_model(info_of(path), CONFIGS, optional={"sd3_enable_t5"})
    assert opened == {path.name: 1}


def test_the_files_of_a_split_model_are_opened_once(tmp_path: Path, opened: Counter[str]) -> None:
    path = split_model("chroma1").write(tmp_path)
    modules = [*(tmp_path / "text_encoder").iterdir(), *(tmp_path / "VAE").iterdir()]
    with open_checkpoint(path, modules=modules):
        assert opened == dict.fromkeys((each.name for each in (path, *modules)), 1)


def test_no_view_lies_over_another(tmp_path: Path) -> None:
    path = split_model("flux1_dev").write(tmp_path)
    with open_checkpoint(path) as file:
        assert not any(isinstance(place.file, View) for place in file.places.values())


def test_a_family_is_asked_once_what_it_wants(tmp_path: Path) -> None:
    asked: list[str] = []

    def wants(family: ModelFamily) -> bool:
        asked.append(family.label)
        return False

    with open_checkpoint(write_family(tmp_path, "sd3"), wants):
        assert asked == ["SD 3"]
    with open_checkpoint(write_sd3_folder(tmp_path, "sd3"), wants):
        assert asked == ["SD 3", "SD 3"]
