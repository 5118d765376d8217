"""Merges of every family's layout into 8 bits: what the result is, is seen from it as from its models."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from lib_workbench.merging.conversion import save_as
from lib_workbench.merging.merge import merge
from lib_workbench.merging.request import MergeMethod, MergeRequest
from modules.errors import CheckpointError
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.precision import storage_rules
from tests.models.family_files import write_family
from tests.models.merging.toys import info_of
from tests.models.test_conversion import stored_state_of
from tests.recordings import CONFIGS


def load(path: Path) -> LoadedModel:
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(info_of(path), CONFIGS, lambda _: plan)


def weaker(path: Path) -> Path:
    """A copy of a file with smaller weights."""
    other = path.with_name("weaker.safetensors")
    save_file({name: t * 0.9 if t.is_floating_point() else t for name, t in load_file(path).items()}, other)
    return other


def run(models: tuple[CheckpointInfo, ...], method: MergeMethod, storage: str, target: Path) -> Path:
    request = MergeRequest(models=models, method=method, multiplier=0.5, storage=storage, target=target)
    merge(request, CONFIGS, storage_rules(storage), lambda info, _: info)
    return target


@pytest.mark.parametrize("family", ["sd2", "sdxl-v", "sdxl-refiner"])
def test_a_merge_of_a_family_is_of_that_family(family: str, tmp_path: Path) -> None:
    path = write_family(tmp_path, family)
    models = (info_of(path), info_of(weaker(path)))
    wide = run(models, MergeMethod.WEIGHTED_SUM, "fp32", tmp_path / "wide.safetensors")
    narrow = run(models, MergeMethod.WEIGHTED_SUM, "fp8_e4m3fn_row", tmp_path / "narrow.safetensors")
    assert set(load_file(wide)) == set(load_file(path))
    expected, found = load(path), load(narrow)
    assert found.family.label == expected.family.label
    assert found.architecture == expected.architecture
    again = tmp_path / "again.safetensors"
    save_as(info_of(wide), CONFIGS, storage_rules("fp8_e4m3fn_row"), again)
    direct, converted = load_file(narrow), load_file(again)
    assert set(converted) <= set(direct)
    for name, tensor in converted.items():
        assert torch.equal(tensor.reshape(-1).view(torch.uint8), direct[name].reshape(-1).view(torch.uint8)), name
    assert ("ztsnr" in direct) == (family == "sdxl-v")


@pytest.mark.parametrize(
    ("family", "storage"), [("sd2", "code4"), ("sdxl", "gguf_q5_0"), ("sd3.5", "int8_convrot"), ("sd3.5", "gguf_q8_0")]
)
def test_a_merge_in_blocks_or_rotated_is_the_wide_merge_converted(family: str, storage: str, tmp_path: Path) -> None:
    path = write_family(tmp_path, family)
    models = (info_of(path), info_of(weaker(path)))
    wide = run(models, MergeMethod.WEIGHTED_SUM, "fp32", tmp_path / "wide.safetensors")
    narrow = run(models, MergeMethod.WEIGHTED_SUM, storage, tmp_path / "narrow.safetensors")
    again = tmp_path / "again.safetensors"
    save_as(info_of(wide), CONFIGS, storage_rules(storage), again)
    merged, converted = stored_state_of(load(narrow)), stored_state_of(load(again))
    assert any(tensor.dtype in (torch.uint8, torch.int8) for tensor in merged.values())
    assert set(merged) == set(converted)
    for name, tensor in converted.items():
        assert torch.equal(tensor.contiguous().view(torch.uint8), merged[name].contiguous().view(torch.uint8)), name


def test_an_inpainting_model_is_made_from_a_usual_one(tmp_path: Path) -> None:
    base, inpainting = write_family(tmp_path, "sdxl"), write_family(tmp_path, "sdxl-inpainting")
    models = tuple(info_of(path) for path in (inpainting, weaker(base), base))
    made = load(run(models, MergeMethod.ADD_DIFFERENCE, "fp16", tmp_path / "made.safetensors"))
    assert made.image_channels == 5


def test_families_are_not_mixed(tmp_path: Path) -> None:
    models = (info_of(write_family(tmp_path, "sdxl")), info_of(write_family(tmp_path, "sd2")))
    with pytest.raises(CheckpointError, match=r"not of the same architecture: model\.diffusion_model"):
        run(models, MergeMethod.WEIGHTED_SUM, "fp16", tmp_path / "mixed.safetensors")
