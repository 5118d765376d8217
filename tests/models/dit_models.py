"""Tiny random models of transformer families: diffusers' module, and the files that users have of it."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    ChromaTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
    Flux2Transformer2DModel,
    FluxTransformer2DModel,
)
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3Model

from modules.models.autoencoders.kl import KlSizes
from modules.models.autoencoders.packed_kl import PackedKlAutoencoder
from modules.models.families.chroma.denoiser import TABLE as CHROMA
from modules.models.families.flux1.layout import TABLE as FLUX1
from modules.models.families.flux2.layout import TABLE as FLUX2
from modules.models.families.layer_table import LayerTable
from modules.models.files.tensor_file import TensorEntry
from modules.models.names.row_map import Source
from tests.models.dit_files import recipe_tensors

CONTEXT, VECTOR = 64, 128  # of the tiny text encoders
FLUX1_SIZES: dict[str, Any] = {
    "num_layers": 2,
    "num_single_layers": 2,
    "num_attention_heads": 1,
    "joint_attention_dim": CONTEXT,
}


@dataclass(frozen=True)
class TinyFamily:
    """`make` gives diffusers' transformer; `encoders` are recipes with their prefixes in whole files."""

    table: LayerTable
    make: Any
    sizes: Mapping[str, Any]
    encoders: Mapping[str, str]
    is_packed: bool = False

    def transformer(self) -> Any:
        """The same random numbers each time, large enough to count."""
        torch.manual_seed(0)
        module: nn.Module = self.make(**self.sizes).eval().requires_grad_(False)
        for name, parameter in module.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=1.5 / parameter.shape[1] ** 0.5)
            else:
                parameter.normal_(mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.1)
        return module

    def denoiser(self, prefix: str = "") -> dict[str, Tensor]:
        """The transformer's tensors in the original layout."""
        return original_tensors(self.table, self.transformer().state_dict(), prefix)

    def vae(self, prefix: str = "") -> dict[str, Tensor]:
        """The tensors of the VAE in the original layout."""
        if not self.is_packed:
            return recipe_tensors("flux_ae_tiny", prefix)
        component = packed_vae()
        tensors = {}
        for key, tensor in component.state_dict().items():
            name = str(PACKED.component().keymap.to_original(key)).removeprefix("first_stage_model.")
            there = tensor[:, :, None, None] if ".attn_1." in name and tensor.ndim == 2 else tensor
            tensors[f"{prefix}{name}"] = there.contiguous()
        return tensors


PACKED = PackedKlAutoencoder(KlSizes(3, 3, 32, (32, 32, 32, 32), 1))


@cache
def packed_vae() -> Any:
    """diffusers' module with random weights, which nobody changes."""
    module: nn.Module = PACKED.component().module.to_empty(device="cpu").eval().requires_grad_(False)
    torch.manual_seed(1)
    for name, tensor in module.state_dict().items():
        if name == "bn.running_var":
            tensor.uniform_(0.5, 2.0)
        elif tensor.is_floating_point():
            tensor.normal_(mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.05)
        else:
            tensor.zero_()
    return module


def tiny_qwen() -> Any:
    """transformers' model with the weights of the recipe "qwen3_4b_tiny"."""
    weights = {key: value.float() for key, value in recipe_tensors("qwen3_4b_tiny").items()}
    first = "model.layers.0"
    head = weights[f"{first}.self_attn.q_norm.weight"].shape[0]
    config = Qwen3Config(
        vocab_size=weights["model.embed_tokens.weight"].shape[0],
        hidden_size=64,
        intermediate_size=weights[f"{first}.mlp.gate_proj.weight"].shape[0],
        num_hidden_layers=sum(key.endswith("q_norm.weight") for key in weights),
        num_attention_heads=weights[f"{first}.self_attn.q_proj.weight"].shape[0] // head,
        num_key_value_heads=weights[f"{first}.self_attn.k_proj.weight"].shape[0] // head,
        head_dim=head,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": 1e6},
    )
    model = Qwen3Model(config).eval()
    model.load_state_dict({key.removeprefix("model."): value for key, value in weights.items()}, strict=False)
    return model


