"""Qwen-Image-2.1's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.detection.families import PREFIX
from modules.models.families.denoiser_context import REFERENCE, ModelInputs, rows_by_length, single_references
from modules.models.families.family import (
    Denoiser,
    DenoiserInputSizes,
    UsualSettings,
    check_heads,
    denoiser_alone,
    usual_by_name,
)
from modules.models.families.qwen_image.denoiser import AXES, DISTILLED, HEAD_WIDTH, rotations
from modules.models.families.qwen_image21.layout import BLOCK, TABLE, transformer_rows
from modules.models.libraries import library_name
from modules.models.names.component import NO_DENOISER, Component, Header, on_meta, reading_sizes
from modules.models.text_encoders.llm_layers import IMAGE_TOKEN
from modules.models.text_encoders.llm_texts import SEEN, ImageWords
from modules.models.text_encoders.tokenizers import LlmTokenizer

SLOT_SIDE = 2
"""Sides of images are multiples of so many tokens."""
USER = "<|im_start|>user\n"
IMAGES = ImageWords(f"<image{{}}>{SEEN}", lambda image: image, between=" ", are_left_out=True)
"""Beginning of the texts that the denoiser is given, and the images in them, whose latents take their places."""
TRAINED_TIMESTEPS, LONGEST_PERIOD = 1000.0, 10_000.0
SKIP = (r"^img_in$", r"^txt_in\.", r"^time_text_embed\.", r"^modulation\.", r"^norm_out\.", r"^proj_out$")
"""Layers that 8-bit formats leave alone: those at both ends, and the modulation, which all blocks share."""


class Positions(nn.Module):
    """The rotary embedding of diffusers' `QwenImage21Rope` for texts with an image behind each, without its tables,
    that a module on the meta device could not keep. A text's tokens are counted on all axes; an image follows at the
    next place, with its rows and columns counted from its middle, and what is behind it goes on by its longer side."""

    def forward(self, counts: Sequence[int], sizes: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
        """Complex [tokens,HEAD_WIDTH / 2] for texts of `counts` tokens and images of (rows, columns) tokens."""
        found, place = list[Tensor](), 0
        for count, (rows, columns) in zip(counts, sizes, strict=True):
            words = torch.arange(place, place + count, device=device)
            down = torch.arange(rows, device=device) - (rows - rows // 2)
            across = torch.arange(columns, device=device) - (columns - columns // 2)
            grid = torch.meshgrid(down, across, indexing="ij")
            places = torch.stack([torch.full_like(grid[0], place + count), *grid]).flatten(1)
            found += [words.expand(len(AXES), -1), places]
            place += count + max(rows, columns)
        return rotations(torch.cat(found, dim=1))


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


def _forward(
    self: Any, x: Tensor, texts: Tensor, times: Tensor, size: tuple[int, int], shown: Sequence[Tensor] = ()
) -> Tensor:
    """The velocity of the tokens `x` [B,T,C] of images of (rows, columns) tokens, behind `texts` [B,n,width] without
    padding, at `times` [B] in 0..1, with the images that are `shown` [B,C,h,w] in the texts: what diffusers' class
    computes, but that looks their places up in a mask, so that shapes would depend on what a tensor holds. Texts and
    what is shown are always at the time 0."""
    words, images = self.txt_in(texts), [*(_tokens(each) for each in shown), x]
    parts, segments, start, end = list[Tensor](), list[tuple[int, int, bool]](), 0, 0
    places, sizes = [*image_places(len(shown)), texts.shape[1]], [*(each.shape[-2:] for each in shown), size]
    for place, image in zip(places, images, strict=True):
        for part, is_text in ((words[:, start:place], True), (self.img_in(image), False)):
            parts.append(part)
            segments.append((end, end + part.shape[1], is_text))
            end += part.shape[1]
        start = place
    counts, joint, (count, _, _) = [part.shape[1] for part in parts[::2]], torch.cat(parts, dim=1), segments.pop()
    is_image = torch.arange(joint.shape[1], device=x.device) >= count
    embedded = self.time_text_embed(torch.cat([times, times.new_zeros(1)]), joint)
    shared = self.modulation(embedded), self.pos_embed(counts, sizes, x.device), None, is_image, None, None, None
    for block in self.transformer_blocks:
        arguments = (joint, *shared, segments, None)
        if torch.is_grad_enabled() and self.gradient_checkpointing:
            joint = self._gradient_checkpointing_func(block, *arguments)
        else:
            joint = block(*arguments)
    velocity: Tensor = self.proj_out(self.norm_out(joint[:, count:], embedded, is_image[count:]))
    return velocity


@cache
def image_places(count: int) -> tuple[int, ...]:
    """Return how many tokens of a text, without those of images, are in front of each of so many images in it."""
    ids = LlmTokenizer.standard().ids(f"{USER}{IMAGES.before(count)}")
    places = (place for place, token in enumerate(ids) if token == IMAGE_TOKEN)
    return tuple(place - number for number, place in enumerate(places))


def _tokens(latents: Tensor) -> Tensor:
    return latents.flatten(2).transpose(1, 2)


@cache
def _behind_texts() -> type[nn.Module]:
    """Diffusers' class with that forward."""
    base = library_name("diffusers.QwenImage21Transformer2DModel")
    return type("QwenImage21BehindTexts", (base,), {"forward": _forward})


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    rows = transformer_rows(header)
    first = f"{PREFIX}{BLOCK.replace('{}', '0')}"
    with reading_sizes():
        width, channels = header[f"{PREFIX}img_in.weight"].shape
        (text,) = header[f"{PREFIX}txt_in.text_norm.weight"].shape
        (head,) = header[f"{first}.attn.norm_q.weight"].shape
        _, mlp = header[f"{first}.img_mlp.out.weight"].shape
        out, _ = header[f"{PREFIX}proj_out.weight"].shape
        _, times = header[f"{PREFIX}time_text_embed.timestep_embedder.linear_1.weight"].shape
    check_heads(width, head, HEAD_WIDTH)
    if mlp % width:
        raise CheckpointError(
            f"its transformer is {width} wide with feed-forward layers of {mlp}, and those of such models are a "
            "multiple of its width. Choose another file."
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
    return Component("unet", module, rows.keymap(), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Texts of unequal length are called one after the other: padding would move the
    image behind them. Latents of an odd side are continued by their last row or column for it. References are in the
    text, behind the words in front of each."""
    height, width = inputs.x.shape[-2:]
    x = F.pad(inputs.x, (0, -width % SLOT_SIDE, 0, -height % SLOT_SIDE), mode="replicate")
    size, output = x.shape[-2:], torch.empty_like(x)
    for rows, own in rows_by_length(inputs):
        extra, times = dict(own.extra), own.timesteps.float() / TRAINED_TIMESTEPS
        shown = single_references(extra.pop(REFERENCE, None), x.shape[1])
        found = transformer(_tokens(x[rows]), own.crossattn, times, size, shown, **extra)  # not by name: hooks look
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
    takes_references=lambda transformer, name: True,
    references_in_text=True,
)
