"""FLUX.2's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from typing import Any

import torch
from torch import Tensor

from modules.models.detection.families import FLUX_GUIDANCE, PREFIX
from modules.models.families.denoiser_context import REFERENCE, ModelInputs, single_references
from modules.models.families.exact_times import exact_times
from modules.models.families.family import Denoiser, DenoiserInputSizes, UsualSettings, denoiser_alone
from modules.models.families.flux1.denoiser import HEAD_WIDTH, check_width, guidance_of
from modules.models.families.flux2.layout import TABLE, transformer_rows, width_of
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes

AXES = (32, 32, 32, 32)
THETA = 2000
REFERENCE_TIME = 10
"""The position in time of an image that is shown next to the one that is made, whose is 0."""
TRAINED_TIMESTEPS = 1000.0
SKIP = (
    r"^x_embedder$",
    r"^context_embedder$",
    r"^time_guidance_embed\.",
    r"_modulation(_\w+)?\.",
    r"^norm_out\.",
    r"^proj_out$",
)
"""Layers that 8-bit formats leave alone: those at the ends and the modulation, which all blocks share."""


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    width = width_of(header)
    with reading_sizes():
        channels = header[f"{PREFIX}img_in.weight"].shape[1]
        context = header[f"{PREFIX}txt_in.weight"].shape[1]
        out = header[f"{PREFIX}final_layer.linear.weight"].shape[0]
        doubled, _ = header[f"{PREFIX}double_blocks.0.img_mlp.0.weight"].shape
        time = header[f"{PREFIX}time_in.in_layer.weight"].shape[1]
    check_width(width)
    module = meta_module(
        "diffusers.Flux2Transformer2DModel",
        in_channels=channels,
        out_channels=out,
        num_layers=TABLE.count(rows.sources, "double_blocks.{}.img_attn.qkv"),
        num_single_layers=TABLE.count(rows.sources, "single_blocks.{}.linear1"),
        attention_head_dim=HEAD_WIDTH,
        num_attention_heads=width // HEAD_WIDTH,
        joint_attention_dim=context,
        timestep_guidance_channels=time,
        mlp_ratio=doubled / 2 / width,
        axes_dims_rope=AXES,
        rope_theta=THETA,
        guidance_embeds=f"{PREFIX}{FLUX_GUIDANCE}" in header,
    )
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents are packed already; the tokens of references follow the
    image's, each at a time of its own."""
    height, width = inputs.x.shape[-2:]
    x, ids = inputs.x.flatten(2).transpose(1, 2), _places(inputs.x)
    count, extra = len(ids), dict(inputs.extra)
    shown = single_references(extra.pop(REFERENCE, None), inputs.x.shape[1])
    for number, reference in enumerate(shown, 1):
        x = torch.cat([x, reference.flatten(2).transpose(1, 2)], dim=1)
        ids = torch.cat([ids, _places(reference, number * REFERENCE_TIME)])
    text_ids = ids.new_zeros(inputs.crossattn.shape[1], len(AXES))
    text_ids[:, 3] = torch.arange(len(text_ids), device=ids.device)
    guidance = extra.pop("guidance", None)
    scale = guidance * TRAINED_TIMESTEPS if isinstance(guidance, Tensor) else None
    with exact_times(transformer.time_guidance_embed, inputs.timesteps, scale):
        output: Tensor = transformer(
            x,  # not by name: hooks look at it
            encoder_hidden_states=inputs.crossattn,
            timestep=inputs.timesteps / TRAINED_TIMESTEPS,
            img_ids=ids,
            txt_ids=text_ids,
            guidance=guidance,
            return_dict=False,
            **extra,
        )[0]
    return output[:, :count].transpose(1, 2).reshape(len(output), -1, height, width)


def _places(x: Tensor, time: int = 0) -> Tensor:
    """Positions [T,4] of the tokens of latents [B,C,h,w]: time, row, column, and the place in a text, 0."""
    height, width = x.shape[-2:]
    ids = torch.zeros(height, width, len(AXES), device=x.device)
    ids[..., 0] = time
    ids[..., 1] = torch.arange(height, device=x.device)[:, None]
    ids[..., 2] = torch.arange(width, device=x.device)[None, :]
    return ids.reshape(-1, len(AXES))


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels, config.joint_attention_dim)


def _usual_settings(transformer: Any, name: str) -> UsualSettings:
    """Give dev the scale that its authors use, and klein CFG where it is not distilled."""
    if transformer.config.guidance_embeds:
        return UsualSettings(steps=20, distilled_cfg_scale=4.0)
    return UsualSettings(steps=20, cfg_scale=4.0) if "base" in name.lower() else UsualSettings(steps=4)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    guidance=guidance_of,
    usual_settings=_usual_settings,
    takes_references=lambda transformer, name: True,
)
