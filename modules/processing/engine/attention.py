"""Which way of attention a job uses, by setting, flags and machine, and how diffusers' models are asked to use it.

While it is in use a way is a backend of diffusers' attention dispatch, so every transformer whose processors call the
dispatch has it. Processors that call PyTorch's attention themselves (those of UNets and VAEs, and of joint attention
over image and text) are replaced by ours, which call the dispatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from math import isclose
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from modules.memory.attention import ATTENTIONS, Attention, AttentionOptions, upcast, xformers_problem
from modules.memory.hook_chain import replace_attribute
from modules.memory.kernels.support import attention_problem
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.attention_options import AUTOMATIC, AttentionFlags

if TYPE_CHECKING:
    from diffusers.models.attention_dispatch import AttentionBackendName

    from modules.memory.kernels.support import KernelSupport
    from modules.models.loading.loaded import LoadedModel
    from modules.processing.engine.precision import Machine
    from modules.settings.values import Settings


@dataclass(frozen=True)
class AttentionChoice:
    """`attention` None: the models keep their own, PyTorch's scaled dot product attention."""

    name: str
    attention: Attention | None
    note: str | None = None  # what the user should know


def choose_attention(
    setting: str,
    upcasting: bool,
    flags: AttentionFlags,
    device: torch.device,
    dtype: torch.dtype,
    int8: Callable[[], KernelSupport] | None = None,
) -> AttentionChoice:
    """The setting wins over a flag, a flag over what Automatic stands for: `int8` where that is given and pays, else
    PyTorch's own.

    Where xformers or int8 is wanted and unusable, PyTorch's own takes its place and the note says why. Raises
    `UnknownNameError` for a setting that names no way.
    """
    name, note = setting.split(" - ")[0].strip().lower(), None
    if name == AUTOMATIC.lower():
        name = flags.chosen or ("int8" if int8 is not None and not upcasting and int8().pays else "sdp")
    name = ATTENTIONS.canonical(name)
    problem = None
    if name == "xformers":
        problem = xformers_problem(device, dtype)
    elif name == "int8":
        problem = attention_problem() if device.type == "cpu" else "int8 attention is for the CPU"
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
        settings.optimizations.cross_attention_optimization,
        settings.stable_diffusion.upcast_attn,
        machine.attention,
        model.device,
        model.plan.compute_dtype,
        # Where rounding to 8 bits was chosen for the products already. Else it is there for those who ask for it.
        machine.int8_attention if model.plan.mode is ComputeMode.INT8_MATMUL else None,
    )


@contextmanager
def using_attention(modules: Iterable[nn.Module], attention: Attention | None) -> Iterator[None]:
    """While open, every attention layer of diffusers in `modules` computes by `attention`; None changes nothing.

    Afterwards, also after an exception, each layer has the processor, and each processor the backend, that it had.
    Processors that are neither in the table nor call the dispatch are left alone.
    """
    if attention is None:
        yield
        return
    with ExitStack() as undo:
        backend = undo.enter_context(_registered(attention))
        for layer in [layer for module in modules for layer in module.modules()]:
            own: Any = getattr(layer, "processor", None)
            ours = _replacements().get(type(own))
            if ours is not None:
                undo.callback(replace_attribute(layer, "processor", ours(backend, own)).remove)
            elif hasattr(own, "_attention_backend"):
                undo.callback(replace_attribute(own, "_attention_backend", backend).remove)
        yield


@contextmanager
def _registered(attention: Attention) -> Iterator[AttentionBackendName]:
    """A backend of diffusers' dispatch that computes by `attention`, registered while open.

    The dispatch has no public way to register one: it takes members of an enum, so this makes one of its own.
    """
    from diffusers.models import attention_dispatch
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """[B,T,H,D] to [B,T,H,D]; with a mask, dropout, another scale or shared heads by PyTorch's own attention."""
        is_plain = attn_mask is None and dropout_p == 0 and not is_causal and key.shape[2] == query.shape[2]
        if not is_plain or (scale is not None and not isclose(scale, query.shape[-1] ** -0.5)):
            result: Tensor = attention_dispatch.dispatch_attention_fn(
                *(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa),
                backend=AttentionBackendName.NATIVE,
            )
            return result
        return attention(*(tensor.transpose(1, 2) for tensor in (query, key, value))).transpose(1, 2)

    registry: Any = _AttentionBackendRegistry
    backend: Any = str.__new__(AttentionBackendName, f"attention-{id(attend)}")
    backend._name_ = backend._value_ = str.__str__(backend)
    registry.register(backend)(attend)
    try:
        yield backend
    finally:
        for table in (registry._backends, registry._constraints, registry._supported_arg_names):
            del table[backend]


