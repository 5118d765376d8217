"""Filling empty modules from a file, tensor by tensor: read, rename, encode, place, drop.

Where the bytes lie in the file as the layer wants them, slices of them are read and encoded by one thread a core,
ahead of their turn, so a load peaks at the size of the model as it is stored; elsewhere, and on a graphics card, at
that and one tensor. With fp8 on, no 16-bit copy of the model ever exists. Tensors that are fp8 in the file are kept as
they are, with the scale that stands beside them, see `modules.models.eight_bits`.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError, InvalidValueError
from modules.memory.formats import Encoded, StorageFormat
from modules.memory.layer import manage, put
from modules.memory.matmul import multiply_in_8_bits
from modules.memory.row_table import RowTable, look_up_in_file
from modules.memory.scratch import release_scratch, scratch
from modules.memory.storage import CASTABLE, StorageRules
from modules.models.eight_bits import STORED_AS, read_scale, refuse_non_finite
from modules.models.families.family import Component
from modules.models.matching import Assignment
from modules.models.preparing import Preparation, Work, as_dtype
from modules.models.resting import ModelRest
from modules.models.tensor_source import TensorSource

SMALLEST_TABLE_BYTES = 1 << 20


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
    managed: dict[int, tuple[nn.Module, dict[str, StorageFormat], Placement]] = {}
    with Preparation() as preparation:
        steps = _steps(file, assignments, placement, preparation)
        for (assignment, target, storage), ready in preparation.in_order(steps):
            component = assignment.component
            path, _, name = assignment.key.rpartition(".")
            layer = component.module.get_submodule(path)
            if ready is None:
                storage = _place_as_read(file, assignment, target, storage, report)
            else:
                if storage is None:
                    set_tensor(component.module, assignment.key, ready.data)
                else:
                    _put(layer, name, ready, assignment, report)
            if storage is not None:
                managed.setdefault(id(layer), (layer, {}, target))[1][name] = storage
            if target.rest is not None:
                target.rest.take(file, assignment.original_key, component.keymap, layer, name)
    release_scratch()
    for layer, formats, target in managed.values():
        casts = target.cast_inputs and not isinstance(layer, nn.Embedding)
        manage(layer, formats, target.compute_dtype, cast_inputs=casts)
        if target.fp8_matmul:
            multiply_in_8_bits(layer)
    return report


def _steps(
    file: TensorSource,
    assignments: Iterable[Assignment],
    placement: Callable[[Component], Placement],
    preparation: Preparation,
) -> Iterator[tuple[tuple[Assignment, Placement, StorageFormat | None], Work | None]]:
    """What is to be placed, and in which format, with the work that makes it ready where that can be done ahead; what
    stays in the file is dealt with at once."""
    for assignment in assignments:
        target = placement(assignment.component)
        if target.tables_in_file and _stays_in_file(file, assignment, target):
            continue
        storage = _format_of(file, assignment, target)
        if storage is None and target.rest is not None and _is_left(file, assignment, target, target.rest):
            continue
        yield (assignment, target, storage), _work_ahead(file, assignment, target, storage, preparation)


def _work_ahead(
    file: TensorSource,
    assignment: Assignment,
    target: Placement,
    storage: StorageFormat | None,
    preparation: Preparation,
) -> Work | None:
    """What makes a plain weight ready for the processor; None for others."""
    if target.device.type != "cpu" or assignment.scale_key is not None:
        return None
    rows = preparation.rows(file, assignment.original_key, assignment.component.keymap)
    if rows is None:
        return None
    if storage is not None:
        return partial(_named_errors, file, assignment, storage.name, partial(storage.encode_rows, rows))
    if target.rules is not None:
        check = partial(refuse_non_finite, file, assignment.original_key)
        return partial(as_dtype, rows, target.dtype, may_be_mapped=False, check=check)
    return partial(as_dtype, rows, target.dtype, may_be_mapped=target.map_files and target.rest is None)


def _format_of(file: TensorSource, assignment: Assignment, target: Placement) -> StorageFormat | None:
    """The format that the rules give a tensor."""
    if target.rules is None:
        return None
    path, _, name = assignment.key.rpartition(".")
    layer = assignment.component.module.get_submodule(path)
    key = assignment.original_key
    shape = assignment.component.keymap.shape_to_ours(key, file.entries[key].shape)
    return target.rules.format_of(path, layer, name, shape)


def _place_as_read(
    file: TensorSource, assignment: Assignment, target: Placement, storage: StorageFormat | None, report: FillReport
) -> StorageFormat | None:
    """Read, encode and place a tensor of any kind; returns the format it is stored in: `storage`, or the file's."""
    component = assignment.component
    tensor = _read(file, assignment, storage)
    if tensor.element_size() == 1:
        refuse_non_finite(file, assignment.original_key, tensor)
    scale = read_scale(file, assignment.scale_key, assignment.original_key, tuple(tensor.shape))
    tensor, scale = tensor.to(target.device), scale.to(target.device) if scale is not None else None
    path, _, name = assignment.key.rpartition(".")
    layer = component.module.get_submodule(path)
    as_it_is = STORED_AS.get((tensor.dtype, scale is not None))
    if as_it_is is not None and isinstance(layer, CASTABLE):
        put(layer, name, tensor, scale)
        return as_it_is
    if as_it_is is not None or scale is not None:
        tensor = _widened(tensor, scale)
    if storage is None:
        if target.rules is not None:
            refuse_non_finite(file, assignment.original_key, tensor)
        dtype = target.dtype if tensor.is_floating_point() else tensor.dtype
        set_tensor(component.module, assignment.key, tensor.to(dtype))
        return None
    encoded = _named_errors(file, assignment, storage.name, partial(storage.encode, tensor))
    _put(layer, name, encoded, assignment, report)
    return storage


