"""Linear layers with int8 weights that few tokens go through, as where a language model writes: on a CPU the weight is
multiplied in its stored form, because decoding it would take longer than everything else."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modules.memory.formats.convrot import RotatedRowFormat
from modules.memory.layer import SCALE_SUFFIX, Part, Product, Stored, stored_state
from modules.memory.recovery import is_out_of_memory

log = logging.getLogger(__name__)

MAX_TOKENS = 8
SLICE_BYTES = 16 << 20


@dataclass
class FewTokensProduct:
    """The `Product` of one layer; `other` is what it multiplies by for more tokens. `fails`: the kernel refused it
    once."""

    other: Product | None
    fails: bool = False

    def __call__(self, layer: nn.Module, state: Stored, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """See `Product`. The input is rounded to bfloat16; products are summed in float32."""
        if x.numel() > MAX_TOKENS * x.shape[-1] or state.changes or torch.is_grad_enabled() or self.fails:
            return None if self.other is None else self.other(layer, state, x, bias)
        if x.device.type != "cpu" or (state.device is not None and state.device.type != "cpu"):
            return None
        rows = x.reshape(-1, x.shape[-1]).bfloat16().contiguous()
        try:
            made = _product(layer, state, rows)
        except RuntimeError as error:  # as builds without the kernel say so
            if is_out_of_memory(error):
                raise
            log.info("Few tokens are multiplied with decoded weights: %s", error)
            self.fails = True
            return None
        if made is None:
            return None
        made = made.to(state.compute_dtype).view(*x.shape[:-1], -1)
        return made if bias is None else made + bias.to(made)


def _product(layer: nn.Module, state: Stored, rows: Tensor) -> Tensor | None:
    """`rows` [M,in] in bfloat16 times the weight [out,in], of which a large one that is streamed is brought in slices;
    None where it is not in int8 any more."""
    shell, scale = layer._parameters["weight"], layer._buffers.get(f"weight{SCALE_SUFFIX}")
    if shell is None or scale is None or shell.dtype != torch.int8:
        return None
    scales, step = scale.reshape(-1).expand(len(shell)).bfloat16(), max(1, SLICE_BYTES // rows.shape[1])
    if state.fetch is None or len(shell) < 2 * step:
        data = shell.detach() if state.fetch is None else state.fetch(layer, "weight")[0]
        return torch._weight_int8pack_mm(rows, data.contiguous(), scales.contiguous())
    found = []
    for start in range(0, len(shell), step):
        part = Part(layer, "weight", 0, start, min(start + step, len(shell)))
        data = state.fetch.parts([part])[0].contiguous()
        found.append(torch._weight_int8pack_mm(rows, data, scales[start : part.stop].contiguous()))
    return torch.cat(found, dim=1)


@contextmanager
def few_tokens(modules: Iterable[nn.Module]) -> Iterator[None]:
    """While open, layers in these modules with int8 weights multiply few tokens so."""
    states: list[Stored] = []
    for module in modules:
        for layer in module.modules():
            state = stored_state(layer) if isinstance(layer, nn.Linear) else None
            storage = None if state is None else state.formats.get("weight")
            if state is not None and storage is not None and _fits(storage):
                state.product = FewTokensProduct(state.product)
                states.append(state)
    try:
        yield
    finally:
        for state in states:
            assert isinstance(state.product, FewTokensProduct), "products are taken off in the order they were put on"
            state.product = state.product.other


def _fits(storage: object) -> bool:
    return getattr(storage, "dtype", None) == torch.int8 and not isinstance(storage, RotatedRowFormat)
