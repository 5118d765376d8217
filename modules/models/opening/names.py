"""Names of other programs for the tensors of a whole checkpoint.

stable-diffusion.cpp puts the text encoders of a converted checkpoint under transformers' names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from modules.models.detection.families import PREFIX
from modules.models.families.registry import denoiser_family_of
from modules.models.names.folder_layout import Header

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


def part_names(header: Header) -> Mapping[str, str]:
    """Return other names of the tensors of a whole checkpoint that calls its VAE `vae.`, or a part by an alias of its
    family; none for other files."""
    if not any(key.startswith(PREFIX) for key in header):
        return {}
    family = denoiser_family_of(header)
    aliases = () if family is None else family.aliases
    beginnings = [("vae.", "first_stage_model."), *((f"{alias}.", f"{ours}.") for alias, ours in aliases)]
    return {
        key: f"{ours}{key.removeprefix(theirs)}"
        for theirs, ours in beginnings
        for key in header
        if key.startswith(theirs)
    }


def _open_clip(name: str) -> str:
    """OpenCLIP's name of a tensor of transformers' text model; fused projections may still be one tensor."""
    layer = LAYER.match(name)
    if layer is not None and layer[2] in LAYER_PARTS:
        return f"transformer.resblocks.{layer[1]}.{LAYER_PARTS[layer[2]].format(layer[3])}"
    return INNER.get(name, name)
