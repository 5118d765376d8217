"""Filling empty modules from a file, one tensor at a time: read, rename, encode, place, drop.

At no time does more than the tensor at hand exist twice, so a load peaks at the size of the model as it is stored:
with fp8 on, no 16-bit copy of it ever exists. Tensors that are fp8 in the file are kept as they are, with the scale
that stands beside them, see `modules.models.eight_bits`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError, InvalidValueError
from modules.memory.formats import StorageFormat
from modules.memory.layer import manage, put
from modules.memory.matmul import multiply_in_8_bits
from modules.memory.row_table import RowTable, look_up_in_file
from modules.memory.scratch import release_scratch, scratch
from modules.memory.storage import CASTABLE, StorageRules
from modules.models.eight_bits import (
    LEFT_OVER,
    SCALE_NAMES,
    STORED_AS,
    check_declarations,
    read_scale,
    refuse_non_finite,
)
from modules.models.families.family import Component
from modules.models.resting import ModelRest
from modules.models.tensor_source import TensorSource

LISTED_NAMES = 12
SMALLEST_TABLE_BYTES = 1 << 20


@dataclass(frozen=True)
class Assignment:
    """One tensor of the file and where it goes."""

    original_key: str
    component: Component
    key: str
    scale_key: str | None = None  # the original name of the scale that belongs to it


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


@dataclass
class FillReport:
    """What happened on the way: by original name, how many weights were beyond their format's range."""

    saturated: dict[str, int] = field(default_factory=dict)


def plan_assignments(
    file: TensorSource, components: Sequence[Component], is_ignored: Callable[[str], bool]
) -> list[Assignment]:
    """Match the file's tensors with the modules' parameters.

    Raises one `CheckpointError` that lists everything missing, surplus or of the wrong shape, by name; and one for
    8-bit formats that are not understood.
    """
    check_declarations(file)
    wanted = {
        (component.name, key): (tuple(tensor.shape), tensor.is_floating_point())
        for component in components
        for key, tensor in component.module.state_dict().items()
    }
    assignments: list[Assignment] = []
    surplus: list[str] = []
    misshapen: list[str] = []
    scales = {key for key in file.entries if key.endswith(SCALE_NAMES)}
    for original_key, entry in file.entries.items():
        if original_key in scales or original_key.endswith(LEFT_OVER) or is_ignored(original_key):
            continue
        component = next((c for c in components if original_key.startswith(c.prefixes)), None)
        key = component.keymap.to_ours(original_key) if component else None
        if component is None or key is None or (component.name, key) not in wanted:
            surplus.append(original_key)
            continue
        shape, is_floating = wanted.pop((component.name, key))
        if component.keymap.shape_to_ours(original_key, entry.shape) != shape:
            misshapen.append(f"{original_key} is {list(entry.shape)}, the configuration says {list(shape)}")
            continue
        stem = original_key.removesuffix(".weight")
        scale_key = next((f"{stem}.{name}" for name in SCALE_NAMES if f"{stem}.{name}" in scales), None)
        if is_floating and not entry.dtype.is_floating_point and (entry.dtype, scale_key is not None) not in STORED_AS:
            dtype = str(entry.dtype).removeprefix("torch.")
            misshapen.append(f"{original_key} is {dtype}, which needs a scale of int8 to be a weight")
            continue
        assignments.append(Assignment(original_key, component, key, scale_key))
    used = {assignment.scale_key for assignment in assignments}
    surplus += [
        key for key in scales - used if not is_ignored(key) and not is_ignored(f"{key.rpartition('.')[0]}.weight")
    ]
    missing = [_original_name(components, name, key) for name, key in wanted]
    if missing or surplus or misshapen:
        raise CheckpointError(_complaint(file, components, assignments, missing, surplus, misshapen))
    return assignments


