"""ERNIE-Image's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

import re
from typing import Any

import torch
from torch import Tensor

from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import ModelInputs, text_lengths
from modules.models.families.ernie_image.layout import transformer_keymap
from modules.models.families.family import (
    Denoiser,
    DenoiserInputSizes,
    UsualSettings,
    check_heads,
    denoiser_alone,
    usual_by_name,
)
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes

AXES = (32, 48, 48)
HEAD_WIDTH = sum(AXES)
THETA = 256
SKIP = (
    *(r"^x_embedder\.", r"^text_proj$", r"^time_embedding\.", r"^adaLN_modulation\.", r"^final_norm\."),
    r"^final_linear$",
)
"""Layers that 8-bit formats leave alone: those at both ends, and the modulation, which all blocks share."""
NUMBERED = re.compile(rf"^{re.escape(PREFIX)}layers\.(\d+)\.")


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    blocks = max((int(match[1]) + 1 for match in map(NUMBERED.match, header) if match is not None), default=0)
    with reading_sizes():
        width, channels, patch, _ = header[f"{PREFIX}x_embedder.proj.weight"].shape
        _, text = header[f"{PREFIX}text_proj.weight"].shape
        mlp, _ = header[f"{PREFIX}layers.0.mlp.gate_proj.weight"].shape
        (head,) = header[f"{PREFIX}layers.0.self_attention.norm_q.weight"].shape
        out, _ = header[f"{PREFIX}final_linear.weight"].shape
    check_heads(width, head, HEAD_WIDTH)
    module = meta_module(
        "diffusers.ErnieImageTransformer2DModel",
        hidden_size=width,
        num_attention_heads=width // head,
        num_layers=blocks,
        ffn_hidden_size=mlp,
        in_channels=channels,
        out_channels=out // patch**2,
        patch_size=patch,
        text_in_dim=text,
        rope_theta=THETA,
        rope_axes_dim=AXES,
    )
    return Component("unet", module, transformer_keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents are packed already."""
    output: Tensor = transformer(
        inputs.x,  # not by name: hooks look at it
        inputs.timesteps.float(),
        inputs.crossattn,
        torch.tensor(text_lengths(inputs), device=inputs.x.device),
        return_dict=False,
        **inputs.extra,
    )[0]
    return output


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    return DenoiserInputSizes(transformer.config.in_channels, transformer.config.text_in_dim)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    usual_settings=usual_by_name(("turbo",), UsualSettings(steps=8), UsualSettings(steps=30, cfg_scale=4.0)),
)
