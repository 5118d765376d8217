"""Whether a network predicts v, told by one run of it and remembered."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading import load_model as loading
from modules.models.loading.load_model import load_model, predicts_v
from modules.models.loading.loaded import LoadedModel, unused_parameters
from modules.models.loading.precision import PrecisionPlan
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

PLAN = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)


def model_that(predict: Callable[[Tensor, Tensor], Tensor]) -> Any:
    sizes = SimpleNamespace(unet_sizes=SimpleNamespace(context_width=8))
    return SimpleNamespace(
        latent_channels=4,
        family=SimpleNamespace(texts=SimpleNamespace(tokens=77)),
        device=torch.device("cpu"),
        architecture=sizes,
        predict=lambda x, t, context: predict(x, t),
    )


@pytest.mark.parametrize(("mean_of_data", "is_v"), [(0.0, False), (3.0, True)])
def test_eps_gives_the_noise_back_and_v_does_not(mean_of_data: float, is_v: bool) -> None:
    """Adapters that know their data perfectly: all of it one color. v = a eps - s x0, with a^2 + s^2 = 1."""
    a, s = 0.07, 0.9975  # of the last timestep

    def predict(x: Tensor, timesteps: Tensor) -> Tensor:
        assert timesteps.tolist() == [999.0]
        eps = (x - a * mean_of_data) / s
        return a * eps - s * mean_of_data if is_v else eps

    assert predicts_v(model_that(predict)) is is_v


@pytest.fixture
def load(tmp_path: Path) -> Callable[[], LoadedModel]:
    write_family(tmp_path, "sd2")

    def run() -> LoadedModel:  # as a program that is started anew
        catalogue = CheckpointCatalogue([tmp_path], HashCache(tmp_path / "hashes.json"))
        return load_model(catalogue.entries[0], CONFIGS, lambda family: PLAN, facts=catalogue.cache)

    return run


def test_it_is_tried_once_and_remembered(load: Callable[[], LoadedModel], monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def found(model: LoadedModel) -> bool:
        tried.append(model.info.name)
        return True

    monkeypatch.setattr(loading, "predicts_v", found)
    for _ in range(3):
        model = load()
        assert model.architecture.prediction_type == "v_prediction"
        assert model.default_size_px == 768 * model.downscale // 8
    assert tried == [model.info.name]


def test_another_file_of_that_name_is_tried_again(
    load: Callable[[], LoadedModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "predicts_v", lambda model: True)
    load()
    write_family(tmp_path, "sd2")
    monkeypatch.setattr(loading, "predicts_v", lambda model: False)
    model = load()
    assert model.architecture.prediction_type == "epsilon"
    assert model.default_size_px == 512 * model.downscale // 8
    assert set(unused_parameters(model)) == {
        "distilled_cfg_scale",
        "image_cfg_scale",
        "references",
        "writing",
        "describing",
    }


def test_a_hash_and_a_fact_of_a_file_do_not_lose_each_other(tmp_path: Path) -> None:
    file, cache = tmp_path / "file", HashCache(tmp_path / "hashes.json")
    file.write_bytes(b"content")
    cache.remember(file, "prediction_type", "epsilon")
    sum_of_file = cache.sha256(file)
    again = HashCache(tmp_path / "hashes.json")
    assert again.known(file) == sum_of_file and again.fact(file, "prediction_type") == "epsilon"
    file.write_bytes(b"other content")
    assert again.known(file) is None and again.fact(file, "prediction_type") is None
