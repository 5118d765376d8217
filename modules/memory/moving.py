"""Moving a module between devices with everything that belongs to its stored layers, and back to exactly what it was.

`nn.Module.to` knows nothing of a stored layer's compute dtype, of the changes and branches of adapters, and of tables
that stay in their file.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from modules.memory.changes import AllBranches, Branches, DecodedChanges
from modules.memory.layer import stored_state
from modules.memory.row_table import move_row_table


def move(root: nn.Module, device: torch.device, compute_dtype: torch.dtype | None = None) -> Callable[[], None]:
    """Move all of `root` to `device`; returns the way back.

    With `compute_dtype` everything that is not stored in 8 bits is cast to it and stored layers compute in it. On the
    way back dtypes come back too: exact where `compute_dtype` is the wider one.
    """
    undo: list[Callable[[], None]] = []
    for layer in root.modules():
        undo += _move_layer(layer, device, compute_dtype)

    def back() -> None:
        while undo:
            undo[-1]()  # may run out of memory: then it is still to be done
            undo.pop()

    return back


def _move_layer(layer: nn.Module, device: torch.device, dtype: torch.dtype | None) -> list[Callable[[], None]]:
    undo = []
    for name, tensor in (*layer._parameters.items(), *layer._buffers.items()):
        if tensor is None or tensor.is_meta:
            continue
        is_plain = tensor.is_floating_point() and tensor.dtype.itemsize > 1 and not name.endswith("_scale")
        undo.append(_put(layer, name, device, dtype if is_plain else None))
    table_back = move_row_table(layer, device, dtype)
    if table_back is not None:
        undo.append(table_back)
    undo += _move_state(layer, device, dtype)
    return undo


def _put(layer: nn.Module, name: str, device: torch.device, dtype: torch.dtype | None) -> Callable[[], None]:
    """Replace a parameter's or buffer's data; the parameter object stays."""

    def replace(device: torch.device, dtype: torch.dtype) -> None:
        held = layer._parameters.get(name)
        if held is not None:
            held.data = held.data.to(device, dtype)
        elif layer._buffers.get(name) is not None:
            buffer = layer._buffers[name]
            layer._buffers[name] = None if buffer is None else buffer.to(device, dtype)

    tensor: Tensor | None = layer._parameters.get(name)
    if tensor is None:
        tensor = layer._buffers[name]
    assert tensor is not None
    old = (tensor.device, tensor.dtype)
    replace(device, dtype or tensor.dtype)
    return lambda: replace(*old)


def _move_state(layer: nn.Module, device: torch.device, dtype: torch.dtype | None) -> list[Callable[[], None]]:
    """Move what a managed layer holds besides its tensors."""
    state = stored_state(layer)
    if state is None:
        return []
    undo: list[Callable[[], None]] = []
    old_device, old_dtype = state.device, state.compute_dtype

    def back() -> None:
        state.device, state.compute_dtype = old_device, old_dtype

    state.device = None if state.device is None else device
    state.compute_dtype = dtype or old_dtype
    undo.append(back)
    for change in state.changes:
        if isinstance(change, DecodedChanges):
            undo.append(_move_kept(change, device))
    if isinstance(state.branches, AllBranches):
        undo += [_move_branches(part, device) for part in state.branches.parts]
        undo.append(_move_bias(state.branches, device))
    return undo


def _move_kept(change: DecodedChanges, device: torch.device) -> Callable[[], None]:
    old = {name: tensor.device for name, tensor in change._kept.items()}

    def to(devices: dict[str, torch.device]) -> None:
        for name, where in devices.items():
            change._kept[name] = change._kept[name].to(where)

    to(dict.fromkeys(old, device))
    return lambda: to(old)


def _move_branches(part: Branches, device: torch.device) -> Callable[[], None]:
    old = part.down.device

    def to(where: torch.device) -> None:
        part.down, part.up, part.scale = (tensor.to(where) for tensor in (part.down, part.up, part.scale))
        part.mid = _moved(part.mid, where)

    to(device)
    return lambda: to(old)


def _move_bias(branches: AllBranches, device: torch.device) -> Callable[[], None]:
    old = None if branches.bias is None else branches.bias.device
    branches.bias = _moved(branches.bias, device)

    def back() -> None:
        if old is not None:
            branches.bias = _moved(branches.bias, old)

    return back


def _moved(tensor: Tensor | None, device: torch.device) -> Tensor | None:
    return None if tensor is None else tensor.to(device)
