"""Whether an adapter fits the layers of a model; nothing is computed for it."""

from collections.abc import Sequence

import torch

from modules.adapters.adapter_file import AdapterError
from modules.adapters.targets import Target
from modules.errors import InvalidValueError
from modules.memory.changes import LayerChange

MAX_MISSING = 0.1  # of its layers
LISTED = 8


def check_shapes(adapter: str, target: Target, change: LayerChange) -> None:
    """Raises `AdapterError` for a change of another shape than the layer's, or factors that do not fit each other."""
    weight = target.layer._parameters.get("weight")
    if weight is None:
        raise AdapterError(f"{adapter}: {target.path} has no weight to change. {_CHOOSE}")
    if _plainly_fits(change, weight):
        return
    try:
        delta = change.weight_delta(torch.empty(weight.shape, device="meta"))
        fits = delta is None or delta.shape == weight.shape
        bias = change.bias_delta(None)
        fits = fits and (bias is None or bias.numel() == weight.shape[0])
    except (RuntimeError, IndexError, ValueError, InvalidValueError):  # what PyTorch raises for shapes, and our own
        fits = False
    if not fits:
        raise AdapterError(
            f"{adapter}: its change to {target.path} does not fit the layer's {list(weight.shape)}, or is damaged. "
            f"{_CHOOSE}"
        )


def _plainly_fits(change: LayerChange, weight: torch.Tensor) -> bool:
    """The usual case, without running through the change: two factors of just the layer's shape."""
    branch = change.branch()
    if branch is None or branch.mid is not None or branch.up.ndim < 2 or branch.down.ndim < 2:
        return False
    rank = branch.down.shape[0]
    is_up = branch.up.shape[:2] == (weight.shape[0], rank) and branch.up.numel() == weight.shape[0] * rank
    return is_up and branch.down.shape[1:] == weight.shape[1:]


def check_missing(adapter: str, count: int, missing: int, names: Sequence[str]) -> None:
    """Raises `AdapterError` where so many of an adapter's `count` layers are `missing` that it is for another family.

    A few may be: trainers reach some layers that other programs do not have. `names` are those to tell.
    """
    if missing > MAX_MISSING * count or (count and len(names) == count):
        raise AdapterError(
            f"{adapter} was made for another kind of model: {len(names)} of its {count} layers are not in this one "
            f"({_some(names)}). Choose a checkpoint of the kind it was trained on."
        )


def left_out(adapter: str, names: Sequence[str]) -> str:
    """The sentence about layers that are not in the model."""
    return f"{adapter}: {len(names)} of its layers are not in this model and were left out: {_some(names)}."


def _some(names: Sequence[str]) -> str:
    listed = ", ".join(names[:LISTED])
    return listed if len(names) <= LISTED else f"{listed} and {len(names) - LISTED} more"


_CHOOSE = "It was made for another kind of model; choose a checkpoint of that kind."
