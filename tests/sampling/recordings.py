"""The recordings that the sampling tests compare with, and the settings each recorded request stands for."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

REFERENCE = Path(__file__).parent.parent / "reference"
MODELS = REFERENCE / "models"


@cache
def _archive(name: str) -> dict[str, Tensor]:
    with np.load(REFERENCE / name) as archive:
        return {key: torch.from_numpy(archive[key]) for key in archive.files}


def parts() -> dict[str, Tensor]:
    """parts.npz as tensors."""
    return _archive("parts.npz")


def latents() -> dict[str, Tensor]:
    """latents.npz as tensors."""
    return _archive("latents.npz")


@cache
def facts() -> dict[str, Any]:
    """parts.json."""
    loaded: dict[str, Any] = json.loads((REFERENCE / "parts.json").read_text())
    return loaded


@cache
def cases() -> dict[str, dict[str, Any]]:
    """Payloads of the recorded requests by id."""
    loaded = json.loads((REFERENCE / "cases.json").read_text())
    listed = loaded if isinstance(loaded, list) else next(v for v in loaded.values() if isinstance(v, list))
    return {case["id"]: case.get("payload") or {} for case in listed}
