"""The dry run and saving in another precision, on the tiny checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from lib_workbench.merging.conversion import PrecisionReport, report_precision, save_as
from modules.errors import CheckpointError, InvalidValueError, OutputError
from modules.memory.layer import stored_state
from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.models.files.tensor_writer import TensorWriter
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from modules.processing.engine.precision import storage_rules
from tests.models.dit_files import write_split
from tests.models.family_files import write_family
from tests.models.files import tiny_tensors, write_checkpoint
from tests.recordings import CONFIGS, TINY
from tests.thorough import pairs, usually

CONV_IN = "model.diffusion_model.input_blocks.0.0.weight"
WEIGHT = "model.diffusion_model.input_blocks.1.1.transformer_blocks.0.ff.net.0.proj.weight"
FP8 = ("fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row")


def info_of(path: Path) -> CheckpointInfo:
    return CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).get(path.name)


def load(path: Path, storage: str | None) -> LoadedModel:
    plan = PrecisionPlan(
        device=torch.device("cpu"),
        compute_dtype=torch.float32,
        vae_dtype=torch.float32,
        unet_storage=storage,
        text_storage=storage,
        skip=storage_rules(storage).skip.texts if storage else (),
    )
    return load_model(info_of(path), CONFIGS, lambda _: plan)


def stored_state_of(model: LoadedModel) -> dict[str, torch.Tensor]:
    return {f"{i}.{name}": t for i, part in enumerate(model.modules) for name, t in part.state_dict().items()}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def convert(target: Path, storage: str, source: Path = TINY) -> PrecisionReport:
    return save_as(info_of(source), CONFIGS, storage_rules(storage), target)


@pytest.mark.parametrize("storage", FP8)
def test_the_report_predicts_what_loading_does(storage: str) -> None:
    report = report_precision(info_of(TINY), CONFIGS, storage_rules(storage))
    model = load(TINY, storage)
    stored = sum(1 for part in model.modules for m in part.modules() if (s := stored_state(m)) for _ in s.formats)
    assert sum(tensor.storage is not None for tensor in report.tensors) == stored
    assert report.bytes_of("vae")[0] == report.bytes_of("vae")[1]
    unet_16, unet_stored = report.bytes_of("unet")
    assert 0.5 < unet_stored / unet_16 < 0.56
    assert 0 < report.mean_error < 0.2
    assert report.worst(3)[0].error >= report.worst(3)[2].error


def test_scales_make_the_error_small() -> None:
    plain = report_precision(info_of(TINY), CONFIGS, storage_rules("fp8_e4m3fn"))
    rows = report_precision(info_of(TINY), CONFIGS, storage_rules("fp8_e4m3fn_row"))
    assert rows.mean_error < 0.027 < plain.mean_error


@pytest.mark.parametrize("storage", usually(FP8, lambda name: name != "fp8_e5m2"))
def test_load_save_load_is_bit_equal(storage: str, tmp_path: Path) -> None:
    target = tmp_path / "saved.safetensors"
    convert(target, storage)
    direct, through_file = stored_state_of(load(TINY, storage)), stored_state_of(load(target, storage))
    assert set(direct) == set(through_file)
    for name, tensor in direct.items():
        assert tensor.dtype == through_file[name].dtype, name
        assert torch.equal(tensor.contiguous().view(torch.uint8), through_file[name].contiguous().view(torch.uint8)), (
            name
        )
    again = tmp_path / "again.safetensors"
    convert(again, storage, target)
    first, second = load_file(target), load_file(again)
    assert all(torch.equal(bits(first[name]), bits(second[name])) for name in first)


@pytest.mark.parametrize(
    ("family", "storage"),
    pairs(("sdxl-v", "sd2"), ("fp8_e4m3fn", "fp8_e4m3fn_row"), (("sdxl-v", "fp8_e4m3fn_row"), ("sd2", "fp8_e4m3fn"))),
)
def test_other_families_are_saved_in_their_original_layout(family: str, storage: str, tmp_path: Path) -> None:
    source, target = write_family(tmp_path, family), tmp_path / "saved.safetensors"
    convert(target, storage, source)
    before, after = load_file(source), load_file(target)
    dropped = {name for name in before if name not in after}
    assert not any(name.startswith(("model.", "v_pred", "ztsnr")) for name in dropped)
    assert all(name.endswith((".position_ids", ".logit_scale", ".text_projection")) for name in dropped)
    assert all(after[name].shape == before[name].shape for name in before if name in after)
    direct, through_file = stored_state_of(load(source, storage)), stored_state_of(load(target, storage))
    assert all(torch.equal(bits(direct[name]), bits(through_file[name])) for name in direct)
    assert load(target, storage).architecture == load(source, storage).architecture


def test_an_fp8_file_stays_fp8_when_fp8_is_off(tmp_path: Path) -> None:
    target = tmp_path / "saved.safetensors"
    convert(target, "fp8_e4m3fn_row")
    model = load(target, None)
    assert model.unet.state_dict()["down_blocks.0.resnets.0.conv1.weight"].dtype == torch.float8_e4m3fn
    fp32 = load(TINY, None)
    assert model.stored_bytes < fp32.stored_bytes


@pytest.mark.parametrize("storage", ["fp16", "bf16", "fp32"])
def test_saving_wide(storage: str, tmp_path: Path) -> None:
    target = tmp_path / "wide.safetensors"
    convert(target, storage)
    tensors, source = load_file(target), tiny_tensors()
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}[storage]
    assert torch.equal(tensors[WEIGHT], source[WEIGHT].to(dtype))
    assert load(target, None).parameters == load(TINY, None).parameters


def test_fp8_back_to_fp16(tmp_path: Path) -> None:
    narrow, wide = tmp_path / "narrow.safetensors", tmp_path / "wide.safetensors"
    convert(narrow, "fp8_e4m3fn_row")
    convert(wide, "fp16", narrow)
    tensors, source = load_file(wide), tiny_tensors()
    assert not any(name.endswith("scale_weight") for name in tensors)
    assert (tensors[WEIGHT].float() - source[WEIGHT].float()).norm() / source[WEIGHT].float().norm() < 0.03


def test_the_receipt_in_the_metadata(tmp_path: Path) -> None:
    target = tmp_path / "saved.safetensors"
    report = convert(target, "fp8_e4m3fn_row")
    with safe_open(target, "pt") as file:
        receipt = json.loads(file.metadata()["featherweight"])
        assert file.get_tensor(WEIGHT.removesuffix("weight") + "scale_weight").dtype == torch.float32
    assert receipt["storage"] == "fp8_e4m3fn_row"
    assert len(receipt["source_sha256"]) == 64
    assert receipt["version"].startswith("Featherweight")
    assert receipt["errors"][WEIGHT] == pytest.approx(
        next(tensor.error for tensor in report.tensors if tensor.name == WEIGHT), rel=0.01
    )


def test_a_weight_that_is_not_finite_is_named(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    tensors[WEIGHT] = tensors[WEIGHT].clone()
    tensors[WEIGHT][0, 0] = float("inf")
    path = write_checkpoint(tmp_path / "broken.safetensors", tensors)
    for attempt in (lambda: load(path, "fp8_e4m3fn"), lambda: convert(tmp_path / "x.safetensors", "int8_row", path)):
        with pytest.raises(CheckpointError, match=r"proj\.weight cannot be stored"):
            attempt()
    assert not (tmp_path / "x.safetensors").exists()
    assert not list(tmp_path.glob(".*.tmp"))


@pytest.mark.parametrize("storage", FP8)
def test_a_bias_that_is_not_finite_is_named_by_every_format(storage: str, tmp_path: Path) -> None:
    bias = WEIGHT.removesuffix("weight") + "bias"
    tensors = tiny_tensors()
    tensors[bias] = tensors[bias].clone()
    tensors[bias][1] = float("nan")
    path = write_checkpoint(tmp_path / "broken.safetensors", tensors)
    for attempt in (lambda: load(path, storage), lambda: convert(tmp_path / "x.safetensors", storage, path)):
        with pytest.raises(CheckpointError, match=r"proj\.bias (cannot be stored|holds NaN)"):
            attempt()


def test_saturation_while_loading_is_counted_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = tiny_tensors()
    tensors[CONV_IN] = tensors[CONV_IN].clone()
    tensors[CONV_IN][0, 0, 0, :2] = 1000
    model = load(write_checkpoint(tmp_path / "big.safetensors", tensors), "fp8_e4m3fn")
    assert model.saturated == {CONV_IN: 2}
    assert "beyond the range" in caplog.text


def test_wrong_targets(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "tiny.safetensors", tiny_tensors())
    with pytest.raises(InvalidValueError, match="being read"):
        convert(source, "fp16", source)
    with pytest.raises(InvalidValueError, match="safetensors"):
        convert(tmp_path / "x.ckpt", "fp16")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="file"):
        convert(tmp_path / "file" / "x.safetensors", "fp16")


def test_a_failing_writer_keeps_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "a.safetensors"
    target.write_bytes(b"old")
    with pytest.raises(ValueError, match="not written"), TensorWriter(target, {"a": (torch.float32, (2,))}):
        pass
    with pytest.raises(ValueError, match="declared"), TensorWriter(target, {"a": (torch.float32, (2,))}) as writer:
        writer.write("a", torch.zeros(3))
    assert target.read_bytes() == b"old"
    with TensorWriter(target, {"a": (torch.float32, (2,))}) as writer:
        writer.write("a", torch.ones(2))
        writer.metadata = {"x": "y"}
    assert torch.equal(load_file(target)["a"], torch.ones(2))


def test_a_denoiser_alone_stays_alone_where_that_is_asked_for(tmp_path: Path) -> None:
    source = write_split(tmp_path, "zimage-turbo-cfg1")
    names = {}
    for alone in (False, True):
        target = source.with_name("small.safetensors")
        save_as(info_of(source), CONFIGS, storage_rules("fp8_e4m3fn_row"), target, alone=alone)
        with safe_open(target, "pt") as file:
            names[alone] = {key.partition(".")[0] for key in file.keys()}  # noqa: SIM118
        assert (target.stat().st_size < source.stat().st_size) is alone
        target.unlink()
    assert names == {False: {"model", "text_encoders", "first_stage_model"}, True: {"model"}}
