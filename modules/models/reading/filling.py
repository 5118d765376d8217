"""Filling empty modules from a file, tensor by tensor: read, rename, encode, place, drop.

Where the bytes lie in the file as the layer wants them, slices of them are read and encoded by one thread a core,
ahead of their turn, so a load peaks at the size of the model as it is stored; elsewhere, and on a GPU, at
that and one tensor. With fp8 on, no 16-bit copy of the model ever exists. Tensors that are fp8 in the file are kept as
they are, with the scale that stands beside them, see `modules.models.eight_bits`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError, InvalidValueError
from modules.memory.formats import Encoded, StorageFormat
from modules.memory.matmul import multiply_in_8_bits
from modules.memory.row_table import RowTable, look_up_in_file
from modules.memory.scratch import release_scratch, scratch
from modules.memory.storage import CASTABLE, StorageRules, StoredLayers
from modules.models.eight_bits import STORED_AS, read_scale, refuse_non_finite
from modules.models.families.family import Component
from modules.models.layouts.keymaps.keymap import KeyMap
from modules.models.reading.matching import Assignment
from modules.models.reading.offloading import ModelRest
from modules.models.reading.preparing import MAX_AHEAD, Preparation, Work, as_dtype, mapped
from modules.models.reading.tensor_source import TensorSource

SMALLEST_TABLE_BYTES = 1 << 20
SMALLEST_AHEAD_BYTES = 1 << 16
"""Smaller weights are read sooner than handed to another thread."""


@dataclass(frozen=True)
class Placement:
    """Where and as what a component's floating-point tensors end up.

    Tensors that `rules` give no format are kept in `dtype`; the others compute in `compute_dtype`. `cast_inputs` is
    False where autocast converts the layers' inputs.
    """

    device: torch.device
    dtype: torch.dtype
    compute_dtype: torch.dtype
    rules: StorageRules | None = None
    cast_inputs: bool = True
    fp8_matmul: bool = False  # linear layers multiply in 8 bits where they can
    tables_in_file: bool = False  # leave large embedding tables where they are, see `modules.memory.row_table`
    rest: ModelRest | None = None  # where weights rest, if they are to be streamed
    map_files: bool = False  # large weights that need no conversion are pages of the file, read when they are used


@dataclass(frozen=True)
class _Slot:
    """Where one tensor of the file goes: parameter or buffer `name` of `layer`, which its component knows by `path`."""

    assignment: Assignment
    target: Placement
    layer: nn.Module
    path: str
    name: str

    @property
    def key(self) -> str:
        """The tensor's name in the file."""
        return self.assignment.original_key

    @property
    def keymap(self) -> KeyMap:
        return self.assignment.component.keymap


@dataclass
class FillReport:
    """What happened on the way: by original name, how many weights were beyond their format's range."""

    saturated: dict[str, int] = field(default_factory=dict)


def fill(
    file: TensorSource, assignments: Iterable[Assignment], placement: Callable[[Component], Placement]
) -> FillReport:
    """Read, encode and place each tensor. Buffers that are in no file (position ids) are left to `finish_buffers`.

    Raises `CheckpointError` that names the tensor for NaN and infinity in 8-bit weights and their scales, and in
    every other weight of a component that is to be stored in 8 bits.
    """
    report = FillReport()
    assignments = list(assignments)
    components = {item.component.name: item.component for item in assignments}
    targets = {name: placement(component) for name, component in components.items()}
    stored = {name: StoredLayers() for name in components}
    ahead = None if all(target.rest is None for target in targets.values()) else MAX_AHEAD
    with Preparation() as preparation:
        steps = _steps(file, _slots(assignments, targets), preparation)
        for (slot, storage), ready in preparation.in_order(steps, ahead):
            if ready is None:
                storage, ready = _read_and_encode(file, slot, storage)
            if storage is None:
                set_tensor(slot.layer, slot.name, ready.data)
            else:
                stored[slot.assignment.component.name].put(slot.layer, slot.name, storage, ready, slot.key)
            if slot.target.rest is not None:
                slot.target.rest.take(file, slot.key, slot.keymap, slot.layer, slot.name)
    release_scratch()
    for name, layers in stored.items():
        target = targets[name]
        for layer in layers.manage(target.compute_dtype, target.cast_inputs):
            if target.fp8_matmul:
                multiply_in_8_bits(layer)
        report.saturated |= layers.saturated
    return report


def _slots(assignments: Iterable[Assignment], targets: Mapping[str, Placement]) -> Iterator[_Slot]:
    layers: dict[str, dict[str, nn.Module]] = {}
    for assignment in assignments:
        component = assignment.component
        if component.name not in layers:
            layers[component.name] = dict(component.module.named_modules(remove_duplicate=False))
        path, _, name = assignment.key.rpartition(".")
        yield _Slot(assignment, targets[component.name], layers[component.name][path], path, name)


def _steps(
    file: TensorSource, slots: Iterable[_Slot], preparation: Preparation
) -> Iterator[tuple[tuple[_Slot, StorageFormat | None], Work | Encoded | None]]:
    """What is to be placed, and in which format, with what makes it ready where that can be done ahead; what
    stays in the file is dealt with at once."""
    for slot in slots:
        target = slot.target
        if target.tables_in_file and _stays_in_file(file, slot):
            continue
        storage = _format_of(file, slot)
        if storage is None and target.rest is not None and _is_left(file, slot, target.rest):
            continue
        yield (slot, storage), _work_ahead(file, slot, storage, preparation)


