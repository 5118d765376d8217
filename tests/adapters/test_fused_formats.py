"""Adapters of all kinds for a layer that is one in the file and three in the model (query, key and value), against
matrices written out: on weights in every kind of format, resident and streamed."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F

from lib_training.base_model import load_base
from modules.adapters.adapter_facts import AdapterError
from modules.adapters.adapter_file import read_adapter_file
from modules.adapters.applying import AdapterApplier, LoraMode, Use
from modules.adapters.targets import TargetTable
from modules.memory.layer import full_weight
from modules.models.loading.loaded import LoadedModel
from tests.adapters.test_fused_layers import NoFullPrecision
from tests.models.dit_files import recipe_tensors, write_split
from tests.models.gguf_files import write_gguf
from tests.recordings import CONFIGS

CPU, STRENGTH, RANK = torch.device("cpu"), 0.7, 3
Tensors = dict[str, Tensor]
GENERATOR = torch.Generator().manual_seed(8)


def normal(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR) / 8


def lora(alpha: float | None) -> Tensors:
    found = {"lora_down.weight": normal(RANK, 256), "lora_up.weight": normal(768, RANK)}
    return found if alpha is None else {**found, "alpha": torch.tensor(alpha)}


def delta(tensors: Tensors) -> Tensor:
    scale = float(tensors["alpha"]) / RANK if "alpha" in tensors else 1.0
    return scale * tensors["lora_up.weight"] @ tensors["lora_down.weight"]


def decomposed(weight: Tensor, tensors: Tensors) -> Tensor:
    """DoRA at full strength: directions of the sum, magnitudes of the file."""
    whole = weight + delta(tensors)
    over = 1 if len(tensors["dora_scale"]) == 768 else 0
    found: Tensor = whole / whole.norm(dim=over, keepdim=True) * tensors["dora_scale"] - weight
    return found


ROWS = {**lora(2.0), "dora_scale": normal(768, 1).abs() + 1, "diff_b": normal(768)}
COLUMNS = {**lora(1.5), "dora_scale": normal(1, 256).abs() + 1}
LOKR = {
    "lokr_w1": normal(8, 8),
    "lokr_w2_a": normal(96, RANK),
    "lokr_w2_b": normal(RANK, 32),
    "alpha": torch.tensor(2.0),
    "diff_b": normal(768),
}
IA3 = {"weight": normal(768), "on_input": torch.tensor(False)}
LAYERS: Mapping[str, tuple[Tensors, Callable[[Tensor], Tensor]]] = {
    "layers.0.attention.qkv": (ROWS, lambda weight: decomposed(weight, ROWS)),
    "layers.1.attention.qkv": (COLUMNS, lambda weight: decomposed(weight, COLUMNS)),
    "layers.2.attention.qkv": (
        LOKR,
        lambda weight: torch.kron(LOKR["lokr_w1"], LOKR["lokr_w2_a"] @ LOKR["lokr_w2_b"]) * 2 / RANK,
    ),
    "noise_refiner.0.attention.qkv": (IA3, lambda weight: weight * IA3["weight"][:, None]),
    "context_refiner.0.attention.qkv": (WITHOUT := lora(None), lambda weight: delta(WITHOUT)),
}
"""By a fused layer's name what a file holds of it, and what that adds to the whole weight [768, 256]."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("z_image")
    write_split(root, "zimage-turbo-cfg1")
    write_gguf(root / "Stable-diffusion" / "q8.gguf", recipe_tensors("z_image_tiny"), "Q8_0", "lumina2")
    tensors = {
        f"diffusion_model.{name}.{end}": part for name, (held, _) in LAYERS.items() for end, part in held.items()
    }
    save_file(tensors, root / "a.safetensors")
    return root


def opened(root: Path, storage: str, stream: str) -> LoadedModel:
    name = "q8.gguf" if storage == "gguf" else "z_image_tiny.safetensors"
    chosen = None if storage in ("gguf", "fp32") else storage
    path = root / "Stable-diffusion" / name
    return load_base(path, CONFIGS, chosen, CPU, stream, reads=lambda component: component == "unet")


def applier_of(model: LoadedModel) -> AdapterApplier:
    table = TargetTable({c.name: (c.module, c.keymap.to_original) for c in model.components})
    return AdapterApplier(table, NoFullPrecision(), CPU)


def parts_of(model: LoadedModel, name: str) -> list[torch.nn.Module]:
    return [model.unet.get_submodule(name.replace("qkv", f"to_{part}")) for part in "qkv"]


@pytest.mark.parametrize("stream", ["off", "layers"])
@pytest.mark.parametrize("storage", ["fp32", "fp8_e4m3fn_row", "int8_convrot", "gguf"])
def test_every_kind_does_on_the_parts_what_it_does_on_the_whole(root: Path, storage: str, stream: str) -> None:
    model = opened(root, storage, stream)
    x = torch.randn(2, 5, 256, generator=torch.Generator().manual_seed(1))
    wanted = {}
    with torch.no_grad():
        for name, (held, change) in LAYERS.items():
            weight = torch.cat([full_weight(layer) for layer in parts_of(model, name)])
            bias = STRENGTH * held["diff_b"] if "diff_b" in held else None
            wanted[name] = F.linear(x, weight + STRENGTH * change(weight), bias)
        applier = applier_of(model)
        file = {"a": read_adapter_file(root / "a.safetensors")}
        applier.apply([Use("a", "a", unet_strength=0.1)], file, LoraMode.EXACT)
        applier.apply([Use("a", "a", unet_strength=STRENGTH)], file, LoraMode.EXACT)  # strengths alone change
        found = {name: torch.cat([layer(x) for layer in parts_of(model, name)], dim=-1) for name in LAYERS}
        applier.remove()
    if model.streaming is not None:
        model.streaming.close()
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_layers_that_a_file_has_twice_are_applied_once(root: Path) -> None:
    """Some trainers write the fused layer besides its parts."""
    model = opened(root, "fp32", "off")
    whole = lora(None)
    up = whole["lora_up.weight"]
    tensors = {f"diffusion_model.layers.0.attention.qkv.{end}": part for end, part in whole.items()}
    for part, rows in zip("qkv", up.chunk(3), strict=True):
        stem = f"diffusion_model.layers.0.attention.to.{part}"
        tensors |= {
            f"{stem}.lora.down.weight": whole["lora_down.weight"].clone(),
            f"{stem}.lora.up.weight": rows.clone(),
        }
    save_file(tensors, root / "twice.safetensors")
    x = torch.randn(2, 256, generator=torch.Generator().manual_seed(1))
    applier = applier_of(model)
    with torch.no_grad():
        weight = torch.cat([full_weight(layer) for layer in parts_of(model, "layers.0.attention.qkv")])
        applier.apply([Use("a", "a")], {"a": read_adapter_file(root / "twice.safetensors")}, LoraMode.EXACT)
        found = torch.cat([layer(x) for layer in parts_of(model, "layers.0.attention.qkv")], dim=-1)
    torch.testing.assert_close(found, F.linear(x, weight + delta(whole)), rtol=1e-4, atol=1e-4)
    assert any("3 of its layers are in the file twice" in notice for notice in applier.notices)


def test_a_rotation_of_a_whole_layer_is_refused(root: Path) -> None:
    model = opened(root, "fp32", "off")
    save_file({"diffusion_model.layers.0.attention.qkv.oft_blocks": normal(4, 192, 192)}, root / "oft.safetensors")
    with pytest.raises(AdapterError, match="query, key and value together"):
        applier_of(model).apply([Use("a", "a")], {"a": read_adapter_file(root / "oft.safetensors")}, LoraMode.EXACT)
