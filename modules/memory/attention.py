"""Ways to compute attention: all give the same result up to rounding, and differ in memory and speed.

Each takes query [B,H,T,D], key and value [B,H,S,D] of one dtype on one device, scales by 1/sqrt(D), knows no mask,
and returns [B,H,T,D]. Nothing is changed in place. A new way is a new entry in `ATTENTIONS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import first_line
from modules.system.devices import autocast, memory_info
from modules.system.registry import Registry

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
MiB = 1 << 20
MIN_QUERIES = 64  # a slice below that saves nothing worth having
MIN_INT8_KEYS = 256  # below, packing them costs what the kernel saves
MAX_INT8_WIDTH = 256  # of a head; the attention of a VAE is wider, and its images show more of what is rounded
INT8_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MAX_SCORE_BYTES = 256 * MiB  # where the device does not say what is free


@dataclass(frozen=True, kw_only=True)
class AttentionOptions:
    """The limits of sliced attention; None lets the implementation choose.

    `query_chunk` and `key_chunk` count tokens (sub-quadratic only). Where the scores take at most
    `threshold_percent` of the free memory, sub-quadratic attention leaves the keys in one piece (None: 70).
    `score_bytes` is what the scores of one slice may take (sliced ways; None: a quarter of the free memory).
    """

    query_chunk: int = 1024
    key_chunk: int | None = None
    threshold_percent: int | None = None
    score_bytes: int | None = None


ATTENTIONS: Registry[Callable[[AttentionOptions], Attention]] = Registry("attention")


def upcast(attention: Attention) -> Attention:
    """Wrap attention so that it computes in float32 whatever the dtype, outside of autocast; the result has the query's
    dtype."""

    def in_fp32(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with autocast(query.device, torch.bfloat16, enabled=False):
            return attention(query.float(), key.float(), value.float()).to(query.dtype)

    return in_fp32


def whole(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All scores at once: the most memory, no kernel of anybody's."""
    return _weights(query, key).to(value.dtype) @ value


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """Softmax of the scores [...,T,S], in float32."""
    scores: Tensor = query * query.shape[-1] ** -0.5 @ key.transpose(-1, -2)
    return scores.softmax(-1, dtype=torch.float32)


