"""Bringing a face into the place that face restorers were trained with, and the restored one back."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from modules.faces.face import Points

SIDE_PX = 512
TEMPLATE: Points = np.array(
    [
        [192.98138, 239.94708],
        [318.90277, 240.1936],
        [256.63416, 314.01935],
        [201.26117, 371.41043],
        [313.08905, 371.15118],
    ]
)
"""Where eyes, nose and corners of the mouth lie in an aligned face of the FFHQ data set (arXiv:1812.04948)."""
FEATHER_PX = 48  # of the aligned face, over which it fades into the image

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Alignment:
    """`matrix` [2,3] takes points of the image to points of the aligned face."""

    matrix: Matrix

    @classmethod
    def of(cls, landmarks: Points) -> "Alignment":
        """The similarity that brings landmarks [5,2] closest to the template: Umeyama 1991, least squares."""
        source, target = landmarks - landmarks.mean(0), TEMPLATE - TEMPLATE.mean(0)
        left, spread, right = np.linalg.svd(target.T @ source / len(source))
        sign = np.array([1.0, np.sign(np.linalg.det(left) * np.linalg.det(right))])
        turn = left @ np.diag(sign) @ right
        scale = (spread * sign).sum() / source.var(0).sum()
        moved = TEMPLATE.mean(0) - scale * turn @ landmarks.mean(0)
        return cls(np.concatenate([scale * turn, moved[:, None]], 1))

    @property
    def scale(self) -> float:
        """Pixels of the aligned face for one of the image."""
        return float(np.sqrt(abs(np.linalg.det(self.matrix[:, :2]))))

    def face(self, image: Image.Image) -> Image.Image:
        """The aligned face, RGB of 512x512; what lies outside of the image is grey."""
        back = _inverse(self.matrix)
        reduced = max(int(1 / self.scale + 1e-6), 1)  # PIL's filter looks at its nearest pixels only
        small = image.convert("RGB").reduce(reduced) if reduced > 1 else image.convert("RGB")
        return small.transform(
            (SIDE_PX, SIDE_PX),
            Image.Transform.AFFINE,
            tuple((back / reduced).ravel()),
            Image.Resampling.BICUBIC,
            fillcolor=(128, 128, 128),
        )

    def pasted(self, image: Image.Image, face: Image.Image) -> Image.Image:
        """The image with an aligned face laid over it, fading out at its border."""
        forth = tuple(self.matrix.ravel())
        mask = _feathered_mask()
        size = image.size
        over = face.transform(size, Image.Transform.AFFINE, forth, Image.Resampling.BICUBIC)
        where = mask.transform(size, Image.Transform.AFFINE, forth, Image.Resampling.BILINEAR)
        return Image.composite(over, image.convert("RGB"), where)


def _inverse(matrix: Matrix) -> Matrix:
    turn = np.linalg.inv(matrix[:, :2])
    return np.concatenate([turn, -turn @ matrix[:, 2:]], 1)


def _feathered_mask() -> Image.Image:
    """White inside, black at the border of the aligned face."""
    mask = Image.new("L", (SIDE_PX, SIDE_PX), 0)
    mask.paste(255, (FEATHER_PX, FEATHER_PX, SIDE_PX - FEATHER_PX, SIDE_PX - FEATHER_PX))
    return mask.filter(ImageFilter.GaussianBlur(FEATHER_PX / 3))
