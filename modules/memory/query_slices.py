"""Any way of attention in slices: of images and heads first, then of queries. Sees all keys, so sums stay whole."""

from __future__ import annotations

from torch import Tensor

from modules.memory.attention import Attention

MIN_QUERIES = 64  # a slice below that saves nothing worth having


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
