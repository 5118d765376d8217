"""A block's 8-bit weights decoded together, before its forward: one launch where each weight would take one or two.

A GPU decodes a weight of a million numbers in microseconds, and asking it to takes longer than that. So what a block's
layers store in 8 bits, plain or with a scale per row, is decoded into one piece of memory when the block is called, and
let go when it returns: by a kernel of ours where there is one (`modules.memory.kernels.decoding`), else by PyTorch. The
numbers are those of `StorageFormat.decode`, bit for bit.

A weight of more than `MAX_ELEMENTS` is worth a launch of its own: it is decoded when its layer is called, as it is
without this module. So are weights beyond `MAX_BYTES` of a block, the smallest of which are taken first. That is what a
block holds more at a time than its largest weight.

Where memory is to spare, blocks keep what they have decoded (`DecodedWeights`), the largest ones first. (Decoding the
next block on a second stream while one computes gained nothing on an H100: its products leave no units idle.)

Not decoded so are weights that are streamed, packed, rotated, changed by an adapter, or multiplied as they are stored;
nothing is while gradients are on, and while a graph is traced. Side branches of adapters only read a weight, and stay.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from modules.memory.formats.decoding import is_dense
from modules.memory.formats.format import StorageFormat, by_row
from modules.memory.formats.plain import PlainFormat
from modules.memory.formats.rowwise import RowFormat
from modules.memory.hook_chain import HookOrder, hooks_of, register_hook
from modules.memory.kernels.decoding import DECODING
from modules.memory.layer import SCALE_SUFFIX, Product, Stored, stored_state

MAX_ELEMENTS = 16 << 20
"""Of one weight: decoding that many takes a fast GPU some 25 us, as long as it takes to ask for it."""
MAX_BYTES = 80 << 20
"""Of the decoded weights of one block: all those of a transformer block 1280 wide."""
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


class DecodedWeights:
    """The decoded weights that blocks of a model keep while their stored weights are unchanged."""

    def __init__(self) -> None:
        self._kept: WeakKeyDictionary[nn.Module, _Decoded] = WeakKeyDictionary()
        self.is_paused = False

    @property
    def bytes(self) -> int:
        """Memory that is held."""
        return sum(memory.nbytes for decoded in self._kept.values() for memory in decoded.memories)

    def pause(self) -> None:
        """Let go of all of it, and keep nothing more in this job: memory has run out."""
        self._kept.clear()
        self.is_paused = True

    def keep_only(self, blocks: Collection[nn.Module]) -> None:
        """Let go of what other blocks keep."""
        for block in [each for each in self._kept if each not in blocks]:
            del self._kept[block]

    def get(self, block: nn.Module, prepared: _Prepared) -> _Decoded | None:
        """Return what a block keeps; None if it keeps nothing, or if it was of other weights, which is released."""
        decoded = self._kept.get(block)
        if decoded is not None and decoded.prepared is not prepared:
            del self._kept[block]
            return None
        return decoded

    def put(self, block: nn.Module, decoded: _Decoded) -> None:
        """Keep what a block has decoded."""
        self._kept[block] = decoded

    def prepared(self, block: nn.Module) -> _Prepared | None:
        """Return what the weights that a block keeps were decoded from."""
        decoded = self._kept.get(block)
        return None if decoded is None else decoded.prepared

    def addresses(self, block: nn.Module) -> tuple[int, ...]:
        """Where they are."""
        decoded = self._kept.get(block)
        return () if decoded is None else tuple(memory.data_ptr() for memory in decoded.memories)


@contextmanager
def decoding_blocks(
    root: nn.Module,
    classes: Collection[str],
    applies: Callable[[torch.device], bool] = is_on_cuda,
    kept: DecodedWeights | None = None,
    kept_bytes: int = 0,
) -> Iterator[int]:
    """While open, the weights of each block inside `root` (a module whose class, or a base of it, has one of these
    names) are decoded together when it is called; of blocks in each other each decodes what is in no inner one. Gives
    how many blocks there are. Blocks that are compiled are left out, and those that store nothing in 8 bits now.

    `applies` says for which devices, of stored weights that lie where they are used. Blocks keep up to `kept_bytes` of
    decoded weights in `kept`, also for a later call of this function. One job at a time may compute with the model.
    """
    with ExitStack() as undo:
        hooks = list[_BlockDecoding]()
        kept = kept or DecodedWeights()
        for block in _all_blocks(_blocks(root, classes)):
            module = block.module
            if module is None or not any(map(_stores_narrow, block.layers)):
                continue
            if any(handle.order is HookOrder.COMPILED for handle in hooks_of(module)):
                continue
            hook = _BlockDecoding(module, tuple(block.layers), applies, kept)
            undo.callback(register_hook(module, hook, HookOrder.COMPUTE).remove)
            hooks.append(hook)
        left = kept_bytes
        for hook in sorted(hooks, key=lambda each: each.wide_bytes, reverse=True):
            hook.keeps = 0 < hook.wide_bytes <= left
            left -= hook.wide_bytes if hook.keeps else 0
        kept.is_paused = False
        kept.keep_only({hook.module for hook in hooks if hook.keeps})
        yield len(hooks)


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
    """Return the weights of these sizes (ascending) that are decoded together, and their bytes."""
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
    scale_name: str
    data: weakref.ref[Tensor]
    scale: weakref.ref[Tensor] | None
    dtype: torch.dtype
    device: torch.device
    shape: torch.Size
    data_address: int
    scale_address: int

    @classmethod
    def of(cls, layer: nn.Module, state: Stored, name: str, data: Tensor) -> _SeenWeight:
        scale_name = name + SCALE_SUFFIX
        scale = layer._buffers.get(scale_name)
        references = weakref.ref(data), None if scale is None else weakref.ref(scale)
        addresses = data.data_ptr(), 0 if scale is None else scale.data_ptr()
        return cls(layer, state, name, scale_name, *references, data.dtype, data.device, data.shape, *addresses)

    def now(self) -> Tensor | None:
        """The parameter; None: it is another one, elsewhere, or its scale is. Asked for each weight at each call."""
        data = self.layer._parameters.get(self.name)
        if data is None or self.data() is not data or data.data_ptr() != self.data_address:
            return None
        scale = self.layer._buffers.get(self.scale_name)
        if scale is None:
            return data if self.scale is None else None
        is_same = self.scale is not None and self.scale() is scale and scale.data_ptr() == self.scale_address
        return data if is_same else None


@dataclass(frozen=True, eq=False, slots=True)
class _Batch:
    """Weights of one format that are decoded into one piece of memory of `count` elements, on one device. `places`:
    shape, strides and offset of each there. `scales` are shaped to multiply them. `kernel` writes that memory, where
    there is one."""

    weights: list[_SeenWeight]
    places: list[tuple[torch.Size, tuple[int, ...], int]]
    count: int
    dtype: torch.dtype
    scales: list[Tensor]
    kernel: Callable[[Tensor], None] | None

    def empty(self) -> Tensor:
        """Memory for the weights."""
        return torch.empty(self.count, dtype=self.dtype, device=self.weights[0].device)

    def views(self, memory: Tensor) -> list[Tensor]:
        """The weights in that memory."""
        return [memory.as_strided(*place) for place in self.places]

    def decode(self, stored: list[Tensor], memory: Tensor) -> None:
        """Write the weights; the stored ones are in their order."""
        if self.kernel is not None:
            self.kernel(memory)
            return
        views = self.views(memory)
        if self.scales and stored[0].dtype == torch.int8:
            for data, scale, view in zip(stored, self.scales, views, strict=True):
                torch.mul(data, scale, out=view)  # as `decode_narrow`
            return
        torch._foreach_copy_(views, stored)
        if self.scales:
            torch._foreach_mul_(views, self.scales)


@dataclass(frozen=True, eq=False, slots=True)
class _Prepared:
    """The weights to decode for a block, and what that was found from. `others`: parameters that are not decoded this
    way, as long as they stay unchanged."""

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

    def empty(self) -> _Decoded:
        """Memory for the weights."""
        return _Decoded(self, [batch.empty() for batch in self.batches])

    def decode(self, stored: list[list[Tensor]], into: _Decoded) -> None:
        """Write the weights; `stored` is what `stored()` gave."""
        for batch, tensors, memory in zip(self.batches, stored, into.memories, strict=True):
            batch.decode(tensors, memory)


@dataclass(frozen=True, eq=False)
class _Decoded:
    """Memory with the decoded weights of a block."""

    prepared: _Prepared
    memories: list[Tensor]

    @cached_property
    def ready(self) -> list[tuple[Stored, dict[str, Tensor]]]:
        """The layers' states, each with its weights by name."""
        found: dict[int, tuple[Stored, dict[str, Tensor]]] = {}
        for batch, memory in zip(self.prepared.batches, self.memories, strict=True):
            for weight, view in zip(batch.weights, batch.views(memory), strict=True):
                found.setdefault(id(weight.state), (weight.state, {}))[1][weight.name] = view
        return list(found.values())


