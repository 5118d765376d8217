"""Storing a model's weights in a smaller format: which, how, and back again. Works on any `nn.Module`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.formats import FORMATS, StorageFormat
from modules.memory.layer import (
    SCALE_SUFFIX,
    decoded_together,
    manage,
    put,
    stored_state,
    stored_tensors,
    unmanage,
)
from modules.memory.skip import SkipRules

CASTABLE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm)
SMALLEST_SCALED_ELEMENTS = 4096  # smaller weights are not worth a scale and an error
GRANULARITIES = ("leaf", "block", "whole")


@dataclass(frozen=True)
class StorageRules:
    """What is stored in which format. `storage` is the name of a format in `FORMATS`.

    Formats without scales take weight and bias of every Linear and convolution, as the reference UI does; those with
    scales take the weights (two dimensions or more) and leave biases and small tensors in the compute dtype.
    `embeddings` adds embedding tables, `direct` parameters of two dimensions or more that a module which is no leaf
    layer owns itself (the in-projection of nn.MultiheadAttention). Norms are never taken.
    """

    storage: str
    skip: SkipRules = field(default_factory=SkipRules)
    embeddings: bool = False
    direct: bool = False

    def __post_init__(self) -> None:
        FORMATS.get(self.storage)

    def format_of(self, path: str, layer: nn.Module, name: str, shape: tuple[int, ...]) -> StorageFormat | None:
        """The format for the parameter `name` of `layer`, which stands at `path`; None: it stays."""
        storage = FORMATS.get(self.storage)
        if isinstance(layer, CASTABLE):
            wanted = name in ("weight", "bias")
        elif isinstance(layer, nn.Embedding):
            wanted = self.embeddings and name == "weight"
        else:
            wanted = self.direct and not isinstance(layer, NORMS) and len(shape) >= 2
        if not wanted or self.skip.skips(path, layer):
            return None
        if storage.scaled and (len(shape) < 2 or torch.Size(shape).numel() < SMALLEST_SCALED_ELEMENTS):
            return None
        return storage


@dataclass
class StorageHandle:
    """What `apply_storage` did, and the way back."""

    root: nn.Module
    layers: dict[str, nn.Module]
    saturated: dict[str, int]
    recast: list[tuple[nn.Parameter, Tensor]] = field(default_factory=list)
    _block_hooks: list[_BlockHook] = field(default_factory=list)

    def remove(self) -> None:
        """Give every layer its own class back, with the originals where they were kept, else what is stored, decoded
        to the compute dtype. Safe to call twice."""
        for hook in self._block_hooks:
            hook.remove()
        self._block_hooks.clear()
        for layer in self.layers.values():
            unmanage(layer)
        self.layers.clear()
        for parameter, original in self.recast:
            parameter.data = original
        self.recast.clear()

    def __enter__(self) -> StorageHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def apply_storage(
    root: nn.Module,
    rules: StorageRules,
    compute_dtype: torch.dtype,
    *,
    device: torch.device | None = None,
    cast_inputs: bool = True,
    granularity: str = "leaf",
    blocks: tuple[type[nn.Module], ...] = (),
    keep_original: bool = False,
) -> StorageHandle:
    """Store the weights below `root` by `rules`, computing in `compute_dtype`; returns the handle that undoes it.

    Everything else floating below `root` is cast to `compute_dtype`. Applied again, it reconfigures: layers whose
    format stays are left alone, others are encoded again from the kept original, or else from what is stored.
    `granularity`: "leaf" decodes a layer's weights for its own forward pass only; "block" those of each module of a
    class in `blocks` at once; "whole" all of root's: fewer casts, more memory. `keep_original` keeps the weights as
    they were, for `remove`.

    Raises `InvalidValueError` that names the tensor if a weight is not finite; nothing is changed then.
    """
    if granularity not in GRANULARITIES:
        raise InvalidValueError(f"granularity {granularity!r} is unknown. Allowed: {', '.join(GRANULARITIES)}.")
    _refuse_non_finite(root, rules)
    handle = StorageHandle(root, {}, {})
    done: dict[int, _TiedParameter] = {}
    for path, layer in list(root.named_modules()):
        formats: dict[str, StorageFormat] = {}
        originals: dict[str, nn.Parameter] = {}
        for name, parameter in list(layer._parameters.items()):
            if parameter is None:
                continue
            storage = rules.format_of(path, layer, name, tuple(parameter.shape))
            if storage is not None:
                formats[name] = storage
                tied = _store(layer, name, storage, done)
                originals[name] = tied.original
                if tied.saturated:
                    handle.saturated[_joined(path, name)] = tied.saturated
            elif _was_stored(layer, name):
                put(layer, name, _plain_weight(layer, name).to(compute_dtype), None)
            elif parameter.is_floating_point() and parameter.dtype != compute_dtype:
                if keep_original:
                    handle.recast.append((parameter, parameter.data))
                parameter.data = parameter.data.to(compute_dtype)
        _cast_buffers(layer, compute_dtype)
        if formats:
            state = manage(layer, formats, compute_dtype, device, cast_inputs and not isinstance(layer, nn.Embedding))
            if keep_original:
                state.original = {**originals, **state.original}
            handle.layers[path] = layer
        elif stored_state(layer) is not None:
            unmanage(layer)
    if granularity != "leaf":
        owners = [root] if granularity == "whole" else [m for m in root.modules() if isinstance(m, blocks)]
        handle._block_hooks = [_BlockHook(owner) for owner in owners]
    return handle


def stored_bytes(root: nn.Module) -> int:
    """Bytes of all parameters below `root` as they are stored, with their scales; shared ones count once."""
    seen: dict[int, int] = {}
    for layer in root.modules():
        for tensor in layer._parameters.values():
            if tensor is not None and not tensor.is_meta:  # a table that is looked up in its file
                seen[id(tensor)] = tensor.numel() * tensor.element_size()
        for name, buffer in layer._buffers.items():
            if buffer is not None and name.endswith(SCALE_SUFFIX) and stored_state(layer) is not None:
                seen[id(buffer)] = buffer.numel() * buffer.element_size()
    return sum(seen.values())


def managed_layers(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Path and layer of everything below `root` that is managed."""
    return ((path, layer) for path, layer in root.named_modules() if stored_state(layer) is not None)


