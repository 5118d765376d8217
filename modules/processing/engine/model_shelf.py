"""Models that are loaded and not in use: kept as long as their number and the memory allow, so that changing back to
one reads no file. The least recently used goes first. Imports no torch."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modules.settings.values import Settings
from modules.system.devices import Memory, memory_info, shares_main_memory

if TYPE_CHECKING:
    import torch

    from modules.models.loading.loaded import LoadedModel
    from modules.processing.engine.conditioning import Conditioner

log = logging.getLogger(__name__)

SPARE_BYTES = 1 << 30
"""What is left free besides a model that is to be loaded: for its first image, and for other programs."""


@dataclass(frozen=True)
class KeepOptions:
    """The settings that say how many models are in memory at once, the one in use among them, and whether the others
    leave the device for main memory; and how many bytes the others may have there (None: as much as is free)."""

    limit: int = 1
    in_main_memory: bool = True
    max_main_bytes: int | None = None
    max_device_bytes: int | None = None
    headroom_bytes: int = 0  # of the device, for other programs

    @classmethod
    def of(cls, settings: Settings) -> KeepOptions:
        """Read from the settings."""
        return cls(
            settings.stable_diffusion.sd_checkpoints_limit,
            settings.stable_diffusion.sd_checkpoints_keep_in_cpu,
            _bytes(settings.stable_diffusion.sd_checkpoints_ram_gb),
            _bytes(settings.stable_diffusion.sd_checkpoints_vram_gb),
            headroom_bytes(settings),
        )

    def max_bytes(self, device: torch.device) -> int | None:
        """How many bytes models may have that are not in use, with this device."""
        return self.max_main_bytes if self.in_main_memory or shares_main_memory(device) else self.max_device_bytes


@dataclass(frozen=True)
class KeptModel:
    """A model with its prompt encoder and that one's cache."""

    model: LoadedModel
    conditioner: Conditioner | None


class ModelShelf:
    """At most one model a file. Not thread safe: the engine's lock is held around every call."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Path, KeptModel] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the files, the least recently used first."""
        return tuple(kept.model.info.name for kept in self._kept.values())

    def put(self, kept: KeptModel) -> None:
        """Keep a model, as the one that was used last."""
        self._kept[kept.model.info.path] = kept
        self._kept.move_to_end(kept.model.info.path)

    def take(self, path: Path) -> KeptModel | None:
        """The model of this file, which is no longer kept then; None where there is none."""
        return self._kept.pop(path, None)

    def trim(self, count: int) -> bool:
        """Keep at most `count`; whether any was dropped."""
        before = len(self._kept)
        while len(self._kept) > max(count, 0):
            self._drop_oldest("there are too many")
        return len(self._kept) < before

    def trim_bytes(self, most: int | None) -> bool:
        """Keep models of at most so many bytes together (None: of any); whether any was dropped."""
        before = len(self._kept)
        while most is not None and self.kept_bytes > most:
            self._drop_oldest(f"the setting allows {most / 1e9:.1f} GB for models that are not in use")
        return len(self._kept) < before

    @property
    def kept_bytes(self) -> int:
        """Bytes of the weights of all kept models."""
        return sum(kept.model.stored_bytes for kept in self._kept.values())

    def bytes_but(self, path: Path) -> int:
        """Bytes of the weights of all kept models but this file's; any thread may ask."""
        return sum(kept.model.stored_bytes for kept in tuple(self._kept.values()) if kept.model.info.path != path)

    def make_room(self, needed_bytes: int, free: Callable[[], int | None], release: Callable[[], None]) -> bool:
        """Drop models until so many bytes are free; whether they are, in the end. `release` gives what was dropped back
        to the system. Where `free` cannot tell (None), no model is dropped and the answer is yes."""
        while True:
            now = free()
            if now is None or now >= needed_bytes:
                return True
            if not self._kept:
                return False
            self._drop_oldest(f"{needed_bytes / 1e9:.1f} GB are needed and {now / 1e9:.1f} GB are free")
            release()

    def clear(self) -> bool:
        """Drop all; whether there were any."""
        return self.trim(0)

    def _drop_oldest(self, reason: str) -> None:
        _, kept = self._kept.popitem(last=False)
        log.info("%s is not kept in memory any longer: %s.", kept.model.info.name, reason)


def headroom_bytes(settings: Settings) -> int:
    """Return the bytes of the GPU's memory that stay free."""
    return round(settings.optimizations.vram_headroom_gb * 1e9)


def _bytes(gigabytes: float) -> int | None:
    """A number from the settings, where 0 means no bound."""
    return round(gigabytes * 1e9) if gigabytes > 0 else None


def move_weights(model: LoadedModel, device: torch.device | str) -> None:
    """Move all weights of a model, as they are stored; nothing is converted."""
    for module in model.modules:
        module.to(device)


def free_bytes(device: torch.device, in_main_memory: bool) -> int | None:
    """Free bytes where kept models lie: in main memory, or on the device. None where that cannot be found out."""
    memory = memory_info(device)
    if in_main_memory or shares_main_memory(device):
        return _number(memory["ram"], "free")
    system = memory["cuda"].get("system")
    return _number(system, "free") if isinstance(system, dict) else None


def _number(memory: Memory | dict[str, int], name: str) -> int | None:
    value = memory.get(name)
    return value if isinstance(value, int) else None
