"""What a job's upscalers are held to when memory runs out: smaller squares, and in the end the processor."""

from dataclasses import dataclass

from modules.upscalers.kinds import Tiling


@dataclass
class UpscalerLimits:
    """Belongs to one job. `most_px`: the longest side of a square, in pixels of the input; 0: as the settings say.
    `on_cpu`: the processor computes. `used_px`: the longer side of the squares of the last call."""

    most_px: int = 0
    on_cpu: bool = False
    used_px: int = 0

    def apply(self, tiling: Tiling, size_px: tuple[int, int]) -> Tiling:
        """How a picture of this size is cut."""
        if self.most_px and (tiling.size <= 0 or tiling.size > self.most_px):
            tiling = Tiling(self.most_px, tiling.overlap)
        longest = max(size_px)
        self.used_px = min(tiling.size, longest) if tiling.size > 0 else longest
        return tiling
