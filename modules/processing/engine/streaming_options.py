"""From flags, settings, device and model family to whether weights are streamed, and how finely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from modules.settings.values import Settings
from modules.system.devices import shares_main_memory

if TYPE_CHECKING:
    import torch

    from modules.models.loading.stream_layout import StreamLayout

AUTOMATIC, OFF = "Automatic", "Off"
LEVELS = {"Parts": "component", "Blocks": "block", "Layers": "layer"}
"""Words of the setting, and the names of their levels."""
STREAM_KEYS = frozenset({"stream_weights", "stream_keep_gb"})
GB = 1_000_000_000


class StreamingFlags(Protocol):
    """The part of the command line that decides on streaming (`modules.flags.flags.Flags` fits)."""

    @property
    def medvram(self) -> bool: ...
    @property
    def medvram_sdxl(self) -> bool: ...
    @property
    def lowvram(self) -> bool: ...
    @property
    def offload_dir(self) -> str | None: ...


@dataclass(frozen=True)
class StreamFlags:
    """The streaming flags of the command line. `folder` is where weights may be written; `on_disk`: they are kept on
    disk."""

    large_only: bool = False
    level: str | None = None
    on_disk: bool = False
    folder: Path | None = None

    @classmethod
    def of(cls, flags: StreamingFlags, offload_dir: Path | None) -> StreamFlags:
        """--lowvram streams blocks; --medvram has the parts of a model take turns, --medvram-sdxl those of large ones.
        `offload_dir` is the place if --offload-dir names none."""
        given = Path(flags.offload_dir).expanduser().absolute() if flags.offload_dir else None
        folder = given or offload_dir
        if flags.lowvram:
            return cls(False, "block", given is not None, folder)
        turns = flags.medvram or flags.medvram_sdxl
        return cls(not flags.medvram, "component" if turns else None, given is not None, folder)


@dataclass(frozen=True)
class StreamOptions:
    """The streaming settings."""

    weights: str = AUTOMATIC
    keep_gb: float = 0.0
    quota_gb: float = 50.0

    @classmethod
    def of(cls, settings: Settings) -> StreamOptions:
        """Read from the settings of a job."""
        return cls(
            settings.optimizations.stream_weights,
            settings.optimizations.stream_keep_gb,
            settings.optimizations.offload_quota_gb,
        )


def finer_options(options: StreamOptions, flags: StreamFlags) -> tuple[StreamOptions, ...]:
    """Return what *Automatic* may go on to for a model that does not fit, from whole parts to layers, beyond what the
    command line asks for already; nothing if the user has chosen."""
    if options.weights != AUTOMATIC:
        return ()
    words = tuple(LEVELS)
    if flags.level is not None and not flags.large_only:
        words = words[list(LEVELS.values()).index(flags.level) + 1 :]
    return tuple(replace(options, weights=word) for word in words)


def stream_layout(
    options: StreamOptions, flags: StreamFlags, device: torch.device, is_large: bool
) -> StreamLayout | None:
    """The plan for a model on `device`; None: all of it lies there. The setting wins over the command line."""
    if options.weights == AUTOMATIC:
        level = None if flags.large_only and not is_large else flags.level
    else:
        level = LEVELS.get(options.weights)
    if level is None:
        return None
    from modules.memory.streaming.groups import Level
    from modules.models.loading.stream_layout import StreamLayout

    return StreamLayout(
        level=Level(level),
        on_disk=flags.on_disk or shares_main_memory(device),  # main memory is the device's memory
        folder=flags.folder,
        kept_bytes=round(options.keep_gb * GB),
        quota_bytes=round(options.quota_gb * GB),
    )
