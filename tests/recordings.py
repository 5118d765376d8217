"""The recordings of the reference UI in `tests/reference/`, and the tiny model that made them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import Machine
from tests.extensions import adapters_of

REFERENCE = Path(__file__).parent / "reference"
CONFIGS = Path(__file__).parent.parent / "configs"
TINY = REFERENCE / "models" / "tiny-sd1.safetensors"


@cache
def cases() -> tuple[dict[str, Any], ...]:
    """Every recorded request with its reply."""
    return tuple(json.loads((REFERENCE / "cases.json").read_text(encoding="utf-8"))["cases"])


def cpu_machine() -> Machine:
    """fp32 on the CPU, as the recordings were made."""
    return Machine(torch.device("cpu"), torch.float32, torch.float32)


def tiny_engine(cache_dir: Path) -> Engine:
    """An engine that finds the tiny checkpoint."""
    catalogue = CheckpointCatalogue([REFERENCE / "models"], HashCache(cache_dir / "hashes.json"))
    return Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=tiny_adapters()))


def tiny_adapters() -> Adapters:
    """The recorded networks of all kinds."""
    models = REFERENCE / "models"
    return adapters_of(models / "Lora", models / "embeddings", models / "hypernetworks")
