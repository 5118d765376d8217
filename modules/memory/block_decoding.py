"""A block's 8-bit weights decoded together, before its forward: one launch where each weight would take one or two.

A GPU decodes a weight of a million numbers in microseconds, and asking it to takes longer than that. So what a block's
layers store in 8 bits, plain or with a scale per row, is decoded into one piece of memory when the block is called, and
let go when it returns. The numbers are those of `StorageFormat.decode`, to the bit.

A weight of more than `MAX_ELEMENTS` is worth a launch of its own: it is decoded when its layer is called, as it is
without this module, and then lies in the GPU's cache for the product that follows. So are weights beyond `MAX_BYTES` of
a block, the smallest of which are taken first. That is what a block holds more at a time than its largest weight.

Not decoded so are weights that are streamed, packed, rotated, changed by an adapter, or multiplied as they are stored;
nothing is while gradients are on, and while a graph is traced. Side branches of adapters only read a weight, and stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from modules.memory.formats.format import StorageFormat, by_row
from modules.memory.formats.plain import PlainFormat
from modules.memory.formats.rowwise import RowFormat
from modules.memory.hook_chain import HookOrder, hooks_of, register_hook
from modules.memory.layer import SCALE_SUFFIX, Product, Stored, stored_state

MAX_ELEMENTS = 4 << 20
"""Of one weight: decoding that many takes a fast GPU some 10 us, as long as it takes to ask for it."""
MAX_BYTES = 64 << 20
"""Of the decoded weights of one block."""
ALIGNMENT = 256  # bytes, as the allocator's: kernels take the same path as for a tensor of its own
NARROW = frozenset({torch.float8_e4m3fn, torch.float8_e5m2, torch.int8})
WIDE = frozenset({torch.float16, torch.bfloat16, torch.float32})


def is_on_cuda(device: torch.device) -> bool:
    """Where launches are what decoding costs, and one copies many weights."""
    return device.type == "cuda"


def is_narrow(storage: StorageFormat) -> bool:
    """Whether weights of this format are decoded by a copy, or by a copy and a scale per row."""
    return type(storage) in (PlainFormat, RowFormat) and storage.dtype in NARROW


def block_classes(root: nn.Module, known: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of the classes that are the blocks of a model: those that are `known`, and those that its
    library says are repeated (diffusers) or belong on one device (transformers)."""
    named = (getattr(root, each, None) or () for each in ("_repeated_blocks", "_no_split_modules"))
    return (*known, *(name for names in named for name in names))


def decoded_peak_bytes(root: nn.Module, dtype: torch.dtype, known: Sequence[str] = ()) -> int:
    """The most that decoded weights of a model take at a time in `dtype`, if all its weights but tables of embeddings
    are stored in 8 bits and decoded by blocks; `known` as in `block_classes`. Of its parameters only the shapes are
    looked at."""
    peak = 0

    def visit(block: _Block, outside: int) -> None:
        nonlocal peak
        sizes = sorted(
            parameter.numel()
            for layer in block.layers
            if not isinstance(layer, nn.Embedding)
            for parameter in layer._parameters.values()
            if parameter is not None
        )
        taken, held = ([], 0) if block.module is None else _taken(sizes, dtype)
        alone = max(sizes[len(taken) :], default=0) * dtype.itemsize
        peak = max(peak, outside + held + alone)
        for each in block.inner:
            visit(each, outside + held)

    visit(_blocks(root, block_classes(root, known)), 0)
    return peak


@contextmanager
def decoding_blocks(
    root: nn.Module, classes: Collection[str], applies: Callable[[torch.device], bool] = is_on_cuda
) -> Iterator[int]:
    """While open, the weights of each block inside `root` (a module whose class, or a base of it, has one of these
    names) are decoded together when it is called; of blocks in each other each decodes what is in no inner one. Gives
    how many blocks there are. Blocks that are compiled are left out, and those that store nothing in 8 bits now.

    `applies` says for which devices, of stored weights that lie where they are used. One job at a time may compute with
    the model.
    """
    with ExitStack() as undo:
        count = 0
        for block in _all_blocks(_blocks(root, classes)):
            module = block.module
            if module is None or not any(map(_stores_narrow, block.layers)):
                continue
            if any(handle.order is HookOrder.COMPILED for handle in hooks_of(module)):
                continue
            hook = _BlockDecoding(tuple(block.layers), applies)
            undo.callback(register_hook(module, hook, HookOrder.COMPUTE).remove)
            count += 1
        yield count


def _stores_narrow(layer: nn.Module) -> bool:
    state = stored_state(layer)
    return state is not None and any(map(is_narrow, state.formats.values()))