def sliced(query: Tensor, key: Tensor, value: Tensor, score_bytes: int, whole_heads: bool = False) -> Tensor:
    """Head by head and in slices of queries, so that the scores of one slice fit `score_bytes` (at least one query).

    Slices run over images and heads first and over queries only where one head is too large, which `whole_heads`
    prevents. The exact sums of `whole`, because each query sees all keys.
    """
    batch, heads, queries = query.shape[:3]
    keys = key.shape[2]
    out = query.new_empty(batch * heads, queries, value.shape[-1])
    flat = [tensor.reshape(batch * heads, tensor.shape[2], tensor.shape[3]) for tensor in (query, key, value)]
    head_bytes = 4 * queries * keys
    if whole_heads or head_bytes <= score_bytes:
        rows = max(1, score_bytes // max(1, head_bytes))
        for start in range(0, batch * heads, rows):
            out[start : start + rows] = whole(*(tensor[start : start + rows] for tensor in flat))
    else:
        rows = max(1, score_bytes // (4 * keys))
        for head, (q, k, v) in enumerate(zip(*flat, strict=True)):
            for start in range(0, queries, rows):
                out[head, start : start + rows] = whole(q[start : start + rows], k, v)
    return out.view(batch, heads, queries, value.shape[-1])


def sub_quadratic(query: Tensor, key: Tensor, value: Tensor, query_chunk: int, key_chunk: int) -> Tensor:
    """In chunks of queries and keys (Rabe and Staats 2021, arXiv:2112.05682): no row of scores is ever complete.

    Running maximum, sum and result of each chunk of queries are float32.
    """
    out = query.new_empty(*query.shape[:-1], value.shape[-1])
    scale = query.shape[-1] ** -0.5
    for start in range(0, query.shape[2], query_chunk):
        part = query[:, :, start : start + query_chunk] * scale
        highest = torch.full((*part.shape[:-1], 1), -math.inf, device=query.device)
        total = torch.zeros_like(highest)
        result = torch.zeros(*part.shape[:-1], value.shape[-1], device=query.device)
        for first in range(0, key.shape[2], key_chunk):
            scores = (part @ key[:, :, first : first + key_chunk].transpose(-1, -2)).float()
            higher = torch.maximum(highest, scores.amax(-1, keepdim=True))
            correction = (highest - higher).exp()
            scores = scores.sub_(higher).exp_()
            total = total * correction + scores.sum(-1, keepdim=True)
            weighted = scores.to(value.dtype) @ value[:, :, first : first + key_chunk]
            result = result * correction + weighted
            highest = higher
        out[:, :, start : start + query_chunk] = result / total
    return out


def free_bytes(device: torch.device) -> int | None:
    """Memory that is free where `device` computes, or None if it does not say. Of a GPU that is what its driver has,
    and what PyTorch holds of it without a use."""
    if device.type == "cpu":
        free = memory_info(device)["ram"].get("free")
        return free if isinstance(free, int) else None
    gpu = memory_info(device)["cuda"]
    system, reserved, allocated = (gpu.get(name) for name in ("system", "reserved", "allocated"))
    if not (isinstance(system, dict) and isinstance(reserved, dict) and isinstance(allocated, dict)):
        return None
    return system["free"] + reserved["current"] - allocated["current"]


def _score_bytes(options: AttentionOptions, device: torch.device) -> int:
    if options.score_bytes is not None:
        return options.score_bytes
    free = None if device.type == "cpu" else free_bytes(device)
    return MAX_SCORE_BYTES if free is None else max(MiB, free // 4)


@ATTENTIONS.register("none")
def _none(options: AttentionOptions) -> Attention:
    """No optimization at all."""
    return whole


@ATTENTIONS.register("sdp")
def _sdp(options: AttentionOptions) -> Attention:
    """PyTorch's scaled dot product attention, by the kernel that PyTorch chooses."""
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value)


@ATTENTIONS.register("sdp-no-mem")
def _sdp_no_mem(options: AttentionOptions) -> Attention:
    """Return SDP attention without the memory-efficient kernel, whose backward and order of sums may vary from run to
    run."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernels = [SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(kernels):
            return F.scaled_dot_product_attention(query, key, value)

    return attend


@ATTENTIONS.register("sub-quadratic")
def _sub_quadratic(options: AttentionOptions) -> Attention:
    """Chunks of queries and of keys."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys = key.shape[2]
        score_bytes = 4 * query.shape[0] * query.shape[1] * min(options.query_chunk, query.shape[2]) * keys
        percent = 70 if options.threshold_percent is None else options.threshold_percent
        free = free_bytes(query.device) if percent else 0
        fits = free is not None and score_bytes <= free * percent // 100
        key_chunk = keys if fits else options.key_chunk or math.isqrt(keys - 1) + 1
        return sub_quadratic(query, key, value, options.query_chunk, key_chunk)

    return attend


@ATTENTIONS.register("sliced", aliases=("doggettx", "invokeai"))
def _sliced(options: AttentionOptions) -> Attention:
    """Slices as large as memory allows."""
    return lambda query, key, value: sliced(query, key, value, _score_bytes(options, query.device))


@ATTENTIONS.register("heads", aliases=("v1",))
def _heads(options: AttentionOptions) -> Attention:
    """One head of one image at a time."""
    return lambda query, key, value: sliced(query, key, value, 0, whole_heads=True)


@ATTENTIONS.register("xformers")
def _xformers(options: AttentionOptions) -> Attention:
    """xformers' memory-efficient attention; `xformers_problem` says whether it can be used."""
    attention: Callable[..., Tensor] = import_module("xformers.ops").memory_efficient_attention

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        swapped = (tensor.transpose(1, 2).contiguous() for tensor in (query, key, value))
        return attention(*swapped).transpose(1, 2)

    return attend


@ATTENTIONS.register("int8")
def _int8(options: AttentionOptions) -> Attention:
    """Queries and keys in 8 bits, by a kernel that numba compiles; by PyTorch's where it cannot be, see
    `modules.memory.kernels.support.attention_problem`, and for little work, autograd and NaN or infinity."""
    from modules.memory.kernels.support import attention_problem

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        is_large = query.shape[2] >= MIN_QUERIES and key.shape[2] >= MIN_INT8_KEYS and key.shape[3] <= MAX_INT8_WIDTH
        fits = is_large and key.shape[3] == value.shape[3] and query.device.type == "cpu" and query.dtype in INT8_DTYPES
        tensors = (query, key, value)
        if not fits or torch.is_grad_enabled() or attention_problem() is not None or not all(map(_is_finite, tensors)):
            return F.scaled_dot_product_attention(query, key, value)
        from modules.memory.kernels.attention import int8_attention

        return int8_attention(query, key, value)

    return attend


def _is_finite(tensor: Tensor) -> bool:
    return math.isfinite(tensor.sum(dtype=torch.float32).item())


def xformers_problem(device: torch.device, dtype: torch.dtype) -> str | None:
    """Why xformers cannot be used here, found by using it once on a few values; None if it can."""
    try:
        attend = ATTENTIONS.get("xformers")(AttentionOptions())
    except ImportError:
        return "xformers is not installed (pip install xformers)"
    zeros = torch.zeros(1, 1, 8, 64, device=device, dtype=dtype)
    try:
        attend(zeros, zeros, zeros)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        return f"xformers does not work with {dtype} on {device}: {first_line(error)}"
    return None


def in_slices(attention: Attention, count: int) -> Attention:
    """`attention` computed in about `count` slices one after the other; the result is that of the whole up to the
    rounding of the kernels that it uses."""

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        batch, heads, queries = query.shape[:3]
        rows = min(batch * heads, count)
        per_head = min(-(-count // rows), max(1, queries // MIN_QUERIES))
        flat = [tensor.reshape(1, batch * heads, *tensor.shape[2:]) for tensor in (query, key, value)]
        out = query.new_empty(1, batch * heads, queries, value.shape[-1])
        high, wide = -(-batch * heads // rows), -(-queries // per_head)
        for first in range(0, batch * heads, high):
            q, k, v = (tensor[:, first : first + high] for tensor in flat)
            for start in range(0, queries, wide):
                out[:, first : first + high, start : start + wide] = attention(q[:, :, start : start + wide], k, v)
        return out.view(batch, heads, queries, value.shape[-1])

    return attend
