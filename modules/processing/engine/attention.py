"""Which way of attention a job uses, by setting, flags and machine, and how a diffusers network is told to use it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from modules.memory.attention import ATTENTIONS, Attention, AttentionOptions, upcast, xformers_problem
from modules.processing.engine.attention_options import AUTOMATIC, AttentionFlags
from modules.processing.engine.joint_attention import JointProcessor

if TYPE_CHECKING:
    from modules.models.loaded import LoadedModel
    from modules.processing.engine.precision import Machine
    from modules.settings.values import Settings


@dataclass(frozen=True)
class AttentionChoice:
    """`attention` None: the networks keep their own, PyTorch's scaled dot product attention."""

    name: str
    attention: Attention | None
    note: str | None = None  # what the user should know


def choose_attention(
    setting: str, upcasting: bool, flags: AttentionFlags, device: torch.device, dtype: torch.dtype
) -> AttentionChoice:
    """The setting wins over a flag, a flag over what Automatic stands for (PyTorch's own).

    Where xformers is wanted and unusable, PyTorch's own takes its place and the note says why. Raises
    `UnknownNameError` for a setting that names no way.
    """
    name, note = setting.split(" - ")[0].strip().lower(), None
    if name == AUTOMATIC.lower():
        name = flags.chosen or "sdp"
    name = ATTENTIONS.canonical(name)
    if name == "xformers":
        problem = xformers_problem(device, dtype)
        if problem is not None:
            name, note = "sdp", f"{problem}; PyTorch's own attention is used."
    options = AttentionOptions(
        query_chunk=flags.query_chunk, key_chunk=flags.key_chunk, threshold_percent=flags.threshold_percent
    )
    if name == "sdp" and not upcasting:
        return AttentionChoice(name, None, note)
    attention = ATTENTIONS.get(name)(options)
    return AttentionChoice(name, upcast(attention) if upcasting else attention, note)


def attention_of(settings: Settings, machine: Machine, model: LoadedModel) -> AttentionChoice:
    """The choice for a job with these settings on this model."""
    return choose_attention(
        settings.text("cross_attention_optimization"),
        settings.flag("upcast_attn"),
        machine.attention,
        model.device,
        model.plan.compute_dtype,
    )


@contextmanager
def using_attention(modules: Iterable[nn.Module], attention: Attention | None) -> Iterator[None]:
    """While open, every attention layer of diffusers' usual kind in `modules` computes by `attention`.

    Afterwards, also after an exception, each has the CPU object that it had. None touches nothing.
    """
    layers: list[Any] = []
    if attention is not None:
        layers = [layer for module in modules for layer in module.modules() if is_replaceable(layer)]
    before = [layer.processor for layer in layers]
    try:
        for layer in layers:
            assert attention is not None
            kind = JointProcessor if is_joint(layer) else Processor
            layer.processor = kind(attention, layer.processor)
        yield
    finally:
        for layer, processor in zip(layers, before, strict=True):
            layer.processor = processor


def is_replaceable(layer: nn.Module) -> bool:
    """Whether the layer is an attention of diffusers' with a plain processor: others mean something by theirs."""
    processor = getattr(layer, "processor", None)
    known = isinstance(processor, Processor) or type(processor).__name__ in ("AttnProcessor", "AttnProcessor2_0")
    return known or is_joint(layer)


def is_joint(layer: nn.Module) -> bool:
    """Whether it is an attention over image and text together."""
    processor = getattr(layer, "processor", None)
    return isinstance(processor, JointProcessor) or type(processor).__name__ == "JointAttnProcessor2_0"


class Processor:
    """Projects, attends, projects back; calls that need a mask or a spatial norm go to the layer's own processor."""

    def __init__(self, attention: Attention | None, own: Any) -> None:
        assert attention is not None
        self.attention = attention
        self.own = own

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        temb: Tensor | None = None,
        **rest: Any,
    ) -> Tensor:
        """Tokens [B,T,C] or feature maps [B,C,h,w] to the same shape."""
        if attention_mask is not None or attn.spatial_norm is not None:
            result: Tensor = self.own(attn, hidden_states, encoder_hidden_states, attention_mask, temb, **rest)
            return result
        x = hidden_states
        if x.ndim == 4:
            x = x.flatten(2).transpose(1, 2)
        if attn.group_norm is not None:
            x = attn.group_norm(x.transpose(1, 2)).transpose(1, 2)
        context = x if encoder_hidden_states is None else encoder_hidden_states
        if encoder_hidden_states is not None and attn.norm_cross:
            context = attn.norm_encoder_hidden_states(context)

        def heads(tokens: Tensor) -> Tensor:
            return tokens.view(*tokens.shape[:-1], attn.heads, -1).transpose(1, 2)

        query, key, value = heads(attn.to_q(x)), heads(attn.to_k(context)), heads(attn.to_v(context))
        query = query if attn.norm_q is None else attn.norm_q(query)
        key = key if attn.norm_k is None else attn.norm_k(key)
        x = self.attention(query, key, value).transpose(1, 2).flatten(2)
        x = attn.to_out[1](attn.to_out[0](x))
        if hidden_states.ndim == 4:
            x = x.transpose(1, 2).reshape(hidden_states.shape)
        if attn.residual_connection:
            x = x + hidden_states
        output: Tensor = x / attn.rescale_output_factor
        return output
