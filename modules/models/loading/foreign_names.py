"""What other programs call the tensors of files that hold less than a checkpoint, or one under names of their own.

A denoiser alone has the names of a whole checkpoint without their beginning, or those of diffusers.
stable-diffusion.cpp puts the text encoders of a converted checkpoint under transformers' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from modules.models.families.family import ModelFamily
from modules.models.names.folder_layout import Header

DENOISER = "model.diffusion_model."
LEVELS = (f"{DENOISER}net.", DENOISER, "diffusion_model.", "net.", "model.", "module.", "_orig_mod.", "dit.")
"""What is before the names of a denoiser in files of different programs, and where a module was saved with what was put
around it."""
VAE = "vae."
SECOND_ENCODER = re.compile(r"^cond_stage_model\.1\.transformer\.text_model\.")
FIRST_ENCODER = re.compile(r"^cond_stage_model\.transformer\.text_model\.")
OPEN_CLIP_WIDTH = 1024  # of the one whose original layout is OpenCLIP's and that is the only encoder
INNER = {
    "embeddings.token_embedding.weight": "token_embedding.weight",
    "embeddings.position_embedding.weight": "positional_embedding",
    "final_layer_norm.weight": "ln_final.weight",
    "final_layer_norm.bias": "ln_final.bias",
    "text_projection": "text_projection",
    "text_projection.weight": "text_projection",
}
LAYER = re.compile(r"^encoder\.layers\.(\d+)\.(.+)\.(weight|bias)$")
LAYER_PARTS = {
    "layer_norm1": "ln_1.{}",
    "layer_norm2": "ln_2.{}",
    "mlp.fc1": "mlp.c_fc.{}",
    "mlp.fc2": "mlp.c_proj.{}",
    "self_attn.out_proj": "attn.out_proj.{}",
    "self_attn.in_proj": "attn.in_proj_{}",
    "self_attn.q_proj": "attn.q_proj.{}",
    "self_attn.k_proj": "attn.k_proj.{}",
    "self_attn.v_proj": "attn.v_proj.{}",
}
"""Of a layer: transformers' name, and OpenCLIP's with a place for "weight" or "bias"."""


def denoiser_names(header: Header, families: Sequence[ModelFamily]) -> Mapping[str, str] | None:
    """Names in a whole checkpoint by those in the file of a denoiser alone; None for other files."""
    for level in LEVELS:
        if level != DENOISER and any(key.startswith(level) for key in header):
            names = {key: f"{DENOISER}{key.removeprefix(level)}" if key.startswith(level) else key for key in header}
            renamed = {names[key]: entry for key, entry in header.items()}
            if any(family.detects_denoiser(renamed) for family in families):
                return names
    if any(family.detects_denoiser(header) for family in families):
        return None
    prefixed = {f"{DENOISER}{key}": entry for key, entry in header.items()}
    if any(family.detects_denoiser(prefixed) for family in families):
        return {key: f"{DENOISER}{key}" for key in header}
    for level in ("", *LEVELS):
        for family in families:
            if all(f"{level}{sign}" in header for sign in family.folder.signs):
                ours = f"{family.folder.denoiser}."
                return {key: f"{ours}{key.removeprefix(level)}" if key.startswith(level) else key for key in header}
    return None


def checkpoint_names(header: Header) -> Mapping[str, str]:
    """Names in the original layout by those that stable-diffusion.cpp gave a checkpoint; no others."""
    two = any(SECOND_ENCODER.match(key) for key in header)
    width = next((entry.shape[0] for key, entry in header.items() if key.endswith(".final_layer_norm.weight")), 0)
    names: dict[str, str] = {}
    for key in header:
        second, first = SECOND_ENCODER.match(key), FIRST_ENCODER.match(key)
        if second is not None:
            names[key] = f"conditioner.embedders.1.model.{_open_clip(key[second.end() :])}"
        elif first is not None and two:
            names[key] = f"conditioner.embedders.0.transformer.{key.removeprefix('cond_stage_model.transformer.')}"
        elif first is not None and width == OPEN_CLIP_WIDTH:
            names[key] = f"cond_stage_model.model.{_open_clip(key[first.end() :])}"
        elif key.startswith("text_encoders.") and key.endswith(".text_model.text_projection"):
            names[key] = key.replace(".text_model.text_projection", ".text_projection.weight")
    return names


def part_names(header: Header, families: Sequence[ModelFamily]) -> Mapping[str, str] | None:
    """Other names of the tensors of a whole checkpoint that calls its VAE `vae.`, or a part by an alias of its family;
    None for other files."""
    if not any(key.startswith(DENOISER) for key in header):
        return None
    beginnings = [(VAE, "first_stage_model.")]
    for family in families:
        if family.aliases and family.detects_denoiser(header):
            beginnings += [(f"{alias}.", f"{ours}.") for alias, ours in family.aliases]
    names = {
        key: f"{ours}{key.removeprefix(theirs)}"
        for theirs, ours in beginnings
        for key in header
        if key.startswith(theirs)
    }
    return names or None


def _open_clip(name: str) -> str:
    """OpenCLIP's name of a tensor of transformers' text model; fused projections may still be one tensor."""
    layer = LAYER.match(name)
    if layer is not None and layer[2] in LAYER_PARTS:
        return f"transformer.resblocks.{layer[1]}.{LAYER_PARTS[layer[2]].format(layer[3])}"
    return INNER.get(name, name)
