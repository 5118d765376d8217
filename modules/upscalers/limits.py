"""Limits of a job's upscalers when memory runs out: smaller squares, and in the end the CPU."""

from dataclasses import dataclass

from modules.upscalers.upscaler_types import Tiling


@dataclass
class UpscalerLimits:
    """Belongs to one job. `max_px`: the longest side of a square, in pixels of the input; 0: as the settings say.
    `on_cpu`: the CPU computes. `used_px`: the longer side of the squares of the last call."""

    max_px: int = 0
    on_cpu: bool = False
    used_px: int = 0

    def apply(self, tiling: Tiling, size_px: tuple[int, int]) -> Tiling:
        """How an image of this size is cut."""
        if self.max_px and (tiling.size <= 0 or tiling.size > self.max_px):
            tiling = Tiling(self.max_px, tiling.overlap)
        longest = max(size_px)
        self.used_px = min(tiling.size, longest) if tiling.size > 0 else longest
        return tiling