def _prepare(layers: Sequence[nn.Module], applies: Callable[[torch.device], bool], keeps: bool = False) -> _Prepared:
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
        if not keeps and (count > MAX_ELEMENTS or held + size > MAX_BYTES):
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
    dtype, offset = weights[0].state.compute_dtype, 0
    places, scales, sources = list[tuple[torch.Size, tuple[int, ...], int]](), list[Tensor](), list[_Source]()
    for weight in weights:
        data, scale = weight.data(), None if weight.scale is None else weight.scale()
        assert data is not None
        places.append((weight.shape, data.stride(), offset))
        sources.append((data.detach(), None if scale is None else scale.view(-1), offset))
        if scale is not None:
            scales.append(by_row(scale, len(weight.shape)))
        offset += _room(weight.shape.numel(), dtype)
    return _Batch(weights, places, offset, dtype, scales, _kernel(sources, dtype))


_Source = tuple[Tensor, Tensor | None, int]


def _kernel(sources: Sequence[_Source], dtype: torch.dtype) -> Callable[[Tensor], None] | None:
    decoder = DECODING.on(sources[0][0].device)
    if decoder is None or not all(decoder.fits(data, scale, dtype) for data, scale, _ in sources):
        return None
    kernel: Callable[[Tensor], None] = decoder.of_block(sources)
    return kernel