def flow_pipeline(
    kind: Any, transformer: Any, vae: Any, schedule: Mapping[str, Any], missing: Sequence[str] = ()
) -> Any:
    """A pipeline of diffusers without text encoders, with the scaling of FLUX.1's latents on a copy of `vae`; `missing`
    are other parts that it asks for."""
    own = deepcopy(vae)
    own.register_to_config(scaling_factor=0.3611, shift_factor=0.1159)
    parts = dict.fromkeys(("text_encoder", "tokenizer", *missing))
    pipe = kind(scheduler=FlowMatchEulerDiscreteScheduler(**schedule), vae=own, transformer=transformer, **parts)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def original_tensors(table: LayerTable, state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """What a file in the original layout holds of diffusers' tensors."""
    header = {name: TensorEntry(tensor.dtype, tuple(tensor.shape), 0, 0) for name, tensor in state.items()}
    keymap, _ = table.folder_names(header, prefix)
    pieces: dict[str, list[tuple[int, Tensor]]] = {}
    for name, tensor in state.items():
        source = Source.of(str(keymap.to_original(name)))
        rows = source.rows or ((0, len(tensor)),)
        for (begin, _), piece in zip(rows, torch.split(tensor, [end - begin for begin, end in rows]), strict=True):
            pieces.setdefault(source.key, []).append((begin, piece))
    return {
        key: torch.cat([piece for _, piece in sorted(parts, key=lambda part: part[0])]) for key, parts in pieces.items()
    }


T5_AND_CLIP = {"t5xxl_tiny": "text_encoders.t5xxl.transformer.", "clip_l_tiny": "text_encoders.clip_l.transformer."}
DEV = {**FLUX1_SIZES, "pooled_projection_dim": VECTOR, "guidance_embeds": True}
TINY = {
    "dev": TinyFamily(FLUX1, FluxTransformer2DModel, DEV, T5_AND_CLIP),
    "fill": TinyFamily(FLUX1, FluxTransformer2DModel, {**DEV, "in_channels": 384, "out_channels": 64}, T5_AND_CLIP),
    "klein": TinyFamily(
        FLUX2,
        Flux2Transformer2DModel,
        {
            **FLUX1_SIZES,
            "joint_attention_dim": 3 * CONTEXT,
            "timestep_guidance_channels": 256,
            "guidance_embeds": False,
        },
        {"qwen3_4b_tiny": "text_encoders.qwen3_4b.transformer."},
        is_packed=True,
    ),
    "chroma": TinyFamily(
        CHROMA,
        ChromaTransformer2DModel,
        {**FLUX1_SIZES, "approximator_hidden_dim": 64, "approximator_layers": 2},
        {"t5xxl_tiny": "text_encoders.t5xxl.transformer."},
    ),
}


def write_parts(root: Path, family: TinyFamily, name: str = "model") -> Path:
    """The denoiser, text encoders and VAE as files of their own in the folders for them; returns the denoiser's."""
    for folder in ("text_encoder", "VAE", "Stable-diffusion"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    for recipe in family.encoders:
        save_file(recipe_tensors(recipe), root / "text_encoder" / f"{recipe}.safetensors")
    save_file(family.vae(), root / "VAE" / "vae.safetensors")
    path = root / "Stable-diffusion" / f"{name}.safetensors"
    save_file(family.denoiser(), path)
    return path


def write_in_one(root: Path, family: TinyFamily, name: str = "model") -> Path:
    """The same as one file."""
    tensors = {**family.denoiser("model.diffusion_model."), **family.vae("vae.")}
    for recipe, prefix in family.encoders.items():
        tensors |= recipe_tensors(recipe, prefix)
    path = root / "Stable-diffusion" / f"{name}.safetensors"
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)
    return path
