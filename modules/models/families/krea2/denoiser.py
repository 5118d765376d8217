"""Krea 2's transformer: sizes from the tensors, the module on the meta device, and how it is called."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.detection.families import PREFIX, QWEN3_VL
from modules.models.families.denoiser_context import (
    CLEAN_REFERENCE,
    ISOLATED_REFERENCE,
    REFERENCE,
    ModelInputs,
    single_references,
)
from modules.models.families.family import (
    Denoiser,
    DenoiserInputSizes,
    UsualSettings,
    check_heads,
    denoiser_alone,
    usual_by_name,
)
from modules.models.families.krea2.layout import PROJECTOR, transformer_keymap
from modules.models.families.packing import PATCH, packed, unpacked
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, on_meta, reading_sizes

AXES = (32, 48, 48)
HEAD_WIDTH = sum(AXES)
THETA = 1000.0
NORM_EPS = 1e-5
TRAINED_TIMESTEPS = 1000.0
SCALE = 5.5
"""Guidance of 4.5 as the original counts it, from 0 on."""
SKIP = (r"^img_in$", r"^time_embed\.", r"^time_mod_proj$", r"^txt_in\.", r"^text_fusion\.projector$", r"^final_layer\.")
"""Layers that 8-bit formats leave alone: those at the ends, and what the modulation of all blocks hangs on."""
NUMBERED = re.compile(rf"^{re.escape(PREFIX)}(.*?blocks)\.(\d+)\.")


class WideNorm(nn.Module):
    """RMS norm by 1 + `weight` in fp32, of any dtype that the weight is stored in: in 16 bits most of it would be lost
    next to 1."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """`x` [...,width], normed, in its own dtype."""
        gain = self.weight.float() + 1.0
        return F.rms_norm(x.float(), gain.shape, gain, NORM_EPS).to(x.dtype)


class Krea2TransformerBlock(nn.Module):
    """A block of diffusers' class of this name. The last `clean` tokens are at time 0, whose modulation is the last row
    of `temb` then, and `sight` [1,1,tokens,tokens] is False where a token does not see another one."""

    norm1: nn.Module
    norm2: nn.Module
    attn: nn.Module
    ff: nn.Module

    def __init__(self, block: Any) -> None:
        super().__init__()
        self.scale_shift_table = block.scale_shift_table
        for name, layer in block.named_children():
            self.add_module(name, layer)
        self.clean = 0
        self.sight: Tensor | None = None

    def forward(
        self, hidden_states: Tensor, temb: Tensor, image_rotary_emb: Any, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Return the hidden states [N,tokens,width] after the block; `temb` [N,1,6 * width], or [N + 1,1,6 * width]."""
        modulation = torch.unflatten(temb, -1, (6, -1)) + self.scale_shift_table
        scale, shift, gate, scale_after, shift_after, gate_after = modulation.unbind(-2)
        if self.sight is not None:
            attention_mask = self.sight if attention_mask is None else attention_mask & self.sight
        shifted = self._by_time(_shifted, self.norm1(hidden_states), scale, shift)
        attended = self.attn(shifted, attention_mask=attention_mask, image_rotary_emb=image_rotary_emb)
        hidden_states = hidden_states + self._by_time(torch.mul, attended, gate)
        shifted = self._by_time(_shifted, self.norm2(hidden_states), scale_after, shift_after)
        return hidden_states + self._by_time(torch.mul, self.ff(shifted), gate_after)

    def _by_time(self, function: Callable[..., Tensor], x: Tensor, *modulation: Tensor) -> Tensor:
        if not self.clean:
            return function(x, *modulation)
        noisy = function(x[:, : -self.clean], *(each[:-1] for each in modulation))
        return torch.cat([noisy, function(x[:, -self.clean :], *(each[-1:] for each in modulation))], dim=1)