@dataclass(eq=False)
class _Block:
    """A block, the layers in it that are in no inner one, and those. `module` is None for what is in no block."""

    module: nn.Module | None
    layers: list[nn.Module]
    inner: list[_Block]


def _blocks(root: nn.Module, classes: Collection[str]) -> _Block:
    outside, seen = _Block(None, [], []), set[int]()

    def visit(module: nn.Module, block: _Block) -> None:
        if id(module) in seen:
            return
        seen.add(id(module))
        if any(each.__name__ in classes for each in type(module).__mro__):
            block.inner.append(_Block(module, [], []))
            block = block.inner[-1]
        if module._parameters:
            block.layers.append(module)
        for child in module.children():
            visit(child, block)

    visit(root, outside)
    return outside


def _all_blocks(block: _Block) -> Iterator[_Block]:
    yield block
    for each in block.inner:
        yield from _all_blocks(each)


def _room(count: int, dtype: torch.dtype) -> int:
    """Elements of a weight in the common memory, so that the next one is aligned."""
    step = ALIGNMENT // dtype.itemsize
    return -(-count // step) * step


def _taken(sizes: Sequence[int], dtype: torch.dtype) -> tuple[list[int], int]:
    """Of weights of these sizes (ascending) those that are decoded together, and their bytes."""
    taken, held = list[int](), 0
    for count in sizes:
        size = _room(count, dtype) * dtype.itemsize
        if count > MAX_ELEMENTS or held + size > MAX_BYTES:
            break
        taken.append(count)
        held += size
    return (taken, held) if len(taken) > 1 else ([], 0)


# -- what is prepared, and whether it still holds ----------------------------------------------------------------------


@dataclass(frozen=True, eq=False, slots=True)
class _SeenLayer:
    """A managed layer as it was when its block was prepared."""

    layer: nn.Module
    state: Stored
    compute_dtype: torch.dtype
    device: torch.device | None
    product: Product | None
    is_free: bool

    @classmethod
    def of(cls, layer: nn.Module, state: Stored) -> _SeenLayer:
        return cls(layer, state, state.compute_dtype, state.device, state.product, _is_free(state))

    def holds(self) -> bool:
        """Whether nothing is different now."""
        state = self.state
        return (
            stored_state(self.layer) is state
            and state.compute_dtype is self.compute_dtype
            and state.device is self.device
            and state.product is self.product
            and _is_free(state) == self.is_free
        )


def _is_free(state: Stored) -> bool:
    return state.fetch is None and not state.changes


@dataclass(frozen=True, eq=False, slots=True)
class _SeenWeight:
    """A stored parameter as it was. Held weakly: a weight that is replaced leaves memory."""

    layer: nn.Module
    state: Stored
    name: str
    data: weakref.ref[Tensor]
    scale: weakref.ref[Tensor] | None
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size

    @classmethod
    def of(cls, layer: nn.Module, state: Stored, name: str, data: Tensor) -> _SeenWeight:
        scale = layer._buffers.get(name + SCALE_SUFFIX)
        kept = None if scale is None else weakref.ref(scale)
        return cls(layer, state, name, weakref.ref(data), kept, data.dtype, data.device, data.shape)

    def now(self) -> Tensor | None:
        """The parameter; None: it is another one, elsewhere, or its scale is."""
        data = self.layer._parameters.get(self.name)
        scale = self.layer._buffers.get(self.name + SCALE_SUFFIX)
        if data is None or self.data() is not data or scale is not (None if self.scale is None else self.scale()):
            return None
        is_same = data.dtype is self.dtype and data.device == self.device and data.shape == self.shape
        return data if is_same else None


@dataclass(frozen=True, eq=False, slots=True)
class _Batch:
    """Weights of one format that are decoded into one piece of memory of `count` elements, on one device. `places`:
    shape, strides and offset of each there. `scales` are shaped to multiply them."""

    weights: list[_SeenWeight]
    places: list[tuple[torch.Size, tuple[int, ...], int]]
    count: int
    dtype: torch.dtype
    scales: list[Tensor]

    def decode(self, stored: list[Tensor]) -> list[Tensor]:
        """The weights; the stored ones are in the same order."""
        whole = torch.empty(self.count, dtype=self.dtype, device=stored[0].device)
        views = [whole.as_strided(*place) for place in self.places]
        if self.scales and stored[0].dtype == torch.int8:
            for data, scale, view in zip(stored, self.scales, views, strict=True):
                torch.mul(data, scale, out=view)  # as `decode_narrow`
            return views
        torch._foreach_copy_(views, stored)
        if self.scales:
            torch._foreach_mul_(views, self.scales)
        return views


@dataclass(frozen=True, eq=False, slots=True)
class _Prepared:
    """What there is to decode for a block, and what that was found from. `others`: parameters that are not decoded so,
    as long as they stay what they are."""

    layers: list[_SeenLayer]
    batches: list[_Batch]
    others: list[_SeenWeight]

    def stored(self) -> list[list[Tensor]] | None:
        """The parameters of each batch; None: something is no longer what it was."""
        if not all(layer.holds() for layer in self.layers) or any(other.now() is None for other in self.others):
            return None
        found: list[list[Tensor]] = []
        for batch in self.batches:
            tensors = [data for weight in batch.weights if (data := weight.now()) is not None]
            if len(tensors) < len(batch.weights):
                return None
            found.append(tensors)
        return found

    def decode(self, stored: list[list[Tensor]]) -> list[Stored]:
        """Have the layers find their weights decoded; gives the states that say so."""
        ready: dict[int, tuple[Stored, dict[str, Tensor]]] = {}
        for batch, tensors in zip(self.batches, stored, strict=True):
            for weight, view in zip(batch.weights, batch.decode(tensors), strict=True):
                state = weight.state
                ready.setdefault(id(state), (state, {}))[1][weight.name] = view
        for state, weights in ready.values():
            state.ready = weights
        return [state for state, _ in ready.values()]


def _prepare(layers: Sequence[nn.Module], applies: Callable[[torch.device], bool]) -> _Prepared:
    seen: list[_SeenLayer] = []
    fitting: list[_SeenWeight] = []
    others: list[_SeenWeight] = []
    for layer in layers:
        state = stored_state(layer)
        if state is None:
            continue
        seen.append(_SeenLayer.of(layer, state))
        if not _is_free(state):
            continue
        for name in state.formats:
            data = layer._parameters.get(name)
            if data is not None:
                fits = _fits(layer, state, name, data, applies)
                (fitting if fits else others).append(_SeenWeight.of(layer, state, name, data))
    batches: list[_Batch] = []
    kinds: dict[Any, list[_SeenWeight]] = {}
    held = 0
    for weight in sorted(fitting, key=lambda each: each.shape.numel()):
        dtype, count = weight.state.compute_dtype, weight.shape.numel()
        size = _room(count, dtype) * dtype.itemsize
        if count > MAX_ELEMENTS or held + size > MAX_BYTES:
            others.append(weight)
            continue
        held += size
        kinds.setdefault((weight.dtype, weight.scale is None, dtype, weight.device), []).append(weight)
    for weights in kinds.values():
        if len(weights) > 1:
            batches.append(_batch(weights))
        else:
            others += weights
    return _Prepared(seen, batches, others)


def _batch(weights: list[_SeenWeight]) -> _Batch:
    dtype, places, offset, scales = weights[0].state.compute_dtype, [], 0, list[Tensor]()
    for weight in weights:
        strides = torch.empty(weight.shape, device="meta").stride()
        places.append((weight.shape, strides, offset))
        offset += _room(weight.shape.numel(), dtype)
        scale = None if weight.scale is None else weight.scale()
        if scale is not None:
            scales.append(by_row(scale, len(weight.shape)))
    return _Batch(weights, places, offset, dtype, scales)


def _fits(layer: nn.Module, state: Stored, name: str, data: Tensor, applies: Callable[[torch.device], bool]) -> bool:
    storage, scale = state.formats[name], layer._buffers.get(name + SCALE_SUFFIX)
    if isinstance(layer, nn.Embedding) or (name == "weight" and state.product is not None):
        return False
    if not is_narrow(storage) or data.dtype != storage.dtype or state.compute_dtype not in WIDE:
        return False
    if (scale is not None) != storage.scaled or (scale is not None and scale.device != data.device):
        return False
    if not data.is_contiguous() or not data.ndim or not data.numel() or not applies(data.device):
        return False
    return state.device is None or torch.empty(0, device=state.device).device == data.device


@dataclass(eq=False)
class _BlockDecoding:
    """The hook of one block."""

    computes: ClassVar[str] = "what the block computes"
    layers: tuple[nn.Module, ...]
    applies: Callable[[torch.device], bool]
    prepared: _Prepared | None = None
    is_decoded: bool = False

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.is_decoded or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return inner(*args, **kwargs)
        states = self._decode()
        if not states:
            return inner(*args, **kwargs)
        self.is_decoded = True
        try:
            return inner(*args, **kwargs)
        finally:
            self.is_decoded = False
            for state in states:
                state.ready = None

    def _decode(self) -> list[Stored]:
        stored = None if self.prepared is None else self.prepared.stored()
        if stored is None:
            self.prepared = _prepare(self.layers, self.applies)
            stored = self.prepared.stored()
        assert stored is not None and self.prepared is not None
        return self.prepared.decode(stored)