def fill(
    file: TensorSource, assignments: Iterable[Assignment], placement: Callable[[Component], Placement]
) -> FillReport:
    """Read, encode and place each tensor. Buffers that are in no file (position ids) are left to `finish_buffers`.

    Raises `CheckpointError` that names the tensor for NaN and infinity in 8-bit weights and their scales, and in
    every other weight of a component that is to be stored in 8 bits.
    """
    report = FillReport()
    managed: dict[int, tuple[nn.Module, dict[str, StorageFormat], Placement]] = {}
    for assignment in assignments:
        component, target = assignment.component, placement(assignment.component)
        if target.tables_in_file and _stays_in_file(file, assignment, target):
            continue
        if target.rest is not None and _is_left(file, assignment, target, target.rest):
            continue
        tensor = _read(file, assignment, target)
        if tensor.element_size() == 1:
            refuse_non_finite(file, assignment.original_key, tensor)
        scale = read_scale(file, assignment.scale_key, assignment.original_key, tuple(tensor.shape))
        tensor, scale = tensor.to(target.device), scale.to(target.device) if scale is not None else None
        path, _, name = assignment.key.rpartition(".")
        layer = component.module.get_submodule(path)
        as_it_is = STORED_AS.get((tensor.dtype, scale is not None))
        if as_it_is is not None and isinstance(layer, CASTABLE):
            storage: StorageFormat | None = as_it_is
            put(layer, name, tensor, scale)
        else:
            if as_it_is is not None or scale is not None:
                tensor = _widened(tensor, scale)
            storage = target.rules.format_of(path, layer, name, tuple(tensor.shape)) if target.rules else None
            if storage is None:
                if target.rules is not None:
                    refuse_non_finite(file, assignment.original_key, tensor)
                dtype = target.dtype if tensor.is_floating_point() else tensor.dtype
                set_tensor(component.module, assignment.key, tensor.to(dtype))
            else:
                _encode(layer, name, tensor, storage, assignment.original_key, file, report)
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


def _read(file: TensorSource, assignment: Assignment, target: Placement) -> Tensor:
    """A tensor as the file has it, in the shape of ours. One that will be encoded, and so is only passing through, is
    read into a buffer that all of them share."""
    entry = file.entries[assignment.original_key]
    passes = target.rules is not None and entry.dtype.itemsize > 1 and len(entry.shape) > 1
    layer_path, _, name = assignment.key.rpartition(".")
    if passes and target.rules is not None:
        layer = assignment.component.module.get_submodule(layer_path)
        shape = assignment.component.keymap.shape_to_ours(assignment.original_key, entry.shape)
        storage = target.rules.format_of(layer_path, layer, name, shape)
        passes = storage is not None and storage.dtype.itemsize == 1
    key = assignment.original_key
    tensor = file.read(key, scratch(entry.shape, entry.dtype) if passes else None)
    return assignment.component.keymap.tensor_to_ours(key, tensor)


def _is_left(file: TensorSource, assignment: Assignment, target: Placement, rest: ModelRest) -> bool:
    """Leave a weight that is stored plainly in the file, for streaming; False for any other."""
    key, keymap = assignment.original_key, assignment.component.keymap
    path, _, name = assignment.key.rpartition(".")
    layer = assignment.component.module.get_submodule(path)
    shape = keymap.shape_to_ours(key, file.entries[key].shape)
    is_encoded = target.rules is not None and target.rules.format_of(path, layer, name, shape) is not None
    if is_encoded or assignment.scale_key is not None:
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


def _encode(
    layer: nn.Module,
    name: str,
    tensor: Tensor,
    storage: StorageFormat,
    original_key: str,
    file: TensorSource,
    report: FillReport,
) -> None:
    try:
        encoded = storage.encode(tensor)
    except InvalidValueError as error:
        raise CheckpointError(
            f"{file.path.name}: {original_key} cannot be stored as {storage.name}: {error}"
        ) from error
    if encoded.saturated:
        report.saturated[original_key] = encoded.saturated
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


def _original_name(components: Sequence[Component], name: str, key: str) -> str:
    component = next(c for c in components if c.name == name)
    return component.keymap.to_original(key) or key


def _complaint(
    file: TensorSource,
    components: Sequence[Component],
    assignments: Sequence[Assignment],
    missing: list[str],
    surplus: list[str],
    misshapen: list[str],
) -> str:
    filled = {assignment.component.name for assignment in assignments}
    absent = [
        c for c in components if c.name not in filled and not any(key.startswith(c.prefixes) for key in file.entries)
    ]
    parts = [
        f"no {component.name} found (looked for {', '.join(component.prefixes)}*). {component.missing_hint}"
        for component in absent
    ]
    missing = [name for name in missing if not any(name.startswith(component.prefixes) for component in absent)]
    parts += [
        f"{len(names)} {what}: {_some(names)}."
        for what, names in (
            ("tensors are missing", missing),
            ("tensors belong to no part of the model", surplus),
            ("tensors have the wrong shape or type", misshapen),
        )
        if names
    ]
    remedy = "Use a complete file of this family, or put a YAML with the right sizes beside it."
    return f"{file.path.name}: {' '.join(parts)} {remedy}"


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:LISTED_NAMES])
    return listed if len(names) <= LISTED_NAMES else f"{listed} and {len(names) - LISTED_NAMES} more"
