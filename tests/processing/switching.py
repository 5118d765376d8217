"""Changes between checkpoints, for a process of its own, where nothing else comes and goes."""

import gc
import shutil
from collections.abc import Sequence
from pathlib import Path

from modules.memory.timeline import resident_bytes
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.model_shelf import KeepOptions
from modules.system.devices import freeze_gc, tune_allocator
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, TINY, cpu_machine

FIRST, SEVERAL, MANY = 6, 12, 12  # of families in turn, so that the first and the last are of one


def measured(engine: Engine, names: Sequence[str], switches: int) -> tuple[int, int]:
    """Resident bytes after the first and after the last of so many changes through these checkpoints."""
    resident = []
    for number in range(switches):
        assert engine.model(names[number % len(names)]).switch_seconds > 0
        gc.collect()
        resident.append(resident_bytes() or 0)
    engine.close()
    return resident[FIRST - 1], resident[-1]


def all_ways(folder: Path) -> dict[str, tuple[int, int]]:
    """By way of changing: resident bytes after the first changes, and after the last."""
    tune_allocator()  # both as the server does
    freeze_gc()
    for name in "abc":
        shutil.copy(TINY, folder / f"{name}.safetensors")
        shutil.copy(TINY.with_suffix(".yaml"), folder / f"{name}.yaml")
    families = ("sd1", "sd2", "sdxl")
    for name in families:
        write_family(folder, name)
    catalogue = CheckpointCatalogue([folder], HashCache(folder / "hashes.json"))
    one = Engine(catalogue, CONFIGS, cpu_machine, options=EngineOptions(hashing=False))
    found = {"one at a time": measured(one, "ab", SEVERAL)}
    two = Engine(
        catalogue, CONFIGS, cpu_machine, options=EngineOptions(hashing=False, keep=lambda: KeepOptions(2, True, None))
    )
    found["two kept"] = measured(two, "abacbc", SEVERAL)
    mixed = Engine(catalogue, CONFIGS, cpu_machine, options=EngineOptions(hashing=False))
    found["three families"] = measured(mixed, families, MANY)
    return found
