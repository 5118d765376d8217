"""Whether and how the weights of a model are streamed: part of the precision plan, settled before a file is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from modules.memory.streaming.groups import Level

WORDS = {
    Level.COMPONENT: "parts take turns",
    Level.BLOCK: "blocks are streamed",
    Level.LAYER: "layers are streamed",
}


@dataclass(frozen=True, kw_only=True)
class StreamLayout:
    """`level` is that of the large components. Weights are stored in main memory, or `on_disk`: in the checkpoint
    file, and what that does not hold as it is needed in `folder` (None: in main memory). `kept_bytes` stay on the
    device.
    """

    level: Level
    on_disk: bool
    folder: Path | None = None
    kept_bytes: int = 0
    quota_bytes: int = field(default=50 << 30, compare=False)

    def level_of(self, component: str) -> Level:
        """How finely "unet", "text_encoder", "vae" ... is streamed. With a GPU the VAE, which is small and computes
        tile by tile, takes turns as a whole."""
        return Level.COMPONENT if component == "vae" and not self.on_disk else self.level

    @property
    def label(self) -> str:
        """For people: "layers are streamed from disk"."""
        if self.level is Level.COMPONENT:
            return f"{WORDS[self.level]}, the others are {'on disk' if self.on_disk else 'in main memory'}"
        return f"{WORDS[self.level]} from {'disk' if self.on_disk else 'main memory'}"