def _shifted(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return (1.0 + scale) * x + shift


def _isolated(tokens: int, clean: int, device: torch.device) -> Tensor:
    """The `sight` of that many tokens, the last of which see only one another."""
    sight = torch.ones(1, 1, tokens, tokens, dtype=torch.bool, device=device)
    sight[..., tokens - clean :, : tokens - clean] = False
    return sight


@contextmanager
def _clean_tokens(transformer: Any, clean: int, sight: Tensor | None) -> Iterator[None]:
    """While open, the last `clean` tokens are at time 0, see `Krea2TransformerBlock`."""

    def without_clean(layer: nn.Module, given: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return given[0], given[1][: len(given[0])]

    hook = transformer.final_layer.register_forward_pre_hook(without_clean)
    try:
        for block in transformer.transformer_blocks:
            block.clean, block.sight = clean, sight
        yield
    finally:
        hook.remove()
        for block in transformer.transformer_blocks:
            block.clean, block.sight = 0, None


def context_width(header: Header) -> int | None:
    """Return the width of all states of the text encoder together."""
    entry, width = header.get(f"{PREFIX}{PROJECTOR}"), QWEN3_VL.width_in(header)
    return entry.shape[1] * width if entry is not None and width is not None and len(entry.shape) == 2 else None


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    counts: dict[str, int] = {}
    for match in map(NUMBERED.match, header):
        if match is not None:
            counts[match[1]] = max(counts.get(match[1], 0), int(match[2]) + 1)
    with reading_sizes():
        width, channels = header[f"{PREFIX}first.weight"].shape
        _, time = header[f"{PREFIX}tmlp.0.weight"].shape
        heads, kv_heads, head, mlp = _sizes(header, "blocks.0")
        (text,) = header[f"{PREFIX}txtmlp.0.scale"].shape
        _, states = header[f"{PREFIX}{PROJECTOR}"].shape
        text_heads, text_kv_heads, _, text_mlp = _sizes(header, "txtfusion.layerwise_blocks.0")
        layerwise, refiners = counts["txtfusion.layerwise_blocks"], counts["txtfusion.refiner_blocks"]
    if head == HEAD_WIDTH and width != heads * head:
        raise CheckpointError(
            f"its transformer is {width} wide, and its {heads} heads of {head} are {heads * head} wide together. The "
            "file is damaged, or its weights are in a format that is not known here: choose another file."
        )
    check_heads(width, head, HEAD_WIDTH)
    module = meta_module(
        "diffusers.Krea2Transformer2DModel",
        in_channels=channels,
        num_layers=counts["blocks"],
        attention_head_dim=head,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=mlp,
        timestep_embed_dim=time,
        text_hidden_dim=text,
        num_text_layers=states,
        text_num_attention_heads=text_heads,
        text_num_key_value_heads=text_kv_heads,
        text_intermediate_size=text_mlp,
        num_layerwise_text_blocks=layerwise,
        num_refiner_text_blocks=refiners,
        axes_dims_rope=AXES,
        rope_theta=THETA,
        norm_eps=NORM_EPS,
    )
    with on_meta():
        _widen_norms(module)
    for number, block in enumerate(module.transformer_blocks):
        module.transformer_blocks[number] = Krea2TransformerBlock(block)
    return Component("unet", module, transformer_keymap(header), (PREFIX,), NO_DENOISER, skip=SKIP)


def _sizes(header: Header, block: str) -> tuple[int, int, int, int]:
    """Heads, those of keys and values, their width, and the width of the feed-forward layer."""
    query, _ = header[f"{PREFIX}{block}.attn.wq.weight"].shape
    key, _ = header[f"{PREFIX}{block}.attn.wk.weight"].shape
    (head,) = header[f"{PREFIX}{block}.attn.qknorm.qnorm.scale"].shape
    mlp, _ = header[f"{PREFIX}{block}.mlp.gate.weight"].shape
    return query // head, key // head, head, mlp


def _widen_norms(module: nn.Module) -> None:
    norms = {name: layer for name, layer in module.named_modules() if type(layer).__name__ == "Krea2RMSNorm"}
    for name, layer in norms.items():
        module.set_submodule(name, WideNorm(layer.weight.shape[0]))


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents of an odd side are continued by their last row or column for it.
    References follow as frames of their own: each in the middle of the image, or where it is at time 0, from its corner
    on (ComfyUI pull request 14843)."""
    x, ids, (height, width) = packed(inputs.x)
    count, extra = len(ids), dict(inputs.extra)
    shown_as = next((name for name in (CLEAN_REFERENCE, ISOLATED_REFERENCE) if name in extra), REFERENCE)
    shown = single_references(extra.pop(shown_as, None), inputs.x.shape[1])
    for number, reference in enumerate(shown, 1):
        tokens, places, (high, wide) = packed(reference, number)
        if shown_as == REFERENCE:
            places = places + places.new_tensor([0, max(height - high, 0) / 2, max(width - wide, 0) / 2])
        x, ids = torch.cat([x, tokens], dim=1), torch.cat([ids, places])
    states, text = transformer.config.num_text_layers, inputs.crossattn.shape[1]
    times = inputs.timesteps.float() / TRAINED_TIMESTEPS
    at_zero: AbstractContextManager[None] = nullcontext()
    if shown_as != REFERENCE:
        times = torch.cat([times, times.new_zeros(1)])
        sight = _isolated(text + len(ids), len(ids) - count, x.device) if shown_as == ISOLATED_REFERENCE else None
        at_zero = _clean_tokens(transformer, len(ids) - count, sight)
    mask = None if inputs.mask is None or bool(inputs.mask.all()) else inputs.mask.to(x.device)
    with at_zero:
        output: Tensor = transformer(
            x,  # not by name: hooks look at it
            torch.unflatten(inputs.crossattn, -1, (states, -1)),
            times,
            torch.cat([ids.new_zeros(text, len(AXES)), ids]),
            encoder_attention_mask=mask,
            return_dict=False,
            **extra,
        )[0]
    return unpacked(output[:, :count], height, width)[..., : inputs.x.shape[-2], : inputs.x.shape[-1]]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.in_channels // PATCH**2, config.num_text_layers * config.text_hidden_dim)


DENOISER = Denoiser(
    build=denoiser_alone(transformer_component),
    run=run_transformer,
    sizes=transformer_inputs,
    usual_settings=usual_by_name(("turbo",), UsualSettings(steps=8), UsualSettings(steps=28, cfg_scale=SCALE)),
    takes_references=lambda transformer, name: True,
    edits_by_adapter=True,
)