def _work_ahead(
    file: TensorSource, slot: _Slot, storage: StorageFormat | None, preparation: Preparation
) -> Work | Encoded | None:
    """What makes a plain weight ready for the CPU, or the weight if there is nothing to make; None for others."""
    target = slot.target
    is_small = file.entries[slot.key].size_bytes < SMALLEST_AHEAD_BYTES
    if is_small or target.device.type != "cpu" or slot.assignment.scale_key is not None:
        return None
    rows = preparation.rows(file, slot.key, slot.keymap)
    if rows is None:
        return None
    if storage is not None:
        return partial(_named_errors, file, slot, storage.name, partial(storage.encode_rows, rows))
    if target.rules is not None:
        return partial(as_dtype, rows, target.dtype, partial(refuse_non_finite, file, slot.key))
    pages = mapped(rows, target.dtype) if target.map_files and target.rest is None else None
    return pages or partial(as_dtype, rows, target.dtype)


def _format_of(file: TensorSource, slot: _Slot) -> StorageFormat | None:
    """The format that the rules give a tensor."""
    rules = slot.target.rules
    if rules is None:
        return None
    return rules.format_of(
        slot.path, slot.layer, slot.name, slot.keymap.shape_to_ours(slot.key, file.entries[slot.key].shape)
    )


def _read_and_encode(
    file: TensorSource, slot: _Slot, storage: StorageFormat | None
) -> tuple[StorageFormat | None, Encoded]:
    """A tensor of any kind, encoded, with the format it is in: `storage`, or the file's. None: it is not stored."""
    target = slot.target
    tensor = _read(file, slot, storage)
    if tensor.element_size() == 1:
        refuse_non_finite(file, slot.key, tensor)
    scale = read_scale(file, slot.assignment.scale_key, slot.key, tuple(tensor.shape))
    tensor, scale = tensor.to(target.device), scale.to(target.device) if scale is not None else None
    as_it_is = STORED_AS.get((tensor.dtype, scale is not None))
    if as_it_is is not None and isinstance(slot.layer, CASTABLE):
        return as_it_is, Encoded(tensor, scale)
    if as_it_is is not None or scale is not None:
        tensor = _widened(tensor, scale)
    if storage is None:
        if target.rules is not None:
            refuse_non_finite(file, slot.key, tensor)
        return None, Encoded(tensor.to(target.dtype if tensor.is_floating_point() else tensor.dtype))
    return storage, _named_errors(file, slot, storage.name, partial(storage.encode, tensor))


def _read(file: TensorSource, slot: _Slot, storage: StorageFormat | None) -> Tensor:
    """A tensor as the file has it, in the shape of ours. One that will be encoded, and so is only passing through, is
    read into a buffer that all of them share."""
    entry = file.entries[slot.key]
    is_encoded = storage is not None and storage.dtype.itemsize == 1
    passes = is_encoded and entry.dtype.itemsize > 1 and len(entry.shape) > 1
    tensor = file.read(slot.key, scratch(entry.shape, entry.dtype) if passes else None)
    return slot.keymap.tensor_to_ours(slot.key, tensor)


def _is_left(file: TensorSource, slot: _Slot, rest: ModelRest) -> bool:
    """Leave a weight that is stored plainly in the file, for streaming; False for any other."""
    if slot.assignment.scale_key is not None:
        return False
    is_left = rest.leave(file, slot.key, slot.keymap, slot.layer, slot.name, slot.target.dtype)
    if is_left and slot.target.rules is not None:
        refuse_non_finite(file, slot.key, file.read(slot.key))
    return is_left


def _stays_in_file(file: TensorSource, slot: _Slot) -> bool:
    """Have a large embedding table looked up in the file; False for any other tensor."""
    if not file.has_offsets:
        return False
    entry = file.entries[slot.key]
    large = entry.size_bytes >= SMALLEST_TABLE_BYTES and len(entry.shape) == 2
    is_wide = entry.dtype.is_floating_point and entry.dtype.itemsize > 1
    if type(slot.layer) is not nn.Embedding or not large or not is_wide:
        return False
    path = entry.file or file.path
    stat = path.stat()
    shape = (entry.shape[0], entry.shape[1])
    table = RowTable(path, entry.begin, shape, entry.dtype, stat.st_size, stat.st_mtime_ns)
    look_up_in_file(slot.layer, table, slot.target.dtype, slot.target.device)
    return True


def _named_errors(file: TensorSource, slot: _Slot, storage: str, work: Work) -> Encoded:
    """What `work` makes; a weight that it refuses becomes a `CheckpointError` that names the tensor."""
    try:
        return work()
    except InvalidValueError as error:
        raise CheckpointError(f"{file.path.name}: {slot.key} cannot be stored as {storage}: {error}") from error


def _widened(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """An 8-bit tensor of a file as float32."""
    wide = tensor.to(torch.float32)
    return wide if scale is None else wide * scale.reshape(-1, *(1,) * (wide.ndim - 1))


def set_tensor(layer: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace the parameter or buffer `name` of a layer by `tensor`, without copying it."""
    if name in layer._parameters:
        layer._parameters[name] = nn.Parameter(tensor, requires_grad=False)
    else:
        layer._buffers[name] = tensor


def finish_buffers(module: nn.Module, device: torch.device) -> None:
    """Give a value to the buffers that no checkpoint holds: CLIP's `position_ids` counts up from 0."""
    for name, buffer in list(module.named_buffers()):
        if not buffer.is_meta:
            continue
        assert name.endswith("position_ids"), f"no rule for the buffer {name}"
        path, _, own_name = name.rpartition(".")
        positions = torch.arange(buffer.shape[-1], device=device).expand(tuple(buffer.shape))
        set_tensor(module.get_submodule(path), own_name, positions)
