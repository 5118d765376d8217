"""A format for each layer so that a model fits into so many bytes, with the least total error.

A layer's output is off by about as much as its weights are, whatever its size, and the errors of layers add up like
independent noise. So what is made least is the sum of the squared relative errors of all layers, each measured on rows
of its own weights in each format; no images are needed. That is a knapsack with one choice per layer, solved exactly up
to a rounding of bytes: small layers and those that lose most keep more bits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.formats.blocks import for_weight, kept_bytes
from modules.memory.formats.catalog import block_formats
from modules.memory.formats.format import FORMATS
from modules.memory.storage import StorageRules
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.matching import Assignment, layers_of
from modules.models.placing import PlacingRules, Way, placed

CANDIDATES = block_formats()
"""Formats that a layer may get, the best first; or it stays in 16 bits."""
SMALLEST = CANDIDATES[-1]
STEPS = 8192  # into which the budget is divided
MEASURED_ROWS = 24
GB = 1e9


@dataclass(frozen=True)
class Choice:
    """The bytes and the error of one layer in one format; None: it stays."""

    storage: str | None
    size_bytes: int
    error: float  # squared, relative


@dataclass
class BudgetPlan:
    """Formats by component and our name of the weight; None: it stays. `fixed_bytes`: of what has no choice."""

    budget_bytes: int
    fixed_bytes: int = 0
    chosen: dict[str, dict[str, str | None]] = field(default_factory=dict)
    size_bytes: int = 0
    error: float = 0.0  # the root of the sum of squared relative errors over the layers

    def explained(self) -> str:
        """For people: what became of the layers, and how that was chosen."""
        counts: Counter[str] = Counter(name or "16 bits" for part in self.chosen.values() for name in part.values())
        layers = ", ".join(f"{counts[name]} in {name}" for name in ("16 bits", *CANDIDATES) if counts[name])
        per_layer = self.error / max(sum(counts.values()), 1) ** 0.5
        return (
            f"Fits {self.budget_bytes / GB:.3g} GB: {self.size_bytes / GB:.3g} GB, of which "
            f"{self.fixed_bytes / GB:.3g} GB have no choice (VAE, norms, small and skipped layers). Layers: {layers}. "
            "Each layer's error was measured in every format, and the formats were chosen for which the sum of the "
            f"squared relative errors of all layers is least: its root is {self.error:.3g}, {per_layer:.2%} per layer."
        )


def plan_budget(
    file: TensorSource,
    assignments: Iterable[Assignment],
    rules_of: Callable[[str], StorageRules | None],
    budget_bytes: int,
    progress: Callable[[], None] = lambda: None,
) -> BudgetPlan:
    """Choose. `rules_of` gives the rules of a component (as `StorageRules` of `SMALLEST`), or None where all stays.

    Reads every weight that has a choice once, and encodes some of its rows. `progress` receives each, and may raise.
    Raises `InvalidValueError` that says what would fit.
    """
    plan = BudgetPlan(budget_bytes)
    layers: list[tuple[str, str, list[Choice]]] = []
    for assignment, layer in layers_of(file, assignments):
        component, key = assignment.component, assignment.original_key
        entry = file.entries[key]
        is_wide = entry.dtype.is_floating_point and entry.dtype.itemsize > 1
        is_wide = is_wide and entry.packed is None and entry.rotated is None
        found = placed(entry, layer, PlacingRules(torch.float16, rules_of(component.name)))
        if found.way is not Way.ENCODED or not is_wide:
            plan.fixed_bytes += entry.size_bytes if not is_wide else 2 * torch.Size(layer.shape).numel()
            continue
        weight = component.keymap.tensor_to_ours(key, file.read(key))
        layers.append((component.name, assignment.key, choices_of(weight)))
        progress()
    picked = solve([choices for _, _, choices in layers], budget_bytes - plan.fixed_bytes, plan.fixed_bytes)
    plan.size_bytes = plan.fixed_bytes + sum(choice.size_bytes for choice in picked)
    plan.error = sum(choice.error for choice in picked) ** 0.5
    for (component_name, key, _), choice in zip(layers, picked, strict=True):
        plan.chosen.setdefault(component_name, {})[key] = choice.storage
    return plan


def choices_of(weight: Tensor) -> list[Choice]:
    """Return the bytes and the error of a weight in each format that can hold it, from 16 bits down."""
    shape = tuple(weight.shape)
    choices = [Choice(None, 2 * weight.numel(), 0.0)]
    step = max(1, len(weight) // MEASURED_ROWS)
    rows = weight[::step][:MEASURED_ROWS].float().contiguous()
    norm = float(rows.square().sum())
    for name in CANDIDATES:
        storage, sample = for_weight(FORMATS.get(name), shape), for_weight(FORMATS.get(name), tuple(rows.shape))
        if storage is None or sample is None:
            continue
        encoded = sample.encode(rows)
        off = sample.decode(encoded.data, encoded.scale, torch.empty(rows.shape)).sub_(rows)
        choices.append(Choice(name, kept_bytes(storage, shape), float(off.square().sum()) / norm if norm else 0.0))
    return choices


def solve(layers: Sequence[Sequence[Choice]], budget_bytes: int, fixed_bytes: int = 0) -> list[Choice]:
    """One choice for each layer with the least sum of errors, within the budget.

    A dynamic program over layers and bytes used; sizes are rounded up to 1/8192 of the budget, so what it returns
    always fits. Raises `InvalidValueError`; `fixed_bytes` are for its sentence.
    """
    least = sum(min(choice.size_bytes for choice in choices) for choices in layers)
    if least > budget_bytes:
        raise InvalidValueError(
            f"The weights do not fit {(budget_bytes + fixed_bytes) / GB:.3g} GB: in 4 bits, with what must stay in 16, "
            f"they take {math.ceil((least + fixed_bytes) / 1e6) / 1e3:.4g} GB. Allow that, or stream weights."
        )
    best = [max(choices, key=lambda choice: choice.size_bytes) for choices in layers]
    if sum(choice.size_bytes for choice in best) <= budget_bytes:
        return best
    # Sizes are counted above each layer's smallest choice, so that rounding costs at most one unit a layer.
    spare = budget_bytes - least
    unit = max(1, spare // STEPS)
    room = spare // unit
    errors: npt.NDArray[np.float64] = np.zeros(room + 1)
    taken = np.zeros((len(layers), room + 1), dtype=np.int8)
    for index, choices in enumerate(layers):
        smallest = min(choice.size_bytes for choice in choices)
        result = np.full(room + 1, np.inf)
        for number, choice in enumerate(choices):
            units = -(-(choice.size_bytes - smallest) // unit)
            if units > room:
                continue
            candidate = np.full(room + 1, np.inf)
            candidate[units:] = errors[: room + 1 - units] + choice.error
            better = candidate < result
            result[better] = candidate[better]
            taken[index, better] = number
        errors = result
    at = int(np.argmin(errors))
    picked: list[Choice] = []
    for index in range(len(layers) - 1, -1, -1):
        choice = layers[index][int(taken[index, at])]
        picked.append(choice)
        at -= -(-(choice.size_bytes - min(other.size_bytes for other in layers[index])) // unit)
    return picked[::-1]
