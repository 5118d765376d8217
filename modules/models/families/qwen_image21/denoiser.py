"""Qwen-Image-2.1's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import ModelInputs, rows_by_length
from modules.models.families.family import Denoiser, DenoiserInputSizes, UsualSettings, denoiser_alone, usual_by_name
from modules.models.families.qwen_image.denoiser import AXES, DISTILLED, HEAD_WIDTH, rotations
from modules.models.families.qwen_image21.layout import BLOCK, TABLE, transformer_rows
from modules.models.libraries import library_name
from modules.models.names.component import Component, Header, on_meta

SLOT_SIDE = 2
"""Sides of images are multiples of so many tokens."""
TRAINED_TIMESTEPS, LONGEST_PERIOD = 1000.0, 10_000.0
MISSING_HINT = "It may be a text encoder or a VAE: choose the file of the denoiser."
SKIP = (r"^img_in$", r"^txt_in\.", r"^time_text_embed\.", r"^modulation\.", r"^norm_out\.", r"^proj_out$")
"""Layers that 8-bit formats leave alone: those at both ends, and the modulation, which all blocks share."""


class Positions(nn.Module):
    """The rotary embedding of diffusers' `QwenImage21Rope` for a text and the image behind it, without its tables, that
    a module on the meta device could not keep. A text's tokens are counted on all axes; an image follows at the next
    place, with its rows and columns counted from its middle."""

    def forward(self, count: int, size: tuple[int, int], device: torch.device) -> Tensor:
        """Complex [tokens,HEAD_WIDTH / 2] for a text of `count` tokens and an image of (rows, columns) tokens."""
        rows, columns = size
        words = torch.arange(count, device=device)
        down = torch.arange(rows, device=device) - (rows - rows // 2)
        across = torch.arange(columns, device=device) - (columns - columns // 2)
        grid = torch.meshgrid(down, across, indexing="ij")
        places = torch.stack([torch.full_like(grid[0], count), *grid]).flatten(1)
        return rotations(torch.cat([words.expand(len(AXES), -1), places], dim=1))


class Sinusoids(nn.Module):
    """The sinusoids of times without a buffer, which a module on the meta device could not keep."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._half = width // 2

    def forward(self, times: Tensor) -> Tensor:
        """[N,width] of times [N] in 0..1."""
        places = torch.arange(self._half, dtype=torch.float32, device=times.device) / self._half
        angles = TRAINED_TIMESTEPS * times.float()[:, None] * LONGEST_PERIOD**-places
        return torch.cat([angles.cos(), angles.sin()], dim=-1)


def _forward(self: Any, x: Tensor, texts: Tensor, times: Tensor, size: tuple[int, int]) -> Tensor:
    """The velocity of the tokens `x` [B,T,C] of images of (rows, columns) tokens, behind `texts` [B,n,width] without
    padding, at `times` [B] in 0..1: what diffusers' class computes without images to edit, whose places it looks up in
    a mask, so that shapes would depend on what a tensor holds. Texts are always at the time 0."""
    count = texts.shape[1]
    joint = torch.cat([self.txt_in(texts), self.img_in(x)], dim=1)
    is_image = torch.arange(joint.shape[1], device=x.device) >= count
    embedded = self.time_text_embed(torch.cat([times, times.new_zeros(1)]), joint)
    shared = self.modulation(embedded), self.pos_embed(count, size, x.device), None, is_image, None, None, None
    for block in self.transformer_blocks:
        arguments = (joint, *shared, [(0, count, True)], None)
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            joint = self._gradient_checkpointing_func(block, *arguments)
        else:
            joint = block(*arguments)
    velocity: Tensor = self.proj_out(self.norm_out(joint[:, count:], embedded, is_image[count:]))
    return velocity


@cache
def _behind_texts() -> type[nn.Module]:
    """Diffusers' class with that forward."""
    base = library_name("diffusers.QwenImage21Transformer2DModel")
    return type("QwenImage21BehindTexts", (base,), {"forward": _forward})


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    first = f"{PREFIX}{BLOCK.replace('{}', '0')}"
    try:
        width, channels = header[f"{PREFIX}img_in.weight"].shape
        (text,) = header[f"{PREFIX}txt_in.text_norm.weight"].shape
        (head,) = header[f"{first}.attn.norm_q.weight"].shape
        _, mlp = header[f"{first}.img_mlp.out.weight"].shape
        out, _ = header[f"{PREFIX}proj_out.weight"].shape
        _, times = header[f"{PREFIX}time_text_embed.timestep_embedder.linear_1.weight"].shape
    except (KeyError, ValueError) as error:
        raise CheckpointError(f"its transformer is not whole ({error} is missing or of another shape).") from error
    if head != HEAD_WIDTH or width % head or mlp % width:
        raise CheckpointError(
            f"its transformer is {width} wide with heads of {head} and feed-forward layers of {mlp}, and that of such "
            f"models has heads of {HEAD_WIDTH} and a multiple of the width. Choose another file."
        )
    with on_meta():
        module: Any = _behind_texts()(
            in_channels=channels,
            out_channels=out,
            num_layers=TABLE.count(rows.sources, f"{BLOCK}.attn.to_q"),
            attention_head_dim=head,
            num_attention_heads=width // head,
            context_in_dim=text,
            mlp_ratio=mlp // width,
            axes_dims_rope=AXES,
        )
    module.pos_embed = Positions()
    module.time_text_embed.time_proj = Sinusoids(times)
    return Component("unet", module, rows.keymap(), (PREFIX,), MISSING_HINT, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Texts of unequal length are called one after the other: padding would move the
    image behind them. Latents of an odd side are continued by their last row or column for it."""
    height, width = inputs.x.shape[-2:]
    x = F.pad(inputs.x, (0, -width % SLOT_SIDE, 0, -height % SLOT_SIDE), mode="replicate")
    size, output = x.shape[-2:], torch.empty_like(x)
    for rows, own in rows_by_length(inputs):
        tokens, times = x[rows].flatten(2).transpose(1, 2), own.timesteps.float() / TRAINED_TIMESTEPS
        found = transformer(tokens, own.crossattn, times, size, **own.extra)  # not by name: hooks look at it
        output[rows] = found.transpose(1, 2).unflatten(2, size)
    return output[..., :height, :width]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    return DenoiserInputSizes(transformer.config.in_channels, transformer.config.context_in_dim)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    rows=transformer_rows,
    usual_settings=usual_by_name(DISTILLED, UsualSettings(steps=8), UsualSettings(steps=40)),
)
