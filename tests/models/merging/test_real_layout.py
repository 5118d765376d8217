"""Merges of the tiny SD1 checkpoint: 8-bit results load as the loader would have made them, and make images."""

from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from lib_workbench.merging.conversion import save_as
from lib_workbench.merging.merge import merge
from lib_workbench.merging.request import MergeMethod, MergeRequest
from modules.errors import CheckpointError
from modules.models.autoencoders.files import VaeCatalogue
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import storage_rules
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.settings.values import Settings
from tests.models.files import tiny_tensors, write_checkpoint
from tests.recordings import CONFIGS, cpu_machine

WEIGHT = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.ff.net.0.proj.weight"
FP8 = ("fp8_e4m3fn_row", "fp8_e5m2")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[CheckpointInfo, CheckpointInfo]:
    """The tiny checkpoint, and one whose weights are 10 % smaller."""
    folder = tmp_path_factory.mktemp("models")
    tensors = tiny_tensors()
    write_checkpoint(folder / "a.safetensors", tensors)
    smaller = {name: t * 0.9 if t.is_floating_point() and t.ndim > 1 else t for name, t in tensors.items()}
    write_checkpoint(folder / "b.safetensors", smaller)
    catalogue = CheckpointCatalogue([folder], HashCache(folder / "hashes.json"))
    return catalogue.get("a"), catalogue.get("b")


def run(request: MergeRequest) -> Path:
    merge(request, CONFIGS, storage_rules(request.storage), lambda info, _: info)
    return request.target


def info_of(path: Path) -> CheckpointInfo:
    return CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name)


def load(path: Path) -> LoadedModel:
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(info_of(path), CONFIGS, lambda _: plan)


def image(path: Path, tmp_path: Path) -> Result:
    catalogue = CheckpointCatalogue([path.parent], HashCache(tmp_path / "hashes.json"))
    engine = Engine(catalogue, CONFIGS, cpu_machine)
    quiet = Settings({"samples_save": False, "grid_save": False, "return_grid": False})
    request = GenerationRequest(prompt="a", steps=2, width=64, height=64, seed=1, subseed=1, settings=quiet)
    return generate(replace(request, checkpoint=path.name), engine, Output(tmp_path), Silent())


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("storage", FP8)
def test_an_8_bit_merge_is_the_wide_merge_converted(
    models: tuple[CheckpointInfo, CheckpointInfo], storage: str, tmp_path: Path
) -> None:
    request = MergeRequest(
        models=models,
        method=MergeMethod.WEIGHTED_SUM,
        multiplier=0.5,
        storage="fp32",
        target=tmp_path / "wide.safetensors",
    )
    wide = run(request)
    direct = run(replace(request, storage=storage, target=tmp_path / "direct.safetensors"))
    converted = tmp_path / "converted.safetensors"
    save_as(info_of(wide), CONFIGS, storage_rules(storage), converted)
    ours, theirs = load_file(direct), load_file(converted)
    assert set(theirs) <= set(ours)
    for name, tensor in theirs.items():
        assert ours[name].dtype == tensor.dtype, name
        assert torch.equal(bits(ours[name]), bits(tensor)), name
    a, b = load_file(models[0].path)[WEIGHT], load_file(models[1].path)[WEIGHT]
    model = load(direct)
    layer = model.unet.down_blocks[0].attentions[0].transformer_blocks[0].ff.net[0].proj
    expected = a.float() * 0.5 + b.float() * 0.5
    assert layer.weight.dtype == torch.float32
    assert (layer.weight - expected).norm() / expected.norm() < 0.08


def test_8_bits_stay_as_they_are_without_interpolation(
    models: tuple[CheckpointInfo, CheckpointInfo], tmp_path: Path
) -> None:
    narrow = tmp_path / "narrow.safetensors"
    save_as(models[0], CONFIGS, storage_rules("fp8_e4m3fn_row"), narrow)
    request = MergeRequest(
        models=(info_of(narrow),),
        method=MergeMethod.NO_INTERPOLATION,
        multiplier=0,
        storage="fp8_e4m3fn_row",
        target=tmp_path / "again.safetensors",
    )
    before, after = load_file(narrow), load_file(run(request))
    assert set(before) == set(after)
    assert all(torch.equal(bits(before[name]), bits(after[name])) for name in before)


def test_an_8_bit_merge_with_a_baked_vae_and_discarded_weights_loads(
    models: tuple[CheckpointInfo, CheckpointInfo], tmp_path: Path
) -> None:
    name = "first_stage_model.decoder.conv_out.bias"
    vae = {key: tensor for key, tensor in tiny_tensors().items() if key.startswith("first_stage_model.")}
    (tmp_path / "VAE").mkdir()
    write_checkpoint(tmp_path / "VAE" / "new.safetensors", {**vae, name: torch.full_like(vae[name], 0.5)})
    (info,) = VaeCatalogue([tmp_path / "VAE"]).entries
    request = MergeRequest(
        models=models,
        method=MergeMethod.WEIGHTED_SUM,
        multiplier=0.3,
        storage="fp8_e5m2",
        target=tmp_path / "merged.safetensors",
        vae=info,
    )
    target = run(request)
    model = load(target)
    assert torch.equal(model.vae.decoder.conv_out.bias, torch.full((3,), 0.5))
    result = image(target, tmp_path)
    assert len(result.samples) == 1
    assert "Model: merged" in result.info.infotexts[0]
    assert numpy.asarray(result.samples[0].image).std() > 0


def test_a_model_of_no_known_family_cannot_be_stored_in_8_bits(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path / "odd.safetensors", {"x.weight": torch.ones(2, 2)})
    request = MergeRequest(
        models=(info_of(path),),
        method=MergeMethod.NO_INTERPOLATION,
        multiplier=0,
        storage="fp8_e4m3fn",
        target=tmp_path / "merged.safetensors",
    )
    with pytest.raises(CheckpointError, match="of no known model family"):
        run(request)
    assert not request.target.exists()