def _fits(layer: nn.Module, state: Stored, name: str, data: Tensor, applies: Callable[[torch.device], bool]) -> bool:
    storage, scale = state.formats[name], layer._buffers.get(name + SCALE_SUFFIX)
    if isinstance(layer, nn.Embedding) or (name == "weight" and state.product is not None):
        return False
    if not is_narrow(storage) or data.dtype != storage.dtype or state.compute_dtype not in WIDE:
        return False
    if (scale is not None) != storage.scaled or (scale is not None and scale.device != data.device):
        return False
    if not is_dense(data) or not data.ndim or not data.numel() or not applies(data.device):
        return False
    return state.device is None or torch.empty(0, device=state.device).device == data.device


@dataclass(eq=False)
class _BlockDecoding:
    """The hook of one block. `keeps`: what it decodes stays for the next call."""

    module: nn.Module
    layers: tuple[nn.Module, ...]
    applies: Callable[[torch.device], bool]
    kept: DecodedWeights
    keeps: bool = False
    prepared: _Prepared | None = None
    is_decoded: bool = False

    @property
    def computes(self) -> tuple[object, ...]:
        """Return what a recorded call depends on: the addresses of kept weights."""
        return ("what the block computes", *self.kept.addresses(self.module))

    @property
    def wide_bytes(self) -> int:
        """Bytes of the block's 8-bit weights once they are decoded."""
        states = [(layer, state) for layer in self.layers if (state := stored_state(layer)) is not None]
        return sum(
            _room(parameter.numel(), state.compute_dtype) * state.compute_dtype.itemsize
            for layer, state in states
            if _is_free(state)
            for name, storage in state.formats.items()
            if (parameter := layer._parameters.get(name)) is not None and is_narrow(storage)
        )

    def __call__(self, module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.is_decoded or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return inner(*args, **kwargs)
        decoded = self._decoded()
        if not decoded.memories:
            return inner(*args, **kwargs)
        for state, weights in decoded.ready:
            state.ready = weights
        self.is_decoded = True
        try:
            return inner(*args, **kwargs)
        finally:
            self.is_decoded = False
            for state, _ in decoded.ready:
                state.ready = None

    def _decoded(self) -> _Decoded:
        if self.keeps and self.kept.is_paused:
            self.keeps, self.prepared = False, None
        prepared, stored = self._look()
        kept = self.kept.get(self.module, prepared) if self.keeps else None
        if kept is not None:
            return kept
        decoded = prepared.empty()
        prepared.decode(stored, decoded)
        if self.keeps:
            self.kept.put(self.module, decoded)
        return decoded

    def _look(self) -> tuple[_Prepared, list[list[Tensor]]]:
        """Return what to decode now, and the stored weights."""
        self.prepared = self.prepared or (self.kept.prepared(self.module) if self.keeps else None)
        stored = None if self.prepared is None else self.prepared.stored()
        if stored is None:
            self.prepared = _prepare(self.layers, self.applies, self.keeps)
            stored = self.prepared.stored()
        assert stored is not None and self.prepared is not None
        return self.prepared, stored
