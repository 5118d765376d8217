"""FLUX.3's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import END, REFERENCE, ModelInputs, rows_by_length, single_references
from modules.models.families.exact_times import exact_times
from modules.models.families.family import Denoiser, DenoiserInputSizes, GuidanceType, UsualSettings, denoiser_alone
from modules.models.families.flux1.denoiser import HEAD_WIDTH, check_width
from modules.models.families.flux3.layout import IMAGE, SINGLE, TABLE, transformer_rows
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes

AXES = (32, 32, 32, 32)
THETA, NORM_EPS = 10_000, 1e-6
PLACE_SCALE = 0.5
"""Rows and columns of an image are counted in halves."""
TRAINED_TIMESTEPS = 1000.0
FLOW_MAP = "ref_time_in.in_layer.weight"
"""A tensor of models that were distilled to jump to a given time."""
SKIP = (
    *(r"^x_embedders\.", r"^context_embedder$", r"timestep_embedder\.", r"_stream_modulations\.", r"^norm_out\."),
    r"^proj_out$",
)
"""Layers that 8-bit formats leave alone: those at the ends and the modulation, which all blocks share."""


class ExactNorm(nn.Module):
    """RMS norm of fp32 by a weight of any dtype."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [...,width], normed."""
        return F.rms_norm(x, self.weight.shape, self.weight.float(), NORM_EPS)


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    with reading_sizes():
        width, channels = header[f"{PREFIX}emb_in.image.weight"].shape
        _, shown = header[f"{PREFIX}emb_in.image_cond.weight"].shape
        _, context = header[f"{PREFIX}txt_in.weight"].shape
        _, times = header[f"{PREFIX}time_in.in_layer.weight"].shape
        _, mlp = header[f"{PREFIX}{SINGLE.replace('{}', '0')}.mlp_out.weight"].shape
    check_width(width)
    module = meta_module(
        "diffusers.Flux3Transformer2DModel",
        in_channels=channels,
        cond_in_channels=shown,
        num_layers=TABLE.count(rows.sources, f"{IMAGE}.q_proj"),
        num_single_layers=TABLE.count(rows.sources, f"{SINGLE}.q_proj"),
        attention_head_dim=HEAD_WIDTH,
        num_attention_heads=width // HEAD_WIDTH,
        joint_attention_dim=context,
        timestep_channels=times,
        mlp_ratio=mlp / width,
        axes_dims_rope=AXES,
        rope_theta=THETA,
        eps=NORM_EPS,
        flow_map=f"{PREFIX}{FLOW_MAP}" in header,
    )
    for layer in list(module.modules()):
        if hasattr(layer, "norm_q"):
            layer.norm_q, layer.norm_k = ExactNorm(HEAD_WIDTH), ExactNorm(HEAD_WIDTH)
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents are packed already; references are tokens of their own. Where it is not
    said where the step ends, a distilled model gives the velocity at its time. Texts of unequal length are called one
    after the other: their padding is read."""
    height, width = inputs.x.shape[-2:]
    x, output = inputs.x.flatten(2).transpose(1, 2), torch.empty_like(inputs.x)
    for rows, own in rows_by_length(inputs):
        extra, times = dict(own.extra), own.timesteps.float()
        end, stacked = extra.pop(END, None), extra.pop(REFERENCE, None)
        target = times if not isinstance(end, Tensor) else end.float() * TRAINED_TIMESTEPS
        shown = single_references(stacked, inputs.x.shape[1])
        if shown:
            extra["image_cond_hidden_states"] = torch.cat([each.flatten(2).transpose(1, 2) for each in shown], dim=1)
            extra["image_cond_ids"] = torch.cat([_places(each, -number) for number, each in enumerate(shown, 1)])
        if transformer.config.flow_map:
            extra["target_timestep"] = target / TRAINED_TIMESTEPS
        words = torch.zeros(own.crossattn.shape[1], len(AXES), device=x.device)
        words[:, 3] = torch.arange(len(words), device=x.device)
        with exact_times(transformer, times, None, target):
            found = transformer(
                x[rows],  # not by name: hooks look at it
                encoder_hidden_states=own.crossattn,
                timestep=times / TRAINED_TIMESTEPS,
                img_ids=_places(inputs.x),
                txt_ids=words,
                return_dict=False,
                **extra,
            )[0]
        output[rows] = found.transpose(1, 2).unflatten(2, (height, width))
    return output


def _places(x: Tensor, number: int = 0) -> Tensor:
    """Positions [T,4] of the tokens of latents [B,C,h,w]: time, row, column, and the number of a reference, below 0."""
    height, width = x.shape[-2:]
    ids = torch.zeros(height, width, len(AXES), device=x.device)
    ids[..., 1] = torch.arange(height, device=x.device)[:, None] * PLACE_SCALE
    ids[..., 2] = torch.arange(width, device=x.device)[None, :] * PLACE_SCALE
    ids[..., 3] = number
    return ids.reshape(-1, len(AXES))


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    return DenoiserInputSizes(transformer.config.in_channels, transformer.config.joint_attention_dim)


def _is_distilled(transformer: Any) -> bool:
    return bool(transformer.config.flow_map)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    guidance=lambda transformer: GuidanceType.NONE if _is_distilled(transformer) else GuidanceType.CFG,
    usual_settings=lambda transformer, name: (
        UsualSettings(steps=16) if _is_distilled(transformer) else UsualSettings(steps=50, cfg_scale=3.5)
    ),
    takes_references=lambda transformer, name: True,
    reads_end=_is_distilled,
)