@cache
def _replacements() -> Mapping[type, type[Processor | JointProcessor | RotaryProcessor]]:
    """Which processor of ours does the work of which of diffusers'. Ours are in it too: the innermost use counts."""
    from diffusers.models.attention_processor import AttnProcessor, AttnProcessor2_0, JointAttnProcessor2_0
    from diffusers.models.transformers.transformer_cosmos import CosmosAttnProcessor2_0

    return {
        CosmosAttnProcessor2_0: RotaryProcessor,
        RotaryProcessor: RotaryProcessor,
        AttnProcessor: Processor,
        AttnProcessor2_0: Processor,
        Processor: Processor,
        JointAttnProcessor2_0: JointProcessor,
        JointProcessor: JointProcessor,
    }


def _dispatched(query: Tensor, key: Tensor, value: Tensor, backend: AttentionBackendName) -> Tensor:
    """Attention over [B,T,H,D] by a backend of the dispatch, [B,T,H*D]."""
    from diffusers.models.attention_dispatch import dispatch_attention_fn

    result: Tensor = dispatch_attention_fn(query, key, value, backend=backend)
    return result.flatten(2)


def _heads(tokens: Tensor, count: int, norm: Any = None) -> Tensor:
    """[B,T,C] to [B,T,H,D], normed over D."""
    split = tokens.view(*tokens.shape[:-1], count, -1)
    normed: Tensor = split if norm is None else norm(split)
    return normed


class Processor:
    """Projects, attends, projects back; calls that need a mask or a spatial norm go to the layer's own processor."""

    def __init__(self, backend: AttentionBackendName, own: Any) -> None:
        self.backend = backend
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
        query, key = _heads(attn.to_q(x), attn.heads, attn.norm_q), _heads(attn.to_k(context), attn.heads, attn.norm_k)
        x = _dispatched(query, key, _heads(attn.to_v(context), attn.heads), self.backend)
        x = attn.to_out[1](attn.to_out[0](x))
        if hidden_states.ndim == 4:
            x = x.transpose(1, 2).reshape(hidden_states.shape)
        if attn.residual_connection:
            x = x + hidden_states
        output: Tensor = x / attn.rescale_output_factor
        return output


class JointProcessor:
    """Attention in which the tokens of image and text see each other (Esser et al. 2024, arXiv:2403.03206): projects
    both, attends over all, projects back."""

    def __init__(self, backend: AttentionBackendName, own: Any) -> None:
        self.backend = backend
        self.own = own

    def __call__(
        self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Tensor | None = None, **rest: Any
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Tokens of the image [B,T,C], and of the text [B,S,C] where those are given, to the same shapes."""
        if rest.get("attention_mask") is not None:
            result: Tensor | tuple[Tensor, Tensor] = self.own(attn, hidden_states, encoder_hidden_states, **rest)
            return result
        x, text, count = hidden_states, encoder_hidden_states, attn.heads
        query, key = _heads(attn.to_q(x), count, attn.norm_q), _heads(attn.to_k(x), count, attn.norm_k)
        value = _heads(attn.to_v(x), count)
        if text is not None:
            query = torch.cat([query, _heads(attn.add_q_proj(text), count, attn.norm_added_q)], dim=1)
            key = torch.cat([key, _heads(attn.add_k_proj(text), count, attn.norm_added_k)], dim=1)
            value = torch.cat([value, _heads(attn.add_v_proj(text), count)], dim=1)
        out = _dispatched(query, key, value, self.backend)
        image: Tensor = attn.to_out[1](attn.to_out[0](out[:, : x.shape[1]]))
        if text is None:
            return image
        words = out[:, x.shape[1] :]
        return image, words if attn.context_pre_only else attn.to_add_out(words)


class RotaryProcessor:
    """Attention with normed queries and keys that are turned by their positions (Su et al. 2021, arXiv:2104.09864):
    projects, attends, projects back."""

    def __init__(self, backend: AttentionBackendName, own: Any) -> None:
        self.backend = backend
        self.own = own

    def __call__(
        self,
        attn: Any,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        image_rotary_emb: Any = None,
    ) -> Tensor:
        """Tokens [B,T,C] to the same shape; over those of a text [B,S,D] where they are given."""
        if attention_mask is not None:
            result: Tensor = self.own(attn, hidden_states, encoder_hidden_states, attention_mask, image_rotary_emb)
            return result
        seen = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        query = _heads(attn.to_q(hidden_states), attn.heads, attn.norm_q)
        key = _heads(attn.to_k(seen), attn.heads, attn.norm_k)
        if image_rotary_emb is not None:
            query, key = _turned(query, image_rotary_emb), _turned(key, image_rotary_emb)
        out = _dispatched(query, key, _heads(attn.to_v(seen), attn.heads), self.backend).type_as(query)
        output: Tensor = attn.to_out[1](attn.to_out[0](out))
        return output


def _turned(tokens: Tensor, positions: Any) -> Tensor:
    """[B,T,H,D] turned by the cosines and sines of their positions, halves of D together."""
    from diffusers.models.embeddings import apply_rotary_emb

    turned: Tensor = apply_rotary_emb(tokens, positions, use_real=True, use_real_unbind_dim=-2, sequence_dim=1)
    return turned
