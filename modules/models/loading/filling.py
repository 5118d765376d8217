"""Filling empty modules from a file, tensor by tensor: read, rename, encode, place, drop.

Where the bytes lie in the file as the layer wants them, slices of them are read and encoded by one thread a core,
ahead of their turn, so a load peaks at the size of the model as it is stored; elsewhere, and on a GPU, at
that and one tensor. With fp8 on, no 16-bit copy of the model ever exists. Tensors that are fp8 in the file are kept as
they are, with the scale that is next to them, see `modules.models.files.eight_bits`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError, InvalidValueError
from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.codes import CodesFormat
from modules.memory.formats.format import Encoded, dtype_name, row_width
from modules.memory.row_table import RowTable, look_up_in_file
from modules.memory.scratch import release_scratch, scratch
from modules.memory.storage import StoredLayers
from modules.models.files.coded_file import read_rotated
from modules.models.files.eight_bits import read_scale, refuse_non_finite, widened
from modules.models.files.gguf_file import read_packed
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.matching import COUNTERS, Assignment, layers_of
from modules.models.loading.offloading import OffloadPlan
from modules.models.loading.preparing import MAX_AHEAD, Preparation, Work, as_dtype, mapped
from modules.models.names.component import Component
from modules.models.names.keymap import KeyMap
from modules.models.names.view import lies_in_one_row
from modules.models.placing import Layer, Placed, PlacingRules, Way, format_in_file, placed
from modules.system.devices import shares_main_memory

CHECKED_AT_ONCE = 1 << 20  # elements
NOT_ON_APPLE = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float64)
"""Dtypes that a device without 8-bit floats is given as float32; its GPUs are the ones without 64 bits, too."""
ALWAYS_FINITE = (torch.int8,)
"""Dtypes of weights without codes for NaN and infinity."""
SMALLEST_AHEAD_BYTES = 1 << 16
"""Smaller weights are read sooner than handed to another thread."""


@dataclass(frozen=True)
class Placement:
    """Where and as what a component's floating-point tensors end up.

    What is stored computes in `compute_dtype`. `cast_inputs` is False where autocast converts the layers' inputs.
    """

    device: torch.device
    rules: PlacingRules
    compute_dtype: torch.dtype
    cast_inputs: bool = True
    multiply: Callable[[nn.Module], bool] | None = None  # has a layer multiply without decoding, where it can
    rest: OffloadPlan | None = None  # where weights rest, if they are to be streamed
    map_files: bool = False  # large weights that need no conversion are pages of the file, read when they are used


@dataclass(frozen=True)
class _Slot:
    """Where one tensor of the file goes, and what becomes of it. `shape_in_file` is our shape of one whose bytes are
    contiguous in the file, in our order; None for others."""

    assignment: Assignment
    target: Placement
    layer: Layer
    placed: Placed
    shape_in_file: torch.Size | None

    @property
    def key(self) -> str:
        """The tensor's name in the file."""
        return self.assignment.original_key

    @property
    def module(self) -> nn.Module:
        return self.layer.module

    @property
    def name(self) -> str:
        return self.layer.name

    @property
    def keymap(self) -> KeyMap:
        return self.assignment.component.keymap


@dataclass
class FillReport:
    """The report of filling a model: by original name, how many weights were beyond their format's range; by format,
    how many tensors stayed as the file has them in fewer bits; and by format in the file and in memory, and the
    expected error, how many of those are in another one now."""

    saturated: dict[str, int] = field(default_factory=dict)
    kept: Counter[str] = field(default_factory=Counter)
    encoded: Counter[tuple[str, str, float | None]] = field(default_factory=Counter)


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
        steps = _steps(file, _slots(file, assignments, targets), preparation)
        for slot, ready in preparation.in_order(steps, ahead):
            if ready is None:
                ready = _from_pages(file, slot, preparation) or _read_and_encode(file, slot)
            _count(report, file, slot)
            if slot.placed.format is None:
                set_tensor(slot.module, slot.name, ready.data)
            else:
                stored[slot.layer.component].put(slot.module, slot.name, slot.placed.format, ready, slot.key)
            if slot.target.rest is not None:
                slot.target.rest.take(file, slot.key, slot.shape_in_file, slot.module, slot.name)
    release_scratch()
    for name, layers in stored.items():
        target = targets[name]
        for layer in layers.manage(target.compute_dtype, target.cast_inputs):
            if target.multiply is not None:
                target.multiply(layer)
        report.saturated |= layers.saturated
    return report


def _count(report: FillReport, file: TensorSource, slot: _Slot) -> None:
    """Count a tensor that the file has in fewer than 16 bits."""
    before = format_in_file(file.entries[slot.key], slot.layer.scale is not None)
    if before is None:
        return
    storage = slot.placed.format
    after = dtype_name(slot.target.rules.dtype) if storage is None else storage.name
    if after == before:
        report.kept[before] += 1
    else:
        report.encoded[before, after, slot.placed.error] += 1


