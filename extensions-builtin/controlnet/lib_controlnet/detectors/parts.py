"""Hands (Simon et al. 2017, arXiv:1704.07809) and faces of the people that `body` finds: one network for both, with a
map for each point, on a square that the body tells the place of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lib_controlnet.detectors.weights import as_batch, filled
from lib_controlnet.pixels import Pixels, blurred, resize_area, resize_cubic

Floats = npt.NDArray[np.float32]
Found = list[tuple[int, int] | None]
"""Points of a part by their number, in pixels of its square; None where there is none."""

TRUNK = (
    *((3, 64, "conv1_1"), (64, 64, "conv1_2"), None, (64, 128, "conv2_1"), (128, 128, "conv2_2"), None),
    *((128, 256, "conv3_1"), (256, 256, "conv3_2"), (256, 256, "conv3_3"), (256, 256, "conv3_4"), None),
    *((256, 512, "conv4_1"), (512, 512, "conv4_2"), (512, 512, "conv4_3"), (512, 512, "conv4_4")),
    *((512, 512, "conv5_1"), (512, 512, "conv5_2"), (512, 128, "conv5_3_CPM")),
)
"""Convolutions by inputs, outputs and name; None halves the sides."""
FEATURES, STAGES, STRIDE = 128, 6, 8
HAND_POINTS, FACE_POINTS = 21, 70
SCALES, BOX, WORK = (0.5, 1.0, 1.5, 2.0), 368, 128
"""The sizes at which a hand is looked at, as shares of `BOX` pixels; their maps are averaged in `WORK` pixels."""
FACE_SIDE = 384
GRAY, LEVEL = 128.0, 0.05
HAND_BLUR, MAP_BLUR = 0.8, 3.0
MIN_SIDE = 20


class PartNet(nn.Module):
    """A trunk and six stages, each of which says where the points are. `maps`: the points and the background."""

    def __init__(self, maps: int) -> None:
        super().__init__()
        for layer in TRUNK:
            if layer is not None:
                setattr(self, layer[2], nn.Conv2d(layer[0], layer[1], 3, padding=1))
        self.conv6_1_CPM = nn.Conv2d(FEATURES, 512, 1)
        self.conv6_2_CPM = nn.Conv2d(512, maps, 1)
        for stage in range(2, STAGES + 1):
            widths = [FEATURES + maps, *[128] * 6, maps]
            for place, side in enumerate((7, 7, 7, 7, 7, 1, 1), 1):
                own = nn.Conv2d(widths[place - 1], widths[place], side, padding=side // 2)
                setattr(self, f"Mconv{place}_stage{stage}", own)

    def forward(self, x: Tensor) -> Tensor:
        """An image [1,3,H,W] to maps [1,maps,H/8,W/8]."""
        for layer in TRUNK:
            x = F.max_pool2d(x, 2) if layer is None else F.relu(getattr(self, layer[2])(x))
        found: Tensor = self.conv6_2_CPM(F.relu(self.conv6_1_CPM(x)))
        for stage in range(2, STAGES + 1):
            found = torch.cat([found, x], dim=1)
            for place in range(1, 8):
                found = getattr(self, f"Mconv{place}_stage{stage}")(found)
                found = found if place == 7 else F.relu(found)
        return found


@dataclass(frozen=True)
class Square:
    """Where a part is, in pixels."""

    left: int
    top: int
    side: int

    @classmethod
    def within(cls, left: float, top: float, side: float, size: tuple[int, int]) -> Square | None:
        """The part of a square that lies in an image of this size (width, height); None for one that is too small."""
        x, y = max(left, 0.0), max(top, 0.0)
        side = min(side, size[0] - x, size[1] - y)
        return cls(int(x), int(y), int(side)) if side >= MIN_SIDE else None


Joint = tuple[float, float]


def joints_of(person: dict[str, Any]) -> list[Joint | None]:
    """The joints of a person in OpenPose's JSON form."""
    values = person["pose_keypoints_2d"]
    triples = (values[place : place + 3] for place in range(0, len(values), 3))
    return [(x, y) if sure > 0 else None for x, y, sure in triples]


def hand_square(joints: Sequence[Joint | None], is_left: bool, size: tuple[int, int]) -> Square | None:
    """Where a hand is: beyond the wrist, on the line from the elbow."""
    shoulder, elbow, wrist = (joints[number] for number in ((5, 6, 7) if is_left else (2, 3, 4)))
    if shoulder is None or elbow is None or wrist is None:
        return None
    x, y = (wrist[axis] + 0.33 * (wrist[axis] - elbow[axis]) for axis in (0, 1))
    forearm, upper = (float(np.hypot(a[0] - b[0], a[1] - b[1])) for a, b in ((wrist, elbow), (elbow, shoulder)))
    side = 1.5 * max(forearm, 0.9 * upper)
    return Square.within(x - side / 2, y - side / 2, side, size)


