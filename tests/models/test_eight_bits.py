"""Checkpoints that are in 8 bits in the file: read as they are, refused where their numbers would be wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.layer import stored_state
from modules.models.opening.checkpoint import open_checkpoint
from tests.models.files import tiny_tensors, write_checkpoint
from tests.models.test_conversion import WEIGHT, convert, load
from tests.thorough import thoroughly

STEM = WEIGHT.removesuffix("weight")
LAYER = STEM.removesuffix(".")
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}


def narrow(dtype: torch.dtype = torch.float8_e4m3fn, rows: bool = False) -> tuple[dict[str, Tensor], Tensor]:
    """The tiny model's tensors with one weight in 8 bits, and the scale that belongs beside it."""
    tensors = tiny_tensors()
    weight = tensors[WEIGHT].float()
    peak = weight.abs().amax(dim=1, keepdim=True) if rows else weight.abs().max()
    scale = peak / LARGEST[dtype]
    return {**tensors, WEIGHT: (weight / scale).to(dtype)}, scale


def marker(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def the_layer(path: Path) -> torch.nn.Linear:
    layer = load(path, None).unet.down_blocks[0].attentions[0].transformer_blocks[0].ff.net[0].proj
    assert isinstance(layer, torch.nn.Linear)
    return layer


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize(
    ("scale_name", "rows"),
    [
        ("scale_weight", False),
        ("weight_scale", True),
        thoroughly("scale_weight", True),
        thoroughly("weight_scale", False),
    ],
)
def test_weights_with_scales_are_kept_as_they_are(
    scale_name: str, dtype: torch.dtype, rows: bool, tmp_path: Path
) -> None:
    tensors, scale = narrow(dtype, rows)
    tensors |= {STEM + scale_name: scale, STEM + "scale_input": torch.tensor(1.0)}
    tensors["scaled_fp8"] = torch.zeros(2, dtype=dtype)
    layer = the_layer(write_checkpoint(tmp_path / "others.safetensors", tensors))
    assert layer._parameters["weight"] is not None
    assert torch.equal(layer._parameters["weight"].view(torch.uint8), tensors[WEIGHT].view(torch.uint8))
    assert torch.equal(layer.weight, tensors[WEIGHT].float() * scale)


@pytest.mark.parametrize("dtype", LARGEST)
def test_a_format_that_is_declared_is_read(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors, scale = narrow(dtype)
    name = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}[dtype]
    declared = {"format": name, "full_precision_matrix_mult": True}
    tensors |= {STEM + "weight_scale": scale, STEM + "input_scale": torch.tensor(1.0)}
    tensors[STEM + "comfy_quant"] = marker(json.dumps(declared))
    path = write_checkpoint(tmp_path / "marked.safetensors", tensors)
    assert torch.equal(the_layer(path).weight, tensors[WEIGHT].float() * scale)
    del tensors[STEM + "comfy_quant"]
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": {LAYER: declared}})}
    save_file(tensors, path, metadata)
    assert torch.equal(the_layer(path).weight, tensors[WEIGHT].float() * scale)
    convert(tmp_path / "saved.safetensors", "fp16", path)
    with open_checkpoint(tmp_path / "saved.safetensors") as file:
        assert "_quantization_metadata" not in file.metadata  # the copy is in 16 bits
    kept = load_file(tmp_path / "saved.safetensors")[WEIGHT]
    assert torch.equal(kept, (tensors[WEIGHT].float() * scale).half())


def test_e5m2_with_scales_survives_saving(tmp_path: Path) -> None:
    tensors, scale = narrow(torch.float8_e5m2, rows=True)
    tensors[STEM + "weight_scale"] = scale
    source = write_checkpoint(tmp_path / "others.safetensors", tensors)
    convert(tmp_path / "saved.safetensors", "fp8_e4m3fn_row", source)
    saved = load_file(tmp_path / "saved.safetensors")
    assert torch.equal(saved[WEIGHT].view(torch.uint8), tensors[WEIGHT].view(torch.uint8))
    assert torch.equal(saved[STEM + "scale_weight"], scale.reshape(-1))
    layer = the_layer(tmp_path / "saved.safetensors")
    state = stored_state(layer)
    assert state is not None and state.formats["weight"].name == "fp8_e5m2_row"


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ('{"format": "awq_w4a16"}', "not understood: awq_w4a16 \\(1 layers: .*ff.net.0.proj"),
        ('{"format": "nvfp4"}', "declared to be nvfp4, but its dtype is float8_e4m3fn"),
        ('{"format": "int8_tensorwise", "params": {"convrot": true}}', "declared to be int8_convrot, but its dtype"),
        ('{"format": "float8_e5m2"}', "declared to be float8_e5m2, but its dtype is float8_e4m3fn"),
        ("[]", "not understood: None"),
        ("{", "comfy_quant is not JSON"),
    ],
)
def test_declarations_that_are_not_understood(declared: str, message: str, tmp_path: Path) -> None:
    tensors, scale = narrow()
    tensors |= {STEM + "weight_scale": scale, STEM + "comfy_quant": marker(declared)}
    path = write_checkpoint(tmp_path / "others.safetensors", tensors)
    for attempt in (lambda: load(path, None), lambda: convert(tmp_path / "x.safetensors", "fp16", path)):
        with pytest.raises(CheckpointError, match=message):
            attempt()


