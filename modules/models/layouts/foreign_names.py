"""What other programs call the tensors of files that hold less than a checkpoint, or one under names of their own.

A denoiser alone has the names of a whole checkpoint without their beginning, or those of diffusers.
stable-diffusion.cpp puts the text encoders of a converted checkpoint under transformers' names; llama.cpp has short
names for those of encoders with relative positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from modules.models.families.registry import FAMILIES
from modules.models.layouts.folder_layout import Header
from modules.models.layouts.renamed import renamed
from modules.models.reading.tensor_source import TensorSource

DENOISER = "model.diffusion_model."
TEXT_LEVEL = "text_model."
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
SHORT_SIGN = "enc.blk.0.attn_q.weight"
SHORT = {
    "token_embd": "shared",
    "enc.output_norm": "encoder.final_layer_norm",
    "attn_q": "layer.0.SelfAttention.q",
    "attn_k": "layer.0.SelfAttention.k",
    "attn_v": "layer.0.SelfAttention.v",
    "attn_o": "layer.0.SelfAttention.o",
    "attn_rel_b": "layer.0.SelfAttention.relative_attention_bias",
    "attn_norm": "layer.0.layer_norm",
    "ffn_gate": "layer.1.DenseReluDense.wi_0",
    "ffn_up": "layer.1.DenseReluDense.wi_1",
    "ffn_down": "layer.1.DenseReluDense.wo",
    "ffn_norm": "layer.1.layer_norm",
}
"""llama.cpp's names of an encoder with relative positions, and transformers'."""
SHORT_LAYER = re.compile(r"^enc\.blk\.(\d+)\.(\w+)\.(weight|bias)$")


def denoiser_names(header: Header) -> Mapping[str, str] | None:
    """Names in a whole checkpoint by those in the file of a denoiser alone; None for other files."""
    if any(key.startswith(DENOISER) for key in header):
        return None
    prefixed = {f"{DENOISER}{key}": entry for key, entry in header.items()}
    for _, family in FAMILIES.items():
        if family.detects_denoiser(prefixed):
            return {key: f"{DENOISER}{key}" for key in header}
    for _, family in FAMILIES.items():
        if all(sign in header for sign in family.folder.signs):
            return {key: f"{family.folder.denoiser}.{key}" for key in header}
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
        elif key.startswith("vae."):
            names[key] = f"first_stage_model.{key.removeprefix('vae.')}"
    return names


def _open_clip(name: str) -> str:
    """OpenCLIP's name of a tensor of transformers' text model; fused projections may still be one tensor."""
    layer = LAYER.match(name)
    if layer is not None and layer[2] in LAYER_PARTS:
        return f"transformer.resblocks.{layer[1]}.{LAYER_PARTS[layer[2]].format(layer[3])}"
    return INNER.get(name, name)


def bare_text_names(file: TensorSource) -> TensorSource:
    """A text encoder's file with transformers' names: without what is before `text_model.`, and llama.cpp's spelt
    out."""
    if SHORT_SIGN in file.entries:
        return renamed(file, {key: _spelt_out(key) for key in file.entries})
    levels = {key.partition(TEXT_LEVEL)[0] for key in file.entries if TEXT_LEVEL in key}
    level = next(iter(levels)) if len(levels) == 1 else ""
    return renamed(file, {key: key.removeprefix(level) for key in file.entries}) if level else file


def _spelt_out(key: str) -> str:
    match = SHORT_LAYER.match(key)
    if match is not None:
        return f"encoder.block.{match[1]}.{SHORT.get(match[2], match[2])}.{match[3]}"
    stem, _, leaf = key.rpartition(".")
    return f"{SHORT.get(stem, stem)}.{leaf}"