def face_square(joints: Sequence[Joint | None], size: tuple[int, int]) -> Square | None:
    """Where a face is: around the nose, as wide as eyes and ears say."""
    nose = joints[0]
    if nose is None:
        return None
    reach = 0.0
    for number, times in ((14, 3.0), (15, 3.0), (16, 1.5), (17, 1.5)):
        other = joints[number]
        if other is not None:
            reach = max(reach, times * max(abs(nose[0] - other[0]), abs(nose[1] - other[1])))
    return Square.within(nose[0] - reach, nose[1] - reach, 2 * reach, size)


def _resized(image: Pixels, side: int) -> Pixels:
    return (resize_area if side < image.shape[0] else resize_cubic)(image, side, side)


@torch.inference_mode()
def hand_points(net: Callable[[Tensor], Tensor], image: Pixels) -> Found:
    """The points of a hand on a square image [S,S,3], blue first."""
    soft = blurred(image, HAND_BLUR).clip(0, 255).astype(np.uint8)
    total = torch.zeros(1, HAND_POINTS, WORK, WORK)
    for scale in SCALES:
        side = int(scale * BOX)
        x = as_batch(_resized(soft, side))
        x = F.pad(x, (0, -side % STRIDE, 0, -side % STRIDE), value=GRAY)
        maps = F.interpolate(net(x / 256.0 - 0.5), scale_factor=STRIDE, mode="bicubic", align_corners=False)
        maps = maps[:, :HAND_POINTS, :side, :side]
        total += F.interpolate(maps, size=(WORK, WORK), mode="bilinear", align_corners=False, antialias=True)
    return [_strongest(level / len(SCALES), image.shape[0] / WORK) for level in total[0].numpy()]


def _strongest(level: Floats, scale: float) -> tuple[int, int] | None:
    """The peak of that spot of a map [128,128] which holds the most, in pixels of the square."""
    from scipy.ndimage import label

    spots, count = label(blurred(level[:, :, None], MAP_BLUR)[:, :, 0] > LEVEL, structure=np.ones((3, 3)))
    if not count:
        return None
    held = [float(level[spots == number].sum()) for number in range(1, count + 1)]
    inside = np.where(spots == 1 + int(np.argmax(held)), level, -np.inf)
    y, x = np.unravel_index(int(np.argmax(inside)), inside.shape)
    return int(float(x) * scale), int(float(y) * scale)


@torch.inference_mode()
def face_points(net: Callable[[Tensor], Tensor], image: Pixels) -> Found:
    """The points of a face on a square image [S,S,3], blue first."""
    side = image.shape[0]
    maps = net(as_batch(_resized(image, FACE_SIDE)) / 256.0 - 0.5)
    levels = F.interpolate(maps, size=(side, side), mode="bilinear", align_corners=True)[0, :FACE_POINTS].numpy()
    found: Found = []
    for level in levels:
        y, x = np.unravel_index(int(np.argmax(level)), level.shape)
        found.append((int(x), int(y)) if level[y, x] > LEVEL else None)
    return found


def _keypoints(found: Found, square: Square) -> list[float]:
    """x, y and whether it is there, for each point, in pixels of the image."""
    values: list[float] = []
    for point in found:
        values += [0.0] * 3 if point is None else [float(point[0] + square.left), float(point[1] + square.top), 1.0]
    return values


def _cut(image: Pixels, square: Square) -> Pixels:
    part = image[square.top : square.top + square.side, square.left : square.left + square.side, ::-1]
    return np.ascontiguousarray(part)


def add_hands(image: Pixels, pose: dict[str, Any], path: Path) -> None:
    """Find the hands of the people of a pose in [H,W,3], and put them into it."""
    size, net = (image.shape[1], image.shape[0]), None
    for person in pose["people"]:
        joints = joints_of(person)
        for is_left, key in ((True, "hand_left_keypoints_2d"), (False, "hand_right_keypoints_2d")):
            square = hand_square(joints, is_left, size)
            if square is not None:
                net = net or filled(PartNet(HAND_POINTS + 1), path)
                person[key] = _keypoints(hand_points(net, _cut(image, square)), square)


def add_faces(image: Pixels, pose: dict[str, Any], path: Path) -> None:
    """Find the faces of the people of a pose in [H,W,3], and put them into it."""
    net = None
    for person in pose["people"]:
        square = face_square(joints_of(person), (image.shape[1], image.shape[0]))
        if square is not None:
            net = net or filled(PartNet(FACE_POINTS + 1), path)
            person["face_keypoints_2d"] = _keypoints(face_points(net, _cut(image, square)), square)