@pytest.mark.parametrize(
    ("dtype", "code"),
    [
        (torch.float8_e4m3fn, 0x7F),
        (torch.float8_e4m3fn, 0xFF),
        (torch.float8_e5m2, 0x7C),
        (torch.float8_e5m2, 0xFC),
        (torch.float8_e5m2, 0x7F),
    ],
)
def test_codes_that_are_not_finite_are_refused(dtype: torch.dtype, code: int, tmp_path: Path) -> None:
    tensors, scale = narrow(dtype)
    tensors[WEIGHT].view(torch.uint8)[3, 5] = code
    for beside in ({}, {STEM + "scale_weight": scale}):
        path = write_checkpoint(tmp_path / "broken.safetensors", {**tensors, **beside})
        for attempt in (
            lambda path=path: load(path, None),
            lambda path=path: convert(tmp_path / "x.safetensors", "fp16", path),
        ):
            with pytest.raises(CheckpointError, match=r"proj\.weight holds NaN or infinite"):
                attempt()


def test_all_finite_codes_are_taken(tmp_path: Path) -> None:
    for dtype, codes in ((torch.float8_e4m3fn, 0x7F), (torch.float8_e5m2, 0x7C)):
        tensors, _ = narrow(dtype)
        table = torch.cat([torch.arange(codes), torch.arange(128, 128 + codes)]).to(torch.uint8)
        tensors[WEIGHT].view(torch.uint8).reshape(-1)[: len(table)] = table
        layer = the_layer(write_checkpoint(tmp_path / "whole.safetensors", tensors))
        assert torch.equal(layer.weight, tensors[WEIGHT].float())


@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (torch.tensor(float("nan")), "scale_weight holds NaN"),
        (torch.tensor([float("inf")]), "scale_weight holds NaN"),
        (torch.ones(5), r"holds 5 numbers, but .*proj\.weight has 256 rows"),
        (torch.ones(256, 4), "holds 1024 numbers"),
        (torch.ones(0), "holds 0 numbers"),
    ],
)
def test_scales_that_cannot_be_used(scale: Tensor, message: str, tmp_path: Path) -> None:
    tensors, _ = narrow()
    path = write_checkpoint(tmp_path / "broken.safetensors", {**tensors, STEM + "scale_weight": scale})
    for attempt in (lambda: load(path, None), lambda: convert(tmp_path / "x.safetensors", "fp16", path)):
        with pytest.raises(CheckpointError, match=message):
            attempt()


def test_integers_without_a_scale_are_no_weights(tmp_path: Path) -> None:
    tensors, _ = narrow()
    for dtype in (torch.int8, torch.uint8):
        path = write_checkpoint(tmp_path / "x.safetensors", {**tensors, WEIGHT: tensors[WEIGHT].view(dtype)})
        with pytest.raises(CheckpointError, match=r"wrong shape or type: .*proj\.weight is u?int8"):
            load(path, None)


def test_a_scale_without_its_weight_is_surplus(tmp_path: Path) -> None:
    tensors = {**tiny_tensors(), "model.diffusion_model.nothing.scale_weight": torch.tensor(1.0)}
    with pytest.raises(CheckpointError, match=r"belong to no part of the model: model\.diffusion_model\.nothing"):
        load(write_checkpoint(tmp_path / "x.safetensors", tensors), None)


@pytest.mark.parametrize("shape", [(), (1,)])
def test_one_scale_of_a_fused_weight_is_that_of_its_parts(shape: tuple[int, ...], tmp_path: Path) -> None:
    prefix = "conditioner.embedders.0.model.transformer.resblocks.0.attn.in_proj"
    weight = (torch.randn(12, 4) * 100).to(torch.float8_e4m3fn)
    path = tmp_path / "fused.safetensors"
    save_file({f"{prefix}_weight": weight, f"{prefix}.scale_weight": torch.full(shape, 0.5)}, path)
    with open_checkpoint(path) as file:
        for index, part in enumerate("qkv"):
            stem = prefix.replace("in_proj", f"{part}_proj")
            rows = weight[index * 4 : index * 4 + 4]
            assert torch.equal(file.read(f"{stem}.weight").view(torch.uint8), rows.view(torch.uint8))
            assert file.read(f"{stem}.scale_weight").item() == 0.5
