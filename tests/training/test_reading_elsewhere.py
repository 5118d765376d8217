"""Names in our files: read by diffusers' own loader, and by the names that kohya's trainer writes."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.loaders.lora_conversion_utils import (
    _convert_non_diffusers_lora_to_diffusers,
    _maybe_map_sgm_blocks_to_diffusers,
)
from safetensors.torch import save_file

from lib_training.base_model import load_base
from lib_training.config import config_of
from lib_training.names import file_tensors
from lib_training.trained import make_layers, take_over
from modules.adapters.adapter_file import read_adapter_file
from modules.models.families.family import LoraNaming
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

KOHYA_SD1 = (
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q",
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn2_to_out_0",
    "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_ff_net_0_proj",
    "lora_unet_mid_block_attentions_0_proj_in",
    "lora_te_text_model_encoder_layers_0_self_attn_q_proj",
    "lora_te_text_model_encoder_layers_2_mlp_fc2",
)
KOHYA_SDXL = (
    "lora_unet_input_blocks_3_1_transformer_blocks_0_attn1_to_q",
    "lora_unet_middle_block_1_proj_in",
    "lora_unet_output_blocks_0_1_transformer_blocks_0_ff_net_2",
    "lora_te1_text_model_encoder_layers_0_self_attn_q_proj",
    "lora_te2_text_model_encoder_layers_0_mlp_fc1",
)


def tensors_of(folder: Path, name: str, **adapter: Any) -> dict[str, torch.Tensor]:
    model = load_base(write_family(folder, name), CONFIGS, None, torch.device("cpu"))
    config = config_of({"adapter": {"rank": 2, "text_rank": 2, **adapter}})
    assert model.family.lora_base is not None
    return file_tensors(make_layers(model, config.adapter, 1), model.family.lora_base.naming)


@pytest.mark.parametrize(("name", "wanted"), [("sd1", KOHYA_SD1), ("sdxl", KOHYA_SDXL)])
def test_names_are_kohyas_and_diffusers_converts_them(tmp_path: Path, name: str, wanted: tuple[str, ...]) -> None:
    tensors = tensors_of(tmp_path, name, conv_rank=2)
    layers = {key.partition(".")[0] for key in tensors}
    assert set(wanted) <= layers
    assert {key.partition(".")[2] for key in tensors} == {"lora_down.weight", "lora_up.weight", "alpha"}
    if name == "sd1":
        converted, alphas = _convert_non_diffusers_lora_to_diffusers(dict(tensors))
        assert len(alphas) == len(layers)
        assert all(key.startswith(("unet.", "text_encoder.")) for key in converted)


def test_diffusers_maps_sdxls_blocks(tmp_path: Path) -> None:
    tensors = {key: tensor for key, tensor in tensors_of(tmp_path, "sdxl").items() if "lora_unet" in key}

    class Unet:  # of the tiny model
        layers_per_block = 1

    try:
        mapped = _maybe_map_sgm_blocks_to_diffusers(dict(tensors), Unet())
    except ValueError as error:  # a tiny UNet has fewer blocks than diffusers' table knows
        pytest.skip(str(error))
    converted, _ = _convert_non_diffusers_lora_to_diffusers(mapped)
    assert all(key.startswith("unet.") for key in converted)


def test_sd3_has_kohyas_names_with_fused_layers_in_one(tmp_path: Path) -> None:
    """`networks/lora_sd3.py` of kohya's trainer: lora_unet, lora_te1 and lora_te2, query, key and value in one."""
    model = load_base(write_family(tmp_path, "sd3"), CONFIGS, None, torch.device("cpu"))
    config = config_of({"adapter": {"rank": 4, "alpha": 2.0, "text_rank": 2}})
    layers = make_layers(model, config.adapter, 1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for each in layers:
            for parameter in each.parameters.values():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
    assert model.family.lora_base is not None
    tensors = file_tensors(layers, model.family.lora_base.naming, torch.float32)
    names = {key.partition(".")[0] for key in tensors}
    block = "lora_unet_joint_blocks_0"
    assert {f"{block}_x_block_attn_qkv", f"{block}_context_block_attn_qkv", f"{block}_x_block_mlp_fc1"} <= names
    assert {name.split("_")[1] for name in names} == {"unet", "te1", "te2"}
    fused = f"{block}_x_block_attn_qkv"
    delta = tensors[f"{fused}.lora_up.weight"] @ tensors[f"{fused}.lora_down.weight"]
    delta *= tensors[f"{fused}.alpha"] / len(tensors[f"{fused}.lora_down.weight"])
    parts = [next(each for each in layers if each.dotted.endswith(f"blocks.0.attn.to_{one}")) for one in "qkv"]
    wanted = [part.parameters["lora_up.weight"] @ part.parameters["lora_down.weight"] * 0.5 for part in parts]
    assert torch.allclose(delta, torch.cat(wanted), atol=1e-5)

    path = tmp_path / "toy.safetensors"
    save_file(tensors, path)
    start = make_layers(model, config.adapter, 2)
    take_over(start, read_adapter_file(path), path.name)
    both = zip(layers, start, strict=True)
    assert all(torch.equal(one.parameters[key], other.parameters[key]) for one, other in both for key in one.parameters)


def test_sd3_has_the_names_of_peft_with_the_scale_in_the_factors(tmp_path: Path) -> None:
    model = load_base(write_family(tmp_path, "sd3"), CONFIGS, None, torch.device("cpu"))
    config = config_of({"adapter": {"rank": 4, "alpha": 2.0}})
    layers = make_layers(model, config.adapter, 1)
    with torch.no_grad():
        layers[0].parameters["lora_up.weight"].fill_(1.0)
    tensors = file_tensors(layers, LoraNaming.PEFT)
    assert "transformer.transformer_blocks.0.attn.to_q.lora_A.weight" in tensors
    assert all(key.endswith((".lora_A.weight", ".lora_B.weight")) for key in tensors)
    assert torch.all(tensors[f"{layers[0].dotted}.lora_B.weight"] == 0.5)