def _slots(file: TensorSource, assignments: Iterable[Assignment], targets: Mapping[str, Placement]) -> Iterator[_Slot]:
    for assignment, layer in layers_of(file, assignments):
        target, entry = targets[layer.component], file.entries[assignment.original_key]
        rules = target.rules if file.has_offsets else replace(target.rules, tables_in_file=False)
        shape = _shape_in_file(file, assignment.original_key, assignment.component.keymap)
        yield _Slot(assignment, target, layer, placed(entry, layer, rules), shape)


def _shape_in_file(file: TensorSource, key: str, keymap: KeyMap) -> torch.Size | None:
    """See `_Slot`."""
    if not lies_in_one_row(file, key):
        return None
    entry = file.entries[key]
    if not entry.size_bytes:  # zeros that are in no file
        return None
    shell = torch.empty(entry.shape, device="meta")
    ours = keymap.tensor_to_ours(key, shell)
    is_view = ours is shell or ours._base is shell
    return ours.shape if is_view and ours.is_contiguous() and ours.numel() == shell.numel() else None


def _steps(
    file: TensorSource, slots: Iterable[_Slot], preparation: Preparation
) -> Iterator[tuple[_Slot, Work | Encoded | None]]:
    """Yield what is to be placed, with what makes it ready where that can be done by another thread ahead of its turn;
    what stays in the file, as a table or streamed from where it is, is dealt with at once."""
    for slot in slots:
        if slot.placed.way is Way.IN_FILE:
            _look_up_table(file, slot)
        elif _is_left(file, slot):
            _leave(file, slot)
        else:
            yield slot, _work_ahead(file, slot, preparation) if _is_ahead(file, slot) else None


def _is_left(file: TensorSource, slot: _Slot) -> bool:
    """Return whether a tensor is streamed from where it is in the file."""
    rest, shape = slot.target.rest, slot.shape_in_file
    if rest is None or shape is None or slot.layer.scale is not None or slot.placed.way is not Way.PLAIN:
        return False
    return rest.leaves(file.entries[slot.key].dtype, shape, slot.module, slot.name, slot.target.rules.dtype)


def _is_ahead(file: TensorSource, slot: _Slot) -> bool:
    """Return whether a tensor is read and encoded by another thread."""
    entry = file.entries[slot.key]
    is_there = slot.shape_in_file is not None and slot.layer.scale is None and slot.placed.way is not Way.KEPT
    is_wide = entry.dtype.is_floating_point and entry.dtype.itemsize > 1
    return is_there and is_wide and slot.target.device.type == "cpu" and entry.size_bytes >= SMALLEST_AHEAD_BYTES


def _work_ahead(file: TensorSource, slot: _Slot, preparation: Preparation) -> Work | Encoded:
    """Return what makes a weight ready for the CPU, or the weight if there is nothing to make."""
    target, storage, dtype = slot.target, slot.placed.format, slot.target.rules.dtype
    assert slot.shape_in_file is not None
    rows = preparation.rows(file, slot.key, slot.shape_in_file)
    if storage is not None:
        return partial(_named_errors, file, slot, storage.name, partial(storage.encode_rows, rows))
    if target.rules.storage is not None:
        return partial(as_dtype, rows, dtype, partial(refuse_non_finite, file, slot.key))
    pages = mapped(rows, dtype) if target.map_files and target.rest is None else None
    return pages or partial(as_dtype, rows, dtype)


def _from_pages(file: TensorSource, slot: _Slot, preparation: Preparation) -> Encoded | None:
    """Copy a plain weight to a GPU whose memory is main memory from the pages of the file, so that it is nowhere twice;
    None where it has to be read."""
    target = slot.target
    is_plain = slot.layer.scale is None and slot.placed.way is Way.PLAIN and target.rules.storage is None
    if not (is_plain and target.map_files and target.rest is None and slot.shape_in_file is not None):
        return None
    dtype = file.entries[slot.key].dtype
    is_there = target.device.type != "cpu" and shares_main_memory(target.device)
    if not is_there or not dtype.is_floating_point or dtype.itemsize not in (2, 4):
        return None
    pages = mapped(preparation.rows(file, slot.key, slot.shape_in_file), dtype)
    return pages and Encoded(pages.data.to(target.device).to(target.rules.dtype))


def _read_and_encode(file: TensorSource, slot: _Slot) -> Encoded:
    """Read a tensor of any dtype, and make of it what it is to become."""
    target, entry, storage = slot.target, file.entries[slot.key], slot.placed.format
    is_kept = slot.placed.way is Way.KEPT
    if is_kept and isinstance(storage, BlockFormat):
        return _kept_blocks(file, slot, storage)
    if is_kept and entry.rotated is not None:
        kept = read_rotated(file.path, entry, slot.key)
        assert kept.scale is not None
        return Encoded(kept.data.to(target.device), kept.scale.to(target.device))
    unread = _unread_codes(file, slot)
    tensor = _read(file, slot) if unread is None else unread
    if tensor.element_size() == 1 and unread is None:
        refuse_non_finite(file, slot.key, tensor)
    scale = read_scale(file, slot.assignment.scale_key, slot.key, tuple(tensor.shape))
    if is_kept and isinstance(storage, CodesFormat):
        tensor = tensor.view(torch.uint8)
    elif not target.rules.float8 and tensor.dtype in NOT_ON_APPLE:
        tensor, scale = widened(tensor, scale), None
    tensor = tensor.to(target.device) if unread is None else tensor
    scale = scale.to(target.device) if scale is not None else None
    if is_kept:
        return Encoded(tensor, scale)
    if scale is not None or (tensor.element_size() == 1 and tensor.is_floating_point()):
        tensor = widened(tensor, scale)
    if storage is None:
        if target.rules.storage is not None:
            refuse_non_finite(file, slot.key, tensor)
        return Encoded(tensor.to(target.rules.dtype if tensor.is_floating_point() else tensor.dtype))
    return _named_errors(file, slot, storage.name, partial(storage.encode, tensor))


