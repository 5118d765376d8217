"""LoRAs for SD3 in all names: on fused layers of the original layout they do what they do on the parts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import PrecisionPlan
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

BLOCK = "transformer_blocks.0.attn"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    path = write_family(tmp_path_factory.mktemp("sd3"), "sd3.5")
    info = CheckpointInfo(path, path.name, path.stat().st_size, path.stat().st_mtime_ns)
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=torch.float32, vae_dtype=torch.float32)
    return load_model(info, CONFIGS, lambda family: plan)


class NoFullPrecision:
    def read(self, component: str, key: str) -> Tensor:
        raise AssertionError

    def is_source(self, component: str, key: str) -> bool:
        return True

    def close(self) -> None:
        """Nothing is open."""


def outputs(model: LoadedModel, tensors: dict[str, Tensor], folder: Path) -> dict[str, Tensor]:
    """What the attention's projections and the last modulation make of one input with a network on."""
    save_file(tensors, folder / "a.safetensors")
    table = TargetTable({c.name: (c.module, c.keymap.to_original) for c in model.components})
    applier = AdapterApplier(table, NoFullPrecision(), torch.device("cpu"))
    applier.apply([Use("a", "a")], {"a": read_adapter_file(folder / "a.safetensors")}, LoraMode.EXACT)
    x = torch.randn(1, 3, 128, generator=torch.Generator().manual_seed(5))
    names = [f"{BLOCK}.to_{part}" for part in "qkv"] + ["norm_out.linear"]
    try:
        with torch.inference_mode():
            return {name: model.unet.get_submodule(name)(x) for name in names}
    finally:
        applier.remove()


def lora(name: str, out: int, style: str) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(len(style))
    down, up = torch.randn(4, 128, generator=generator) / 12, torch.randn(out, 4, generator=generator)
    ends = ("lora_A.weight", "lora_B.weight") if style == "peft" else ("lora_down.weight", "lora_up.weight")
    return {f"{name}.{ends[0]}": down, f"{name}.{ends[1]}": up}


@pytest.mark.parametrize("top", ["lora_unet", "model.diffusion_model"])
def test_a_lora_on_fused_projections_is_that_on_the_three(top: str, model: LoadedModel, tmp_path: Path) -> None:
    name = "joint_blocks.0.x_block.attn.qkv"
    whole = lora(f"{top}_{name.replace('.', '_')}" if top == "lora_unet" else f"{top}.{name}", 384, "kohya")
    down, up = whole.values()
    parts: dict[str, Tensor] = {}
    for part, rows in zip("qkv", up.chunk(3), strict=True):
        parts |= {
            f"transformer.{BLOCK}.to_{part}.lora_A.weight": down.clone(),
            f"transformer.{BLOCK}.to_{part}.lora_B.weight": rows.clone(),
        }
    ours, plain = outputs(model, whole, tmp_path), outputs(model, parts, tmp_path)
    for key in ours:
        torch.testing.assert_close(ours[key], plain[key])
    assert not torch.equal(
        ours[f"{BLOCK}.to_v"], outputs(model, lora("lora_unet_proj_out", 64, "x"), tmp_path)[f"{BLOCK}.to_v"]
    )


def test_a_whole_difference_is_split_and_swapped_too(model: LoadedModel, tmp_path: Path) -> None:
    diff = torch.randn(256, 128, generator=torch.Generator().manual_seed(2))
    ours = outputs(model, {"lora_unet_final_layer_adaLN_modulation_1.diff": diff}, tmp_path)["norm_out.linear"]
    swapped = torch.cat([diff[128:], diff[:128]])
    other = outputs(model, {"lora_unet_norm_out_linear.diff": swapped}, tmp_path)["norm_out.linear"]
    torch.testing.assert_close(ours, other)


@pytest.mark.parametrize(
    "name", ["lora_transformer_transformer_blocks_1_ff_net_2", "lora_unet_joint_blocks_1_x_block_mlp_fc2"]
)
def test_names_of_trainers_are_known(name: str, model: LoadedModel) -> None:
    table = TargetTable({c.name: (c.module, c.keymap.to_original) for c in model.components})
    target = table.find(name)
    assert target is not None and target.path == "transformer_blocks.1.ff.net.2"
