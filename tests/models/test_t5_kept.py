"""SD3 checkpoints that hold T5, converted and merged: what is inside stays, what lies beside is left there."""

import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from lib_workbench.merging.conversion import report_precision, save_as
from lib_workbench.merging.merge import MergeResult, merge
from lib_workbench.merging.request import MergeMethod, MergeRequest
from modules.models.families.sd3.t5 import LEAVE_OUT
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.processing.engine.precision import storage_rules
from tests.models.diffusers_sd3_folders import write_sd3_folder
from tests.models.family_files import family_tensors
from tests.models.tiny_t5 import PREFIX, t5_tensors
from tests.recordings import CONFIGS

WEIGHT = f"{PREFIX}encoder.block.0.layer.1.DenseReluDense.wo.weight"
FORMATS = ("fp16", "fp8_e4m3fn_row")


def info_of(path: Path) -> CheckpointInfo:
    return CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name)


def write(folder: Path, name: str, t5: dict[str, Tensor] | None) -> CheckpointInfo:
    """A checkpoint `NAME.safetensors`, with T5 inside."""
    inside = {f"{PREFIX}{key}": tensor for key, tensor in (t5 or {}).items()}
    save_file({**family_tensors("sd3"), **inside}, folder / f"{name}.safetensors")
    return info_of(folder / f"{name}.safetensors")


def t5_in(path: Path) -> dict[str, Tensor]:
    return {key.removeprefix(PREFIX): tensor for key, tensor in load_file(path).items() if key.startswith(PREFIX)}


def half(t5: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: tensor / 2 for key, tensor in t5.items()}


def run(folder: Path, *models: CheckpointInfo, storage: str = "fp16", discard: str = "") -> MergeResult:
    request = MergeRequest(
        models=models,
        method=MergeMethod.WEIGHTED_SUM if len(models) > 1 else MergeMethod.NO_INTERPOLATION,
        multiplier=0.5,
        storage=storage,
        target=folder / "merged.safetensors",
        discard=re.compile(discard) if discard else None,
    )
    return merge(request, CONFIGS, storage_rules(storage), lambda info, _: info)


@pytest.mark.parametrize("storage", FORMATS)
def test_converting_keeps_what_is_inside_and_says_so(storage: str, tmp_path: Path) -> None:
    source, target = write(tmp_path, "with", t5_tensors()), tmp_path / "saved.safetensors"
    report = save_as(source, CONFIGS, storage_rules(storage), target)
    assert any("T5" in notice and "is kept" in notice for notice in report.notices)
    found, expected = t5_in(target), t5_tensors()
    assert expected.keys() <= found.keys()
    if storage == "fp16":
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    else:
        assert found[WEIGHT.removeprefix(PREFIX)].dtype == torch.float8_e4m3fn
        assert f"{WEIGHT.removeprefix(PREFIX).removesuffix('.weight')}.scale_weight" in found
    again = report_precision(info_of(target), CONFIGS, storage_rules("fp8_e4m3fn_row"))
    assert "text_encoder_3" in again.components()
    assert again.as_dict()["notices"] == list(again.notices) != []


def test_converting_with_text_encoders_kept_keeps_t5_wide(tmp_path: Path) -> None:
    source, target = write(tmp_path, "with", t5_tensors()), tmp_path / "saved.safetensors"
    save_as(source, CONFIGS, storage_rules("fp8_e4m3fn_row"), target, text_encoders=False)
    assert load_file(target)[WEIGHT].dtype == torch.float16


def test_a_folder_keeps_its_own_too(tmp_path: Path) -> None:
    folder, target = write_sd3_folder(tmp_path, "sd3", with_t5=True), tmp_path / "saved.safetensors"
    save_as(info_of(folder), CONFIGS, storage_rules("fp16"), target)
    assert t5_in(target).keys() == t5_tensors().keys()


def test_one_that_lies_beside_is_left_there(tmp_path: Path) -> None:
    (tmp_path / "Stable-diffusion").mkdir()
    (tmp_path / "text_encoder").mkdir()
    save_file(t5_tensors(), tmp_path / "text_encoder" / "t5xxl.safetensors")
    source, target = write(tmp_path / "Stable-diffusion", "without", None), tmp_path / "saved.safetensors"
    report = save_as(source, CONFIGS, storage_rules("fp16"), target)
    assert not report.notices and not t5_in(target)
    assert not run(tmp_path, source).notices and not t5_in(tmp_path / "merged.safetensors")


def test_merging_merges_both(tmp_path: Path) -> None:
    t5 = t5_tensors()
    result = run(tmp_path, write(tmp_path, "a", t5), write(tmp_path, "b", half(t5)), storage="fp32")
    assert [notice for notice in result.notices if "T5" in notice] == [
        f"T5 of a.safetensors is merged. To leave it out, discard {LEAVE_OUT}"
    ]
    found = t5_in(result.path)
    assert all(torch.allclose(found[key], tensor.float() * 0.75, atol=1e-6) for key, tensor in t5.items())


def test_merging_keeps_that_of_the_first(tmp_path: Path) -> None:
    t5 = t5_tensors()
    result = run(tmp_path, write(tmp_path, "a", t5), write(tmp_path, "b", None), storage="fp8_e4m3fn_row")
    assert any("T5 of a.safetensors is kept as it is there" in notice for notice in result.notices)
    assert load_file(result.path)[WEIGHT].dtype == torch.float8_e4m3fn


def test_merging_leaves_out_that_of_the_second_and_says_so(tmp_path: Path) -> None:
    result = run(tmp_path, write(tmp_path, "a", None), write(tmp_path, "b", t5_tensors()))
    assert any("T5 of b.safetensors is left out, because a.safetensors holds none" in text for text in result.notices)
    assert not t5_in(result.path)


def test_what_the_sentence_says_to_discard_leaves_it_out(tmp_path: Path) -> None:
    result = run(tmp_path, write(tmp_path, "a", t5_tensors()), discard=LEAVE_OUT)
    assert result.notices == ["T5 of a.safetensors is left out, as Discard weights says."]
    assert load_file(result.path).keys() == family_tensors("sd3").keys()
