"""The one place where a stored layer becomes usable weights: fetch, move, decode, scale, add changes.

A managed layer keeps what is stored (fp8 bytes, fp16 values ...) in its parameters, and its class is replaced by a
subclass made for it, on which every stored parameter is a property: reading `layer.weight` gives the weight in the
compute dtype, freshly decoded. So whoever reads weights without calling the layer (nn.MultiheadAttention reads its
out-projection, others ask for a weight's dtype) gets usable ones, nothing stored is ever written, an exception in a
forward pass leaves nothing half done, and threads do not meet. `state_dict`, `named_parameters`, `to(device)`,
`deepcopy` see what is stored.

The technique is that of `torch.nn.utils.parametrize`; sources for the aim: diffusers pull request 10347 (layerwise
upcasting) and the reference UI's 14031 (fp8 storage, manual cast), neither of which can be undone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.formats.blocks import is_packed, weight_shape
from modules.memory.formats.codes import CodesFormat
from modules.memory.formats.convrot import RotatedRowFormat
from modules.memory.formats.format import StorageFormat
from modules.memory.frozen import frozen_convolution, frozen_linear, has_plain_padding
from modules.memory.scratch import scratch

SCALE_SUFFIX = "_scale"
STATE = "_stored"


class WeightChange(Protocol):
    """A change that is added to a layer's weights when they are used (a LoRA's delta); see `modules.memory.changes`."""

    def add_to(self, name: str, weight: Tensor) -> Tensor:
        """The weight with the change. `weight` may be changed in place; `name` is "weight", "bias" ..."""


class Delta(Protocol):
    """The sum of side branches when they are added to a layer's weight instead; on the CPU."""

    def delta(self, weight: Tensor) -> Tensor:
        """Return what is added to a weight, as a matrix [out, -1] of its dtype in memory that is used again."""

    def add_delta_to(self, weight: Tensor, out: Tensor) -> None:
        """Write the changed weight into `out`; both are contiguous, float32, and may be one tensor."""


