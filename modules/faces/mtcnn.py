"""Finding faces with MTCNN: three small networks in a row, each looking closer at what the one before has left.

Zhang et al. 2016, "Joint Face Detection and Alignment using Multi-task Cascaded Convolutional Networks"
(arXiv:1604.02878). The weights are those of the package facenet-pytorch 2.6.0 in one file (MIT, see mtcnn-LICENSE.txt).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import FeatherweightError
from modules.faces.face import Face

WEIGHTS = Path(__file__).with_name("mtcnn.safetensors")
MIN_FACE_PX = 20
MAX_SIDE_PX = 960  # larger images are looked at in this size
PYRAMID_FACTOR = 0.709  # each size of the pyramid has half the area of the one before
CELL, STRIDE = 12, 2  # pixels that one value of the first network sees, and between two of them
THRESHOLDS = (0.6, 0.7, 0.7)

Floats = NDArray[np.float64]


class _Proposals(nn.Module):
    """[B,3,H,W] to the probability [B,2,h,w] of a face in each cell, and corrections [B,4,h,w] of its box."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 10, 3), nn.PReLU(10)
        self.conv2, self.prelu2 = nn.Conv2d(10, 16, 3), nn.PReLU(16)
        self.conv3, self.prelu3 = nn.Conv2d(16, 32, 3), nn.PReLU(32)
        self.conv4_1, self.conv4_2 = nn.Conv2d(32, 2, 1), nn.Conv2d(32, 4, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 2, ceil_mode=True)
        x = self.prelu3(self.conv3(self.prelu2(self.conv2(x))))
        return self.conv4_1(x).softmax(1), self.conv4_2(x)


