"""Qwen-Image's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import REFERENCE, ModelInputs, single_references
from modules.models.families.exact_times import exact_times
from modules.models.families.family import (
    Denoiser,
    DenoiserInputSizes,
    GuidanceType,
    UsualSettings,
    check_heads,
    denoiser_alone,
    usual_by_name,
)
from modules.models.families.packing import PATCH, packed, unpacked
from modules.models.families.qwen_image.layout import EDIT_MARK, transformer_keymap
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes

AXES = (16, 56, 56)
HEAD_WIDTH = sum(AXES)
THETA = 10_000.0
TRAINED_TIMESTEPS = 1000.0
LAYERED = "time_text_embed.addition_t_embedding.weight"
"""What Qwen-Image-Layered has beside the tensors of the others."""
DISTILLED = ("lightning", "turbo", "rapid")
"""In the names of models for few steps."""
EDITING = ("edit", "rapid-aio", "rapid_aio")
"""In the names of models that edit images."""
SKIP = (r"^img_in$", r"^txt_in$", r"^time_text_embed\.", r"^norm_out\.", r"^proj_out$")
"""Layers that 8-bit formats leave alone: those at both ends. The modulation inside of the blocks is a third of all."""
NUMBERED = re.compile(rf"^{re.escape(PREFIX)}transformer_blocks\.(\d+)\.")


class Positions(nn.Module):
    """The rotary embedding of diffusers' `QwenEmbedRope` without its tables of complex numbers, which a module on the
    meta device could not keep. An image's rows and columns are counted from its middle, on the first axis images follow
    each other; a text's tokens are counted on all axes from behind the largest of them."""

    def forward(
        self, shapes: list[list[tuple[int, int, int]]], max_txt_seq_len: int, device: torch.device
    ) -> tuple[Tensor, Tensor]:
        """Complex [tokens of the images,HEAD_WIDTH / 2] and [max_txt_seq_len,HEAD_WIDTH / 2] for the image that is made
        and those that are shown, of (1, rows, columns) tokens each; all rows of the batch have the same sizes."""
        grids = []
        for number, (_, rows, columns) in enumerate(shapes[0]):
            down = torch.arange(rows, device=device) - (rows - rows // 2)
            across = torch.arange(columns, device=device) - (columns - columns // 2)
            numbers = torch.full((rows, columns), number, device=device)
            grids.append(torch.stack([numbers, *torch.meshgrid(down, across, indexing="ij")]).flatten(1))
        behind = torch.arange(max_txt_seq_len, device=device) + max(max(shape[1:]) // 2 for shape in shapes[0])
        return rotations(torch.cat(grids, dim=1)), rotations(behind.expand(len(AXES), -1))


def rotations(positions: Tensor) -> Tensor:
    """Complex [T,HEAD_WIDTH / 2] of positions [axes,T]."""
    angles = []
    for axis, width in zip(positions.float(), AXES, strict=True):
        steps = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device) / width
        angles.append(torch.outer(axis, 1.0 / THETA**steps))
    turns = torch.cat(angles, dim=1)
    return torch.polar(torch.ones_like(turns), turns)


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole or another model."""
    if f"{PREFIX}{LAYERED}" in header:
        raise CheckpointError(
            "it is Qwen-Image-Layered, which makes several layers of an image at once. That is not supported: choose "
            "Qwen-Image, or a model that was tuned from it."
        )
    blocks = max((int(match[1]) + 1 for match in map(NUMBERED.match, header) if match is not None), default=0)
    with reading_sizes():
        width, patched = header[f"{PREFIX}img_in.weight"].shape
        _, text = header[f"{PREFIX}txt_in.weight"].shape
        (head,) = header[f"{PREFIX}transformer_blocks.0.attn.norm_q.weight"].shape
        out, _ = header[f"{PREFIX}proj_out.weight"].shape
    check_heads(width, head, HEAD_WIDTH)
    module = meta_module(
        "diffusers.QwenImageTransformer2DModel",
        in_channels=patched,
        out_channels=out // PATCH**2,
        num_layers=blocks,
        attention_head_dim=head,
        num_attention_heads=width // head,
        joint_attention_dim=text,
        axes_dims_rope=AXES,
        zero_cond_t=EDIT_MARK in header,
    )
    module.pos_embed = Positions()
    return Component("unet", module, transformer_keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents of an odd side are continued by their last row or column for it; the
    tokens of references follow the image's."""
    x, _, (height, width) = packed(inputs.x)
    count, shapes, extra = x.shape[1], [(1, height, width)], dict(inputs.extra)
    for reference in single_references(extra.pop(REFERENCE, None), inputs.x.shape[1]):
        shown, _, size = packed(reference)
        x = torch.cat([x, shown], dim=1)
        shapes.append((1, *size))
    mask = None if inputs.mask is None or bool(inputs.mask.all()) else inputs.mask.to(x.device)
    times = inputs.timesteps / TRAINED_TIMESTEPS
    exact = times.float()
    if transformer.config.zero_cond_t:  # references are at time 0
        exact = torch.cat([exact, torch.zeros_like(exact)])
    with exact_times(transformer.time_text_embed, exact):
        output: Tensor = transformer(
            x,  # not by name: hooks look at it
            encoder_hidden_states=inputs.crossattn,
            encoder_hidden_states_mask=mask,
            timestep=times,
            img_shapes=[shapes] * len(x),
            return_dict=False,
            **extra,
        )[0]
    return unpacked(output[:, :count], height, width)[..., : inputs.x.shape[-2], : inputs.x.shape[-1]]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels // PATCH**2, config.joint_attention_dim)


def is_distilled(name: str) -> bool:
    """Return whether a checkpoint of this name was distilled to few steps."""
    return any(word in name.lower() for word in DISTILLED)


def edits(transformer: Any, name: str) -> bool:
    """Return whether a checkpoint of this name edits images; the first two editions have the tensors of Qwen-Image."""
    return bool(transformer.config.zero_cond_t) or any(word in name.lower() for word in EDITING)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    guidance=lambda transformer: GuidanceType.CFG_RESCALED,
    usual_settings=usual_by_name(DISTILLED, UsualSettings(steps=8), UsualSettings(steps=30, cfg_scale=4.0)),
    takes_references=edits,
)