class SideBranches(Protocol):
    """Branches that are added to a layer's output, computed from its input; in one of four ways, whichever is best."""

    def merging(self, layer: nn.Module, inputs: Tensor, shape: Sequence[int], has_product: bool) -> Delta | None:
        """Return what to add to the layer's weight of this shape, decoded for these inputs only, if that costs less
        than computing side branches; else None. `has_product`: they could be next to a product in 8 bits, which needs
        no decoded weight."""

    def linear(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output of a Linear with the branches."""

    def convolution(self, layer: nn.Module, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The output of a convolution with the branches."""

    def add_to_output(self, layer: nn.Module, inputs: Tensor, output: Tensor) -> Tensor:
        """The output of any layer with the branches'. `output` may be changed in place."""

    def tensors(self) -> Sequence[Tensor] | None:
        """All that the output depends on besides inputs and the layer; None: on more than tensors on the device."""


Kept = tuple[Tensor, Tensor | None]
"""Stored data and its scale."""


@dataclass(frozen=True)
class Part:
    """Rows (`dimension` 0) or columns (1) `start` to `stop` of a layer's parameter."""

    layer: nn.Module
    name: str
    dimension: int
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """A view of this part of the whole parameter."""
        return tensor.narrow(self.dimension, self.start, self.stop - self.start)

    def of_scale(self, scale: Tensor | None) -> Tensor | None:
        """The scales (one for each row, or one for all) that belong to the part."""
        if scale is None or self.dimension == 1 or scale.numel() == 1:
            return scale
        return scale[self.start : self.stop]


class Fetch(Protocol):
    """Brings stored bytes that are not in the layer (they are in main memory, or on disk). In the layer is an empty
    shell of the weight's shape and stored dtype then; see `modules.memory.streaming`."""

    def __call__(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
        """Stored data and scale of a parameter, on any device. Data may be narrower than what the layer stores."""

    def parts(self, parts: Sequence[Part]) -> list[Tensor]:
        """Stored data of some parts, to be used together; as little else as possible is brought."""

    def dtype(self, layer: nn.Module, name: str) -> torch.dtype | None:
        """In which dtype the data will come; None: it is in the layer after all."""

    def replace(self, layer: nn.Module, name: str, data: Tensor) -> bool:
        """Store other data in the place of a parameter's; False: it is in the layer."""


class Product(Protocol):
    """Multiplies with a stored weight without decoding it; see `modules.memory.matmul` and `int8_matmul` there."""

    def __call__(self, layer: nn.Module, state: Stored, x: Tensor, bias: Tensor | None) -> Tensor | None:
        """The layer's output, made just now, with its bias; or None: decode the weight and multiply as usual."""


@dataclass
class Stored:
    """The state of a managed layer. Changed only through the functions here, between forward passes."""

    formats: dict[str, StorageFormat]
    compute_dtype: torch.dtype
    own_class: type[nn.Module]
    device: torch.device | None = None  # where it computes; None: where the stored data is
    cast_inputs: bool = True  # False under autocast, and for layers that take no floating input
    fetch: Fetch | None = None
    product: Product | None = None
    changes: tuple[WeightChange, ...] = ()
    branches: SideBranches | None = None
    ready: Mapping[str, Tensor] | None = None  # decoded already, for now; see `modules.memory.block_decoding`


def stored_state(layer: nn.Module) -> Stored | None:
    """The layer's `Stored`, or None if it is not managed."""
    return layer.__dict__.get(STATE)


def manage(
    layer: nn.Module,
    formats: dict[str, StorageFormat],
    compute_dtype: torch.dtype,
    device: torch.device | None = None,
    cast_inputs: bool = True,
) -> Stored:
    """Make `layer`'s parameters of these names stored ones; what they hold must be in those formats already.

    A layer that is managed gets the new description. Scales stand in buffers called `NAME_scale`.
    """
    known = stored_state(layer)
    own_class: Any = known.own_class if known else type(layer)
    if known and known.fetch is not None:  # what is offloaded must go on being asked for
        elsewhere = {name: known.formats[name] for name in known.formats if known.fetch.dtype(layer, name) is not None}
        formats = {**elsewhere, **formats}
    state = Stored(dict(formats), compute_dtype, own_class, device, cast_inputs)
    if known:
        state.changes, state.branches = known.changes, known.branches
        state.fetch, state.product = known.fetch, known.product
    layer.__dict__[STATE] = state
    layer.__class__ = _managed_class(own_class, tuple(formats))
    return state


def unmanage(layer: nn.Module) -> None:
    """The way back: the layer's own class, and its weights as plain parameters in the compute dtype, decoded for good.
    Changes and branches are dropped."""
    state = stored_state(layer)
    if state is None:
        return
    state.changes, state.branches = (), None
    plain = {name: read_weight(layer, name) for name in state.formats if layer._parameters.get(name) is not None}
    restore_class(layer)
    for name, weight in plain.items():
        layer._parameters[name] = nn.Parameter(weight, requires_grad=False)
        layer._buffers.pop(name + SCALE_SUFFIX, None)


def restore_class(layer: nn.Module) -> None:
    """Give a managed layer its own class back; its parameters are then what they hold."""
    state: Stored = layer.__dict__.pop(STATE)
    layer.__class__ = state.own_class


def put(layer: nn.Module, name: str, data: Tensor, scale: Tensor | None) -> None:
    """Place stored data (and its scale) into a layer, or where its data is offloaded."""
    state = stored_state(layer)
    is_offloaded_elsewhere = state is not None and state.fetch is not None and state.fetch.replace(layer, name, data)
    if not is_offloaded_elsewhere:
        layer._parameters[name] = data if isinstance(data, nn.Parameter) else nn.Parameter(data, requires_grad=False)
    if scale is not None:
        layer._buffers[name + SCALE_SUFFIX] = scale
    else:
        layer._buffers.pop(name + SCALE_SUFFIX, None)


def put_channels_last(module: nn.Module) -> None:
    """Lay the weights of a module's convolutions out with their channels last, as they are stored."""
    for layer in module.modules():
        weight = layer._parameters.get("weight") if isinstance(layer, nn.Conv2d) else None
        if weight is not None and weight.shape[2:] == getattr(layer, "kernel_size", ()) != (1, 1):
            data = weight.detach().contiguous(memory_format=torch.channels_last)
            layer._parameters["weight"] = nn.Parameter(data, requires_grad=False)


def stored_tensors(layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """Stored data and scale as they are stored in the layer; a copy of offloaded data."""
    data = layer._parameters[name]
    assert data is not None, f"{name} is not there"
    state = stored_state(layer)
    if state is not None and state.fetch is not None:
        brought, scale = state.fetch(layer, name)
        return brought.to(data.dtype, copy=True), scale
    # Not `.data`, which `torch.export` would take for a constant.
    return data.detach(), layer._buffers.get(name + SCALE_SUFFIX)


def shape_of(layer: nn.Module, name: str) -> torch.Size | None:
    """The shape of a parameter as the layer uses it, however it is stored; None: the layer has none."""
    data = layer._parameters.get(name)
    state = stored_state(layer)
    return None if data is None else weight_shape(state.formats.get(name) if state else None, data)


def read_weight(layer: nn.Module, name: str, out: Tensor | None = None) -> Tensor:
    """A parameter of a managed layer, usable: on the compute device, in the compute dtype, with all changes.

    A temporary, unless the stored one is usable as it is. `out` (contiguous, of the right shape and dtype) saves an
    allocation.
    """
    state: Stored = layer.__dict__[STATE]
    if state.ready is not None and out is None and name in state.ready:
        return state.ready[name]
    data, scale = state.fetch(layer, name) if state.fetch is not None else stored_tensors(layer, name)
    weight = decode(state, name, data, scale, out)
    for change in state.changes:
        if weight.data_ptr() == data.data_ptr() and not torch.compiler.is_compiling():
            weight = weight.clone()
        weight = change.add_to(name, weight)
    return weight


def full_weight(layer: nn.Module) -> Tensor:
    """A layer's weight in float32, decoded from what is stored, wherever that is; without adapters."""
    state = stored_state(layer)
    if state is None or "weight" not in state.formats:
        weight = layer._parameters["weight"]
        assert weight is not None
        return weight.detach().float()
    data, scale = stored_tensors(layer, "weight") if state.fetch is None else state.fetch(layer, "weight")
    return decode(replace(state, compute_dtype=torch.float32), "weight", data, scale).detach()


def fetch_parts(parts: Sequence[Part]) -> dict[Part, Kept]:
    """Bring those parts that are offloaded here together, without the rest of their parameters; for `read_part`."""
    brought: dict[Part, Kept] = {}
    asked: dict[int, tuple[Fetch, list[Part]]] = {}
    for part in parts:
        state = stored_state(part.layer)
        if state is None or state.fetch is None or part.name not in state.formats or _cuts_blocks(part, state):
            continue
        if not state.changes:  # changes are made to the whole weight
            asked.setdefault(id(state.fetch), (state.fetch, []))[1].append(part)
    for fetch, wanted in asked.values():
        for part, data in zip(wanted, fetch.parts(wanted), strict=True):
            brought[part] = data, part.of_scale(part.layer._buffers.get(part.name + SCALE_SUFFIX))
    return brought


def read_part(part: Part, brought: Kept | None = None) -> Tensor:
    """A part of a parameter, usable; only that is decoded. Works for layers that are not managed.

    `brought` is what `fetch_parts` gave of it.
    """
    layer, name = part.layer, part.name
    state = stored_state(layer)
    if state is None or name not in state.formats or state.changes or _cuts_blocks(part, state):
        whole: Tensor = getattr(layer, name)
        return part.of(whole)
    if brought is None:
        data, scale = stored_tensors(layer, name) if state.fetch is None else state.fetch(layer, name)
        brought = part.of(data), part.of_scale(scale)
    data, scale = brought
    return decode(state, name, data if data.dtype == state.compute_dtype else data.contiguous(), scale)


def _cuts_blocks(part: Part, state: Stored) -> bool:
    """Whether a part is columns of a weight that cannot be had without the rest: one packed along its rows, or one that
    is rotated in groups of columns of which the part does not hold whole ones."""
    storage = state.formats[part.name]
    if part.dimension != 1:
        return False
    if isinstance(storage, RotatedRowFormat):
        return bool(part.start % storage.group or part.stop % storage.group)
    return is_packed(storage)


def decode(state: Stored, name: str, data: Tensor, scale: Tensor | None, out: Tensor | None = None) -> Tensor:
    """Stored bytes to a weight on the compute device in the compute dtype; the stored bytes are what is moved."""
    device = state.device or data.device
    if data.device != device:
        data = data.to(device, non_blocking=True)
        scale = scale.to(device, non_blocking=True) if scale is not None else None
    if data.dtype == state.compute_dtype:
        return data
    storage = state.formats[name]
    if not data.is_floating_point() and scale is None and data.dtype != storage.dtype:
        return data
    if out is None or out.device != device:
        if device.type == "cuda" and data.ndim == 4 and data.shape == weight_shape(storage, data):
            out = torch.empty_like(data, dtype=state.compute_dtype)  # a convolution's may be channels-last
        else:
            out = torch.empty(weight_shape(storage, data), dtype=state.compute_dtype, device=device)
    if data.dtype != storage.dtype:  # somebody assigned another parameter, or moved the layer to another dtype
        return out.copy_(data)
    return storage.decode(data, scale, out)


# -- the subclass ------------------------------------------------------------------------------------------------------


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != dtype:
        return value.to(dtype)
    return value


def _short_lived(layer: nn.Module, name: str) -> Tensor | None:
    """A parameter that is used within this forward pass only and may therefore lie in the scratch buffer."""
    data = layer._parameters.get(name)
    state: Stored = layer.__dict__[STATE]
    if data is None or name not in state.formats:
        return data
    if (state.ready is not None and name in state.ready) or not _is_decoded_here(layer, name, data):
        return read_weight(layer, name)
    return read_weight(layer, name, scratch(tuple(weight_shape(state.formats[name], data)), state.compute_dtype))


def _is_decoded_here(layer: nn.Module, name: str, data: Tensor) -> bool:
    """Whether a stored parameter is decoded for one use, on the CPU, where nobody else gets hold of it."""
    state: Stored = layer.__dict__[STATE]
    if (state.device or data.device).type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    dtype = None if state.fetch is None else state.fetch.dtype(layer, name)
    return (dtype or data.dtype) != state.compute_dtype


def _bias(layer: Any, state: Stored) -> Tensor | None:
    """`layer.bias`, without asking the class for one that is not stored."""
    kept: Tensor | None = layer._parameters.get("bias")
    if kept is None or "bias" in state.formats:
        kept = layer.bias
    return kept


def _weight_for(layer: nn.Module, x: Tensor) -> tuple[Tensor, SideBranches | None]:
    """The weight to multiply `x` with, and the branches that are still to be computed as side branches."""
    weight = _short_lived(layer, "weight")
    assert weight is not None
    state: Stored = layer.__dict__[STATE]
    return weight, state.branches


MERGED_ROWS = 1 << 17
"""Elements of a weight, for each thread, that are decoded, changed and rounded at a time: they stay in a cache."""


def _merged_weight(layer: nn.Module, x: Tensor) -> Tensor | None:
    """The layer's weight with the product of its branches, decoded and added in float32 and rounded once to the compute
    dtype, for this call; None where side branches cost less or keep more of the change.

    It depends on shapes and on the format, so that a layer computes alike wherever its weights are. In bfloat16 no
    format is merged whose numbers are bfloat16 numbers themselves, or few between them: rounding would put them back.
    """
    state: Stored = layer.__dict__[STATE]
    branches, kept = state.branches, layer._parameters.get("weight")
    if branches is None or kept is None or state.changes or "weight" not in state.formats:
        return None
    storage, dtype = state.formats["weight"], state.compute_dtype
    if (state.device or kept.device).type != "cpu" or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return None
    if x.dtype != dtype or torch.is_autocast_enabled("cpu"):
        return None
    if dtype != torch.float32 and (dtype != torch.bfloat16 or not _lies_between_bf16(storage)):
        return None
    shape = tuple(weight_shape(storage, kept))
    change = branches.merging(layer, x, shape, state.product is not None)
    if change is None:
        return None
    data, scale = state.fetch(layer, "weight") if state.fetch is not None else stored_tensors(layer, "weight")
    if data.dtype != storage.dtype:  # the layer was moved to another dtype
        return None
    wide = replace(state, compute_dtype=torch.float32)
    out = scratch(shape, dtype)
    if dtype == torch.float32:
        change.add_delta_to(decode(wide, "weight", data, scale, out).contiguous(), out)
        return out
    delta = change.delta(out)
    rows = max(1, MERGED_ROWS * torch.get_num_threads() // delta.shape[1])
    decoded = torch.empty(rows, *shape[1:])
    for start in range(0, shape[0], rows):
        part = Part(layer, "weight", 0, start, min(shape[0], start + rows))
        count = part.stop - start
        number = decode(wide, "weight", part.of(data).contiguous(), part.of_scale(scale), decoded[:count])
        torch.add(number.reshape(count, -1), delta[start : part.stop].float(), out=decoded[:count].view(count, -1))
        out[start : part.stop].copy_(decoded[:count])
    return out


def _lies_between_bf16(storage: StorageFormat) -> bool:
    """Whether decoded numbers lie anywhere between those of bfloat16, so that rounding loses nothing on the whole of
    what is added to them: those of 8-bit floats and of bfloat16 itself do not."""
    if isinstance(storage, CodesFormat):
        storage = storage.floats
    return storage.dtype != torch.bfloat16 and not (storage.dtype.is_floating_point and storage.dtype.itemsize == 1)


def _linear(layer: Any, x: Tensor) -> Tensor:
    state: Stored = layer.__dict__[STATE]
    if _would_be_kept(layer, x):
        return _beside(layer, state.branches, x, frozen_linear(layer, x, _decoded_weight))
    bias = _bias(layer, state)
    if state.branches is not None and (merged := _merged_weight(layer, x)) is not None:
        return F.linear(x, merged, bias)
    if state.product is not None and (product := state.product(layer, state, x, bias)) is not None:
        return _beside(layer, state.branches, x, product)
    weight, branches = _weight_for(layer, x)
    return F.linear(x, weight, bias) if branches is None else branches.linear(layer, x, weight, bias)


def _convolution(layer: Any, x: Tensor) -> Tensor:
    state: Stored = layer.__dict__[STATE]
    if has_plain_padding(layer) and _would_be_kept(layer, x):
        return _beside(layer, state.branches, x, frozen_convolution(layer, x, _decoded_weight))
    bias = _bias(layer, state)
    output: Tensor
    if state.branches is not None and (merged := _merged_weight(layer, x)) is not None:
        output = layer._conv_forward(x, merged, bias)
        return output
    if state.product is not None and (product := state.product(layer, state, x, bias)) is not None:
        return _beside(layer, state.branches, x, product)
    weight, branches = _weight_for(layer, x)
    if branches is not None:
        return branches.convolution(layer, x, weight, bias)
    output = layer._conv_forward(x, weight, bias)
    return output


def _beside(layer: nn.Module, branches: SideBranches | None, x: Tensor, output: Tensor) -> Tensor:
    return output if branches is None else branches.add_to_output(layer, x, output)


def _would_be_kept(layer: nn.Module, x: Tensor) -> bool:
    """Whether autograd would hold on to a weight that is decoded for this call only."""
    if not torch.is_grad_enabled() or not x.requires_grad or torch.compiler.is_compiling():
        return False
    state: Stored = layer.__dict__[STATE]
    weight = layer._parameters.get("weight")
    if weight is None or "weight" not in state.formats or state.changes:  # a change may be what is being trained
        return False
    return weight.dtype != state.compute_dtype or state.fetch is not None


def _decoded_weight(layer: nn.Module) -> Tensor:
    """For one product of a frozen layer, forward or backward; autograd watches neither."""
    weight = _short_lived(layer, "weight")
    assert weight is not None
    return weight


QUICK: dict[Callable[..., Any], Callable[[Any, Tensor], Tensor]] = {
    nn.Linear.forward: _linear,
    nn.Conv1d.forward: _convolution,
    nn.Conv2d.forward: _convolution,
    nn.Conv3d.forward: _convolution,
}


@cache
def _managed_class(own_class: Any, names: tuple[str, ...]) -> Any:
    """A class of modules with a property for each stored parameter; its name stays, for messages and reprs."""
    quick = QUICK.get(own_class.forward)

    def reader(name: str) -> property:
        def read(layer: nn.Module) -> Tensor | None:
            return None if layer._parameters.get(name) is None else read_weight(layer, name)

        return property(read)

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        state: Stored = self.__dict__[STATE]
        if quick is not None and len(args) == 1 and not kwargs:
            return quick(self, _cast(args[0], state.compute_dtype) if state.cast_inputs else args[0])
        if state.cast_inputs:
            args = tuple(_cast(value, state.compute_dtype) for value in args)
            kwargs = {key: _cast(value, state.compute_dtype) for key, value in kwargs.items()}
        output = own_class.forward(self, *args, **kwargs)
        if state.branches is None:
            return output
        return _beside(self, state.branches, args[0] if args else kwargs["input"], output)

    forward.__doc__ = own_class.forward.__doc__
    forward.__wrapped__ = own_class.forward  # type: ignore[attr-defined] # inspect.signature follows it
    members: dict[str, Any] = {name: reader(name) for name in names}
    members |= {"forward": forward, "__module__": own_class.__module__}
    return type(own_class.__name__, (own_class,), members)
