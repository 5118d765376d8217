"""Weights in codes of other programs: written by `comfy-kitchen` and `bitsandbytes`, decoded here; and damaged ones."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.rotation import hadamard, rotate
from modules.models.files.coded_file import CodedFile, in_rows
from modules.models.files.tensor_source import open_tensors
from modules.models.loading.full_precision import FullPrecisionFile
from tests.models.family_files import family_tensors
from tests.models.test_gguf_files import load

FORMATS = ("nvfp4", "mxfp8", "int8_convrot", "bnb_nf4", "bnb_fp4", "bnb_nf4_nested")
SHAPE = (160, 256)


def marker(declared: dict[str, object]) -> Tensor:
    return torch.tensor(list(json.dumps(declared).encode()), dtype=torch.uint8)


def weight() -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(5)) / 30


def written(name: str, values: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """The tensors of a file in this format, made by its own program, and the weight that it decodes them to."""
    if name.startswith("bnb"):
        functional: Any = pytest.importorskip("bitsandbytes.functional")
        kind = name.split("_")[1]
        data, state = functional.quantize_4bit(values, quant_type=kind, compress_statistics="nested" in name)
        tensors = {"a.weight": data}
        tensors |= {f"a.weight.{key}": value for key, value in state.as_dict(packed=True).items()}
        return tensors, functional.dequantize_4bit(data, state)
    kitchen: Any = pytest.importorskip("comfy_kitchen")
    if name == "nvfp4":
        scale = values.abs().max() / (448 * 6)
        data, blocks = kitchen.quantize_nvfp4(values, scale)
        expected = kitchen.dequantize_nvfp4(data, scale, blocks, torch.float32)
        tensors = {"a.weight": data, "a.weight_scale": blocks, "a.weight_scale_2": scale}
        return tensors | {"a.comfy_quant": marker({"format": "nvfp4"})}, expected
    if name == "mxfp8":
        data, blocks = kitchen.quantize_mxfp8(values)
        expected = kitchen.dequantize_mxfp8(data, blocks, torch.float32)
        return {"a.weight": data, "a.weight_scale": blocks, "a.comfy_quant": marker({"format": "mxfp8"})}, expected
    theirs: Any = pytest.importorskip("comfy_kitchen.tensor.int8_utils")
    turned = theirs._rotate_weight(values, theirs._build_hadamard(256), 256)
    scale = turned.abs().amax(dim=1, keepdim=True) / 127
    data = (turned / scale).round().to(torch.int8)
    declared: dict[str, object] = {"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 256}
    tensors = {"a.weight": data, "a.weight_scale": scale, "a.comfy_quant": marker(declared | {"per_row": True})}
    return tensors, theirs._rotate_weight(data.float() * scale, theirs._build_hadamard(256).T, 256)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_decoded_as_their_own_program_does(name: str, tmp_path: Path) -> None:
    values = weight()
    tensors, expected = written(name, values)
    path = tmp_path / "coded.safetensors"
    save_file({key: value.contiguous() for key, value in tensors.items()} | {"b": torch.ones(2)}, path)
    with open_tensors(path) as file:
        assert isinstance(file, CodedFile)
        assert sorted(file.entries) == ["a.weight", "b"]
        decoded = file.read("a.weight")
        assert (file.entries["a.weight"].shape, decoded.dtype) == (SHAPE, torch.float32)
        assert torch.equal(file.read("b"), torch.ones(2))
    assert torch.allclose(decoded, expected.float().reshape(SHAPE), rtol=1e-5, atol=1e-6)
    assert float((decoded - values).norm() / values.norm()) < 0.13


def test_a_declaration_in_the_metadata_counts_as_one_beside_the_weight(tmp_path: Path) -> None:
    tensors, expected = written("mxfp8", weight())
    del tensors["a.comfy_quant"]
    layers = {"a": {"format": "mxfp8"}, "c": {"format": "float8_e4m3fn"}}
    metadata = {"_quantization_metadata": json.dumps({"format_version": "1.0", "layers": layers})}
    save_file(tensors, tmp_path / "a.safetensors", metadata)
    with open_tensors(tmp_path / "a.safetensors") as file:
        assert torch.allclose(file.read("a.weight"), expected.float())
        assert json.loads(file.metadata["_quantization_metadata"])["layers"] == {"c": {"format": "float8_e4m3fn"}}


def test_a_coded_layer_of_a_checkpoint_is_stored_as_the_plan_says_and_the_line_says_so(tmp_path: Path) -> None:
    tensors = family_tensors("sd1")
    stem = "model.diffusion_model.middle_block.1.transformer_blocks.0.ff.net.2"
    values = tensors.pop(f"{stem}.weight").float()
    coded, expected = written("nvfp4", values)
    tensors |= {key.replace("a.", f"{stem}.", 1): value.contiguous() for key, value in coded.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    model = load(tmp_path / "model.safetensors", storage="fp8_e4m3fn_row")
    assert "1 from nvfp4 to fp8_e4m3fn_row, expected error of the weights 2.6%" in model.stored_note
    file = FullPrecisionFile(model)
    key = next(key for part, key in model.sources if model.sources[part, key].original_key == f"{stem}.weight")
    assert torch.allclose(file.read("unet", key), expected.float())
    file.close()


def test_block_scales_lie_in_tiles() -> None:
    rows, columns = 200, 5
    places = torch.arange(256 * 8)
    found = in_rows(places, rows, columns)
    for row, column in ((0, 0), (33, 2), (127, 3), (128, 0), (199, 4)):
        tile = (row // 128) * 2 + column // 4
        inside = (row % 32) * 16 + (row % 128) // 32 * 4 + column % 4
        assert int(found[row, column]) == tile * 512 + inside


def test_the_rotation_is_its_own_inverse() -> None:
    values = weight()
    assert torch.allclose(rotate(rotate(values)), values, atol=1e-6)
    assert torch.allclose(rotate(values, 64)[0, 64:128], values[0, 64:128] @ hadamard(64), atol=1e-6)


def test_files_for_other_programs_kernels_are_refused_by_name(tmp_path: Path) -> None:
    save_file({"a.qweight": torch.ones(4, dtype=torch.int8), "a.wscales": torch.ones(2)}, tmp_path / "n.safetensors")
    with pytest.raises(CheckpointError, match=r"n\.safetensors: is a Nunchaku.*Use a copy in 16 bits"):
        open_tensors(tmp_path / "n.safetensors")


@pytest.mark.parametrize("name", FORMATS)
def test_damaged_ones_are_decoded_or_refused(name: str, tmp_path: Path) -> None:
    tensors, _ = written(name, weight()[:32, :256])
    path, draw = tmp_path / "a.safetensors", random.Random(2)
    save_file({key: value.contiguous() for key, value in tensors.items()}, path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    refused = 0
    for number in range(1000):
        data = bytearray(whole)
        for _ in range(draw.randint(1, 3)):
            at = draw.randrange(8, header) if number % 2 else draw.randrange(len(data))
            data[at] = draw.choice((0, 34, 48, 57, 93, 255, draw.randrange(256)))
        path.write_bytes(data)
        try:
            with open_tensors(path) as file:
                for key in file.entries:
                    file.read(key)
        except CheckpointError as error:
            assert str(error).startswith("a.safetensors: ")
            refused += 1
    assert refused > 100