def _read(file: TensorSource, assignment: Assignment, storage: StorageFormat | None) -> Tensor:
    """A tensor as the file has it, in the shape of ours. One that will be encoded, and so is only passing through, is
    read into a buffer that all of them share."""
    entry = file.entries[assignment.original_key]
    is_encoded = storage is not None and storage.dtype.itemsize == 1
    passes = is_encoded and entry.dtype.itemsize > 1 and len(entry.shape) > 1
    key = assignment.original_key
    tensor = file.read(key, scratch(entry.shape, entry.dtype) if passes else None)
    return assignment.component.keymap.tensor_to_ours(key, tensor)


def _is_left(file: TensorSource, assignment: Assignment, target: Placement, rest: ModelRest) -> bool:
    """Leave a weight that is stored plainly in the file, for streaming; False for any other."""
    key, keymap = assignment.original_key, assignment.component.keymap
    path, _, name = assignment.key.rpartition(".")
    layer = assignment.component.module.get_submodule(path)
    if assignment.scale_key is not None:
        return False
    is_left = rest.leave(file, key, keymap, layer, name, target.dtype)
    if is_left and target.rules is not None:
        refuse_non_finite(file, key, file.read(key))
    return is_left


def _stays_in_file(file: TensorSource, assignment: Assignment, target: Placement) -> bool:
    """Have a large embedding table looked up in the file; False for any other tensor."""
    if not file.has_offsets:
        return False
    entry = file.entries[assignment.original_key]
    layer = assignment.component.module.get_submodule(assignment.key.rpartition(".")[0])
    large = entry.size_bytes >= SMALLEST_TABLE_BYTES and len(entry.shape) == 2
    if type(layer) is not nn.Embedding or not large or not entry.dtype.is_floating_point or entry.dtype.itemsize < 2:
        return False
    path = entry.file or file.path
    stat = path.stat()
    shape = (entry.shape[0], entry.shape[1])
    table = RowTable(path, entry.begin, shape, entry.dtype, stat.st_size, stat.st_mtime_ns)
    look_up_in_file(layer, table, target.dtype, target.device)
    return True


def _named_errors(file: TensorSource, assignment: Assignment, storage: str, work: Work) -> Encoded:
    """What `work` makes; a weight that it refuses becomes a `CheckpointError` that names the tensor."""
    try:
        return work()
    except InvalidValueError as error:
        key = assignment.original_key
        raise CheckpointError(f"{file.path.name}: {key} cannot be stored as {storage}: {error}") from error


def _put(layer: nn.Module, name: str, encoded: Encoded, assignment: Assignment, report: FillReport) -> None:
    if encoded.saturated:
        report.saturated[assignment.original_key] = encoded.saturated
    put(layer, name, encoded.data, encoded.scale)


def _widened(tensor: Tensor, scale: Tensor | None) -> Tensor:
    """An 8-bit tensor of a file as float32."""
    wide = tensor.to(torch.float32)
    return wide if scale is None else wide * scale.reshape(-1, *(1,) * (wide.ndim - 1))


def set_tensor(module: nn.Module, key: str, tensor: Tensor) -> None:
    """Replace the parameter or buffer `key` (dotted) of `module` by `tensor`, without copying it."""
    parent_name, _, name = key.rpartition(".")
    parent = module.get_submodule(parent_name)
    if name in parent._parameters:
        parent._parameters[name] = nn.Parameter(tensor, requires_grad=False)
    else:
        parent._buffers[name] = tensor


def finish_buffers(module: nn.Module, device: torch.device) -> None:
    """Give a value to the buffers that no checkpoint holds: CLIP's `position_ids` counts up from 0."""
    for name, buffer in list(module.named_buffers()):
        if not buffer.is_meta:
            continue
        assert name.endswith("position_ids"), f"no rule for the buffer {name}"
        set_tensor(module, name, torch.arange(buffer.shape[-1], device=device).expand(tuple(buffer.shape)))
