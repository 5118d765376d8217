"""Which tensor of a file is which parameter of ours, before any is read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from modules.errors import CheckpointError
from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES, STORED_AS, check_declarations, scale_key_of
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component
from modules.models.placing import Layer

LISTED_NAMES = 12
COUNTERS = ("num_batches_tracked",)
"""Last names of buffers that only training reads: files may do without them."""


@dataclass(frozen=True)
class Assignment:
    """One tensor of the file and where it goes."""

    original_key: str
    component: Component
    key: str
    scale_key: str | None = None  # the original name of the scale that belongs to it


def assign_tensors(
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
        if component is not None and component.unused and original_key.startswith(component.unused):
            continue
        key = component.keymap.to_ours(original_key) if component else None
        if component is None or key is None or (component.name, key) not in wanted:
            surplus.append(original_key)
            continue
        shape, is_floating = wanted.pop((component.name, key))
        if component.keymap.shape_to_ours(original_key, entry.shape) != shape:
            misshapen.append(f"{original_key} is {list(entry.shape)}, the configuration says {list(shape)}")
            continue
        scale_key = scale_key_of(file.entries, original_key)
        if is_floating and not entry.dtype.is_floating_point and (entry.dtype, scale_key is not None) not in STORED_AS:
            dtype = str(entry.dtype).removeprefix("torch.")
            misshapen.append(f"{original_key} is {dtype}, which needs a scale of int8 to be a weight")
            continue
        assignments.append(Assignment(original_key, component, key, scale_key))
    used = {assignment.scale_key for assignment in assignments}
    unused = tuple(beginning for component in components for beginning in component.unused)
    surplus += [
        key
        for key in scales - used
        if not is_ignored(key) and not is_ignored(f"{key.rpartition('.')[0]}.weight") and not key.startswith(unused)
    ]
    missing = [_original_name(components, name, key) for name, key in wanted if not key.endswith(COUNTERS)]
    if missing or surplus or misshapen:
        raise CheckpointError(_complaint(file, components, assignments, missing, surplus, misshapen))
    return assignments


def layers_of(file: TensorSource, assignments: Iterable[Assignment]) -> Iterator[tuple[Assignment, Layer]]:
    """Yield the assignments, each with the place of its tensor."""
    known: dict[str, dict[str, nn.Module]] = {}
    for item in assignments:
        component, entry = item.component, file.entries[item.original_key]
        if component.name not in known:
            known[component.name] = dict(component.module.named_modules(remove_duplicate=False))
        path, _, name = item.key.rpartition(".")
        shape = component.keymap.shape_to_ours(item.original_key, entry.shape)
        scale = None if item.scale_key is None else file.entries[item.scale_key]
        yield item, Layer(component.name, known[component.name][path], path, name, shape, scale)


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
    absent = [c for c in components if c.name not in filled and c.missing_in(file.entries)]
    parts = [component.missing_in(file.entries) for component in absent]
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
    remedy = "Use a complete file of this family, or put a YAML with the right sizes next to it."
    return f"{file.path.name}: {' '.join(parts)} {remedy}"


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:LISTED_NAMES])
    return listed if len(names) <= LISTED_NAMES else f"{listed} and {len(names) - LISTED_NAMES} more"