class _BlockHook:
    """Decodes a block's weights together for the time of its forward pass; `remove` takes it away."""

    def __init__(self, block: nn.Module) -> None:
        self._block = block
        self._forward = block.__dict__.get("forward")
        inner = block.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            with decoded_together(block):
                return inner(*args, **kwargs)

        forward.__wrapped__ = inner  # type: ignore[attr-defined]
        block.__dict__["forward"] = forward

    def remove(self) -> None:
        if self._forward is None:
            self._block.__dict__.pop("forward", None)
        else:
            self._block.__dict__["forward"] = self._forward


def _refuse_non_finite(root: nn.Module, rules: StorageRules) -> None:
    for path, layer in root.named_modules():
        for name, parameter in layer._parameters.items():
            if parameter is None or stored_state(layer) is not None:
                continue
            if rules.format_of(path, layer, name, tuple(parameter.shape)) is None:
                continue
            if parameter.element_size() > 1 and not bool(torch.isfinite(parameter.data).all()):
                raise InvalidValueError(
                    f"{_joined(path, name)} holds NaN or infinite numbers and cannot be stored as {rules.storage}. "
                    "The file is damaged, or was trained to pieces: use another copy."
                )


@dataclass(frozen=True)
class _TiedParameter:
    """What a parameter became, for the other places where the same parameter stands. Keeps it alive, so that its id
    stays its own."""

    original: nn.Parameter
    stored: nn.Parameter
    scale: Tensor | None
    saturated: int


def _store(layer: nn.Module, name: str, storage: StorageFormat, done: dict[int, _TiedParameter]) -> _TiedParameter:
    """Encode one parameter in place; a tied one gets the parameter that its twin got."""
    state = stored_state(layer)
    parameter = layer._parameters[name]
    assert parameter is not None
    tied = done.get(id(parameter))
    if tied is None:
        if state is not None and state.formats.get(name) is storage:
            tied = _TiedParameter(parameter, parameter, layer._buffers.get(name + SCALE_SUFFIX), 0)
        else:
            encoded = storage.encode(_plain_weight(layer, name))
            tied = _TiedParameter(
                parameter, nn.Parameter(encoded.data, requires_grad=False), encoded.scale, encoded.saturated
            )
        done[id(parameter)] = done[id(tied.stored)] = tied
    put(layer, name, tied.stored, tied.scale)
    return tied


def _plain_weight(layer: nn.Module, name: str) -> Tensor:
    """A parameter's numbers without any changes: the kept original, or what is stored, decoded to float32."""
    state = stored_state(layer)
    if state is None or name not in state.formats:
        parameter = layer._parameters[name]
        assert parameter is not None
        return parameter.data
    if name in state.original:
        return state.original[name].data
    data, scale = stored_tensors(layer, name)
    return state.formats[name].decode(data, scale, torch.empty(data.shape, dtype=torch.float32, device=data.device))


def _was_stored(layer: nn.Module, name: str) -> bool:
    state = stored_state(layer)
    return state is not None and name in state.formats


def _cast_buffers(layer: nn.Module, dtype: torch.dtype) -> None:
    for name, buffer in layer._buffers.items():
        if buffer is not None and buffer.is_floating_point() and not name.endswith(SCALE_SUFFIX):
            layer._buffers[name] = buffer.to(dtype)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