class _Refinement(nn.Module):
    """[B,3,24,24] to probabilities [B,2] and corrections [B,4]."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 28, 3), nn.PReLU(28)
        self.conv2, self.prelu2 = nn.Conv2d(28, 48, 3), nn.PReLU(48)
        self.conv3, self.prelu3 = nn.Conv2d(48, 64, 2), nn.PReLU(64)
        self.dense4, self.prelu4 = nn.Linear(576, 128), nn.PReLU(128)
        self.dense5_1, self.dense5_2 = nn.Linear(128, 2), nn.Linear(128, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu2(self.conv2(x)), 3, 2, ceil_mode=True)
        x = _flat(self.prelu3(self.conv3(x)))
        x = self.prelu4(self.dense4(x))
        return self.dense5_1(x).softmax(1), self.dense5_2(x)


class _Output(nn.Module):
    """[B,3,48,48] to probabilities [B,2], corrections [B,4], and landmarks [B,10]: five x, then five y, 0 to 1."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.prelu1 = nn.Conv2d(3, 32, 3), nn.PReLU(32)
        self.conv2, self.prelu2 = nn.Conv2d(32, 64, 3), nn.PReLU(64)
        self.conv3, self.prelu3 = nn.Conv2d(64, 64, 3), nn.PReLU(64)
        self.conv4, self.prelu4 = nn.Conv2d(64, 128, 2), nn.PReLU(128)
        self.dense5, self.prelu5 = nn.Linear(1152, 256), nn.PReLU(256)
        self.dense6_1, self.dense6_2, self.dense6_3 = nn.Linear(256, 2), nn.Linear(256, 4), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x = F.max_pool2d(self.prelu1(self.conv1(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu2(self.conv2(x)), 3, 2, ceil_mode=True)
        x = F.max_pool2d(self.prelu3(self.conv3(x)), 2, ceil_mode=True)
        x = self.prelu5(self.dense5(_flat(self.prelu4(self.conv4(x)))))
        return self.dense6_1(x).softmax(1), self.dense6_2(x), self.dense6_3(x)


def _flat(x: Tensor) -> Tensor:
    """[B,C,h,w] to [B,w*h*C], in the order in which the weights were trained."""
    return x.permute(0, 3, 2, 1).flatten(1)


class FaceDetector:
    """The three networks on one device."""

    def __init__(self, device: torch.device) -> None:
        """Read the weights. Raises `FeatherweightError` where their file is missing or damaged."""
        try:
            weights = load_file(WEIGHTS)
        except (OSError, SafetensorError) as error:
            raise FeatherweightError(f"{WEIGHTS} cannot be read: {error}. Get it again from the release.") from error
        self._device = device
        self._proposals = _loaded(_Proposals(), "proposals.", weights, device)
        self._refinement = _loaded(_Refinement(), "refinement.", weights, device)
        self._output = _loaded(_Output(), "output.", weights, device)

    @torch.inference_mode()
    def find(self, image: Image.Image, min_score: float = 0.9) -> list[Face]:
        """The faces of an image, the largest first."""
        factor = min(1.0, MAX_SIDE_PX / max(image.size))
        small = image.convert("RGB")
        if factor < 1:
            small = small.resize(
                (max(round(image.width * factor), 1), max(round(image.height * factor), 1)), Image.Resampling.BOX
            )
        pixels = torch.from_numpy(np.array(small)).permute(2, 0, 1)[None].to(self._device, torch.float32)
        boxes = self._proposed(pixels)
        if len(boxes):
            boxes = self._refined(pixels, boxes)
        if not len(boxes):
            return []
        boxes, scores, landmarks = self._finished(pixels, boxes)
        faces = [
            Face((box[0] / factor, box[1] / factor, box[2] / factor, box[3] / factor), float(score), points / factor)
            for box, score, points in zip(boxes.tolist(), scores, landmarks, strict=True)
            if score >= min_score
        ]
        return sorted(faces, key=lambda face: face.width * face.height, reverse=True)

    def _proposed(self, pixels: Tensor) -> Floats:
        """Boxes [n,4] of the first network, over a pyramid of sizes."""
        height, width = pixels.shape[2:]
        scale, found = CELL / MIN_FACE_PX, []
        while min(height, width) * scale >= CELL:
            size = (int(height * scale + 1), int(width * scale + 1))
            probabilities, offsets = self._proposals(_scaled(pixels, size))
            map_ = probabilities[0, 1].cpu().numpy()
            rows, columns = np.nonzero(map_ >= THRESHOLDS[0])
            scores = map_[rows, columns]
            corner = np.stack([columns, rows], 1) * STRIDE
            cells = np.concatenate([np.floor((corner + 1) / scale), np.floor((corner + CELL) / scale)], 1)
            corrections = offsets[0].cpu().numpy()[:, rows, columns].T
            kept = _distinct(cells, scores, 0.5)
            found.append(np.concatenate([cells[kept], corrections[kept], scores[kept, None]], 1))
            scale *= PYRAMID_FACTOR
        if not found:
            return np.zeros((0, 4))
        everything = np.concatenate(found)
        everything = everything[_distinct(everything[:, :4], everything[:, 8], 0.7)]
        return _squares(_corrected(everything[:, :4], everything[:, 4:8], extra=0))

    def _refined(self, pixels: Tensor, boxes: Floats) -> Floats:
        crops, boxes = _crops(pixels, boxes, 24)
        if crops is None:
            return boxes
        probabilities, offsets = self._refinement(crops)
        scores, corrections = probabilities[:, 1].cpu().numpy(), offsets.cpu().numpy()
        good = np.flatnonzero(scores > THRESHOLDS[1])
        good = good[_distinct(boxes[good], scores[good], 0.7)]
        return _squares(_corrected(boxes[good], corrections[good]))

    def _finished(self, pixels: Tensor, boxes: Floats) -> tuple[Floats, Floats, Floats]:
        crops, boxes = _crops(pixels, boxes, 48)
        if crops is None:
            return boxes, np.zeros(0), np.zeros((0, 5, 2))
        probabilities, offsets, points = self._output(crops)
        scores, corrections = probabilities[:, 1].cpu().numpy(), offsets.cpu().numpy()
        good = np.flatnonzero(scores > THRESHOLDS[2])
        boxes, scores, corrections = boxes[good], scores[good], corrections[good]
        fractions = points.cpu().numpy()[good].reshape(-1, 2, 5).transpose(0, 2, 1)  # [n,5,2]
        sides = (boxes[:, 2:] - boxes[:, :2] + 1)[:, None]
        landmarks = fractions * sides + boxes[:, None, :2] - 1
        boxes = _corrected(boxes, corrections)
        kept = _distinct(boxes, scores, 0.7, of_smaller=True)
        return boxes[kept], scores[kept], landmarks[kept]


def _loaded(network: nn.Module, prefix: str, weights: Mapping[str, Tensor], device: torch.device) -> Any:
    own = {name.removeprefix(prefix): weight for name, weight in weights.items() if name.startswith(prefix)}
    network.load_state_dict(own)
    return network.to(device).eval().requires_grad_(False)


def _scaled(pixels: Tensor, size: tuple[int, int]) -> Tensor:
    """0..255 [B,3,H,W] in another size, as the networks take it."""
    return (F.interpolate(pixels, size=size, mode="area") - 127.5) / 128.0


def _crops(pixels: Tensor, boxes: Floats, side: int) -> tuple[Tensor | None, Floats]:
    """Cut out what boxes show of the image, [n,3,side,side]; boxes outside of the image are left out."""
    height, width = pixels.shape[2:]
    found, kept = [], []
    for index, (left, top, right, bottom) in enumerate(np.trunc(boxes).astype(int).tolist()):
        left, top, right, bottom = max(left, 1), max(top, 1), min(right, width), min(bottom, height)
        if right > left - 1 and bottom > top - 1:
            found.append(_scaled(pixels[:, :, top - 1 : bottom, left - 1 : right], (side, side)))
            kept.append(index)
    return (torch.cat(found) if found else None), boxes[kept]


def _corrected(boxes: Floats, corrections: Floats, extra: int = 1) -> Floats:
    """Boxes moved by corrections that are fractions of their sides."""
    sides = boxes[:, 2:] - boxes[:, :2] + extra
    found: Floats = boxes + corrections * np.concatenate([sides, sides], 1)
    return found


def _squares(boxes: Floats) -> Floats:
    """Make boxes as high as wide, around the same centre."""
    sides = boxes[:, 2:] - boxes[:, :2]
    longest = sides.max(1, keepdims=True)
    corner = boxes[:, :2] + sides / 2 - longest / 2
    return np.concatenate([corner, corner + longest], 1)


def _distinct(boxes: Floats, scores: Floats, overlap: float, of_smaller: bool = False) -> NDArray[np.int64]:
    """Indices of boxes of which none overlaps a better one by more than `overlap`: of their union, or of the smaller
    one."""
    order = np.argsort(-scores, kind="stable")
    sides = np.maximum(boxes[:, 2:] - boxes[:, :2] + 1, 0)
    areas = sides.prod(1)
    kept: list[int] = []
    while len(order):
        best, rest = order[0], order[1:]
        kept.append(int(best))
        low = np.maximum(boxes[best, :2], boxes[rest, :2])
        high = np.minimum(boxes[best, 2:], boxes[rest, 2:])
        common = np.maximum(high - low + 1, 0).prod(1)
        whole = np.minimum(areas[best], areas[rest]) if of_smaller else areas[best] + areas[rest] - common
        order = rest[common / np.maximum(whole, 1e-9) <= overlap]
    return np.array(kept, np.int64)
