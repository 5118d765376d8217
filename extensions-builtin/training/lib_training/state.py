"""State that a training needs to go on after it was killed: written in one step, so that there is always a whole
one."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lib_training.failures import TrainingError
from lib_training.stepping import Trainer
from modules.system.atomic_files import keep_aside, output_error, write_atomic

VERSION = 1
SUFFIX = ".training"


@dataclass
class History:
    """Measurements so far: [step, value] pairs; `samples` are files of images by step."""

    loss: list[tuple[int, float]] = field(default_factory=list)
    validation: list[tuple[int, float]] = field(default_factory=list)
    best_step: int = 0
    best: float | None = None


@dataclass(frozen=True)
class Place:
    """Where a training stands: steps done, the position in the data, seconds."""

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0


def write_state(path: Path, trainer: Trainer, place: Place, history: History, identity: str) -> None:
    """Replace the state file. Raises `OutputError`; the former one stays then."""
    data = {
        "version": VERSION,
        "identity": identity,
        "place": asdict(place),
        "history": asdict(history),
        "parameters": [parameter.detach().cpu() for parameter in trainer.parameters],
        "optimizer": trainer.optimizer.state_dict(),
        "average": trainer.average.means,
    }
    buffer = io.BytesIO()
    torch.save(data, buffer)
    try:
        write_atomic(path, buffer.getvalue())
    except OSError as error:
        raise output_error(path.name, path.parent, error) from error


@torch.no_grad()
def read_state(path: Path, trainer: Trainer, identity: str) -> tuple[Place, History] | None:
    """Put a state back; None where there is none. A damaged file is kept aside.

    Raises `TrainingError` for one of another configuration.
    """
    if not path.is_file():
        return None
    try:
        data = torch.load(path, map_location="cpu", weights_only=True)
        place, history = Place(**data["place"]), _history(data["history"])
        parameters: list[Tensor] = data["parameters"]
    except Exception as error:  # torch raises whatever the damage leads to
        aside = keep_aside(path)
        raise TrainingError(
            f"The state {path.name} is damaged and was kept as {aside.name}. Start again: the training starts again."
        ) from error
    if data["identity"] != identity or data["version"] != VERSION:
        raise TrainingError(
            f"{path.name} is the state of a training with other options, images or base. Give output.name another "
            "name, set output.resume to false to start again, or put back what was changed."
        )
    for parameter, known in zip(trainer.parameters, parameters, strict=True):
        parameter.copy_(known)
    for mean, known in zip(trainer.average.means, data["average"], strict=True):
        mean.copy_(known)
    trainer.optimizer.load_state_dict(data["optimizer"])
    trainer.step = place.step
    return place, history


def _history(data: dict[str, Any]) -> History:
    pairs = {name: [(int(step), float(value)) for step, value in data[name]] for name in ("loss", "validation")}
    return History(**pairs, best_step=data["best_step"], best=data["best"])
