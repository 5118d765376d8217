"""Filling empty modules from a file, one tensor at a time: read, rename, convert, place, drop.

At no time does more than the tensor at hand exist twice, so a load peaks at the model's own size.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modules.errors import CheckpointError
from modules.models.families.family import Component
from modules.models.tensor_file import TensorFile

LISTED_NAMES = 12


@dataclass(frozen=True)
class Assignment:
    """One tensor of the file and where it goes."""

    original_key: str
    component: Component
    key: str


@dataclass(frozen=True)
class Placement:
    """Where and as what a component's floating-point tensors end up."""

    device: torch.device
    dtype: torch.dtype


def plan_assignments(
    file: TensorFile, components: Sequence[Component], is_ignored: Callable[[str], bool]
) -> list[Assignment]:
    """Match the file's tensors with the modules' parameters.

    Raises one `CheckpointError` that lists everything missing, surplus or of the wrong shape, by name.
    """
    wanted = {
        (component.name, key): tuple(tensor.shape)
        for component in components
        for key, tensor in component.module.state_dict().items()
    }
    assignments: list[Assignment] = []
    surplus: list[str] = []
    misshapen: list[str] = []
    for original_key, entry in file.entries.items():
        if is_ignored(original_key):
            continue
        component = next((c for c in components if original_key.startswith(c.prefixes)), None)
        key = component.keymap.to_ours(original_key) if component else None
        if component is None or key is None or (component.name, key) not in wanted:
            surplus.append(original_key)
            continue
        shape = wanted.pop((component.name, key))
        if component.keymap.shape_to_ours(original_key, entry.shape) != shape:
            misshapen.append(f"{original_key} is {list(entry.shape)}, the configuration says {list(shape)}")
            continue
        assignments.append(Assignment(original_key, component, key))
    missing = [_original_name(components, name, key) for name, key in wanted]
    if missing or surplus or misshapen:
        raise CheckpointError(_complaint(file, components, assignments, missing, surplus, misshapen))
    return assignments


def fill(file: TensorFile, assignments: Iterable[Assignment], placement: Callable[[Component], Placement]) -> None:
    """Read and place each tensor. Buffers that are in no file (position ids) are left to `finish_buffers`."""
    for assignment in assignments:
        component = assignment.component
        tensor = component.keymap.tensor_to_ours(assignment.original_key, file.read(assignment.original_key))
        target = placement(component)
        dtype = target.dtype if tensor.is_floating_point() else tensor.dtype
        set_tensor(component.module, assignment.key, tensor.to(target.device, dtype))


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
    file: TensorFile,
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
            ("tensors have the wrong shape", misshapen),
        )
        if names
    ]
    remedy = "Use a complete file of this family, or put a YAML with the right sizes beside it."
    return f"{file.path.name}: {' '.join(parts)} {remedy}"


def _some(names: list[str]) -> str:
    listed = ", ".join(names[:LISTED_NAMES])
    return listed if len(names) <= LISTED_NAMES else f"{listed} and {len(names) - LISTED_NAMES} more"