def _unread_codes(file: TensorSource, slot: _Slot) -> Tensor | None:
    """Return shape and dtype of a weight that is streamed from its place in the file, and whose codes are all finite,
    so that nothing of it has to be read. None: it is to be read."""
    entry, rest, shape = file.entries[slot.key], slot.target.rest, slot.shape_in_file
    if entry.dtype not in ALWAYS_FINITE or slot.placed.way is not Way.KEPT:
        return None
    if rest is None or shape is None or not rest.leaves_codes(shape, entry.dtype):
        return None
    return torch.empty(shape, dtype=entry.dtype, device="meta")


def _kept_blocks(file: TensorSource, slot: _Slot, storage: BlockFormat) -> Encoded:
    """The blocks of a weight. Raises `CheckpointError` that names it where one decodes to NaN or infinity."""
    data = read_packed(file.path, file.entries[slot.key], slot.key)
    assert storage.shape is not None
    for row in range(0, len(data), max(1, CHECKED_AT_ONCE // max(1, row_width(storage.shape)))):
        part = data[row : row + max(1, CHECKED_AT_ONCE // max(1, row_width(storage.shape)))]
        wide = torch.empty((len(part), *storage.shape[1:]), dtype=torch.float32)
        refuse_non_finite(file, slot.key, storage.decode(part, None, wide))
    return Encoded(data.to(slot.target.device))


def _read(file: TensorSource, slot: _Slot) -> Tensor:
    """A tensor as the file has it, in the shape of ours. One that will be encoded, and so is only passing through, is
    read into a buffer that all of them share."""
    entry, storage = file.entries[slot.key], slot.placed.format
    is_encoded = storage is not None and storage.dtype.itemsize == 1
    passes = is_encoded and entry.dtype.itemsize > 1 and len(entry.shape) > 1
    tensor = file.read(slot.key, scratch(entry.shape, entry.dtype) if passes else None)
    return slot.keymap.tensor_to_ours(slot.key, tensor)


def _leave(file: TensorSource, slot: _Slot) -> None:
    """Leave a weight that is stored plainly in the file, for streaming."""
    target = slot.target
    assert target.rest is not None and slot.shape_in_file is not None
    target.rest.leave(file, slot.key, slot.shape_in_file, slot.module, slot.name, target.rules.dtype)
    if target.rules.storage is not None:
        refuse_non_finite(file, slot.key, file.read(slot.key))


def _look_up_table(file: TensorSource, slot: _Slot) -> None:
    """Have an embedding table looked up in the file."""
    assert isinstance(slot.module, nn.Embedding)
    entry = file.entries[slot.key]
    path = entry.file or file.path
    stat = path.stat()
    shape = (entry.shape[0], entry.shape[1])
    table = RowTable(path, entry.begin, shape, entry.dtype, stat.st_size, stat.st_mtime_ns)
    table.bring_to_cache()
    look_up_in_file(slot.module, table, slot.target.rules.dtype, slot.target.device)


def _named_errors(file: TensorSource, slot: _Slot, storage: str, work: Work) -> Encoded:
    """Run `work`; a weight that it refuses becomes a `CheckpointError` that names the tensor."""
    try:
        return work()
    except InvalidValueError as error:
        raise CheckpointError(f"{file.path.name}: {slot.key} cannot be stored as {storage}: {error}") from error


def set_tensor(layer: nn.Module, name: str, tensor: Tensor) -> None:
    """Replace the parameter or buffer `name` of a layer by `tensor`, without copying it."""
    if name in layer._parameters:
        layer._parameters[name] = nn.Parameter(tensor, requires_grad=False)
    else:
        layer._buffers[name] = tensor


def finish_buffers(module: nn.Module, device: torch.device) -> None:
    """Give a value to the buffers that no checkpoint holds, and to those of training that this one does without:
    CLIP's `position_ids` counts up from 0, what counts batches is 0."""
    for name, buffer in list(module.named_buffers()):
        if not buffer.is_meta:
            continue
        path, _, own_name = name.rpartition(".")
        if name.endswith(COUNTERS):
            value = torch.zeros(tuple(buffer.shape), dtype=buffer.dtype, device=device)
        else:
            assert name.endswith("position_ids"), f"no rule for the buffer {name}"
            value = torch.arange(buffer.shape[-1], device=device).expand(tuple(buffer.shape))
        set_tensor(module.get_submodule(path), own_name, value)
