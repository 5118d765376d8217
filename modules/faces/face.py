"""A face that was found in an image. No torch."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Points = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Face:
    """`box`: left, top, right, bottom in pixels. `landmarks` [5,2] (x, y) in pixels: the eyes, the nose and the corners
    of the mouth, each the left one in the image first. `score` 0 to 1."""

    box: tuple[float, float, float, float]
    score: float
    landmarks: Points

    @property
    def width(self) -> float:
        return self.box[2] - self.box[0]

    @property
    def height(self) -> float:
        return self.box[3] - self.box[1]

    @property
    def eye_distance(self) -> float:
        """Pixels between the eyes."""
        return float(np.linalg.norm(self.landmarks[1] - self.landmarks[0]))
