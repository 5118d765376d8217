"""Poses of bodies (Cao et al. 2017, arXiv:1611.08050): a network that says where joints and limbs are, and how they are
put together to people."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
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

TRUNK = (
    *((3, 64, "conv1_1"), (64, 64, "conv1_2"), None, (64, 128, "conv2_1"), (128, 128, "conv2_2"), None),
    *((128, 256, "conv3_1"), (256, 256, "conv3_2"), (256, 256, "conv3_3"), (256, 256, "conv3_4"), None),
    *((256, 512, "conv4_1"), (512, 512, "conv4_2"), (512, 256, "conv4_3_CPM"), (256, 128, "conv4_4_CPM")),
)
"""Convolutions by inputs, outputs and name; None halves the sides."""
FEATURES, STAGES, STRIDE = 128, 6, 8
JOINTS, PARTS = 18, 19  # parts: the joints and the background
LIMB_MAPS = 38
HEIGHT, GRAY = 184, 128.0  # the height at which the network works, and what it sees beyond the image's edges
JOINT_SIGMA, JOINT_LEVEL, LIMB_LEVEL, LIMB_SHARE, POINTS = 3.0, 0.1, 0.05, 0.8, 10
MIN_JOINTS, MIN_SCORE = 4, 0.4
LIMBS = (
    *((1, 2, 12), (1, 5, 20), (2, 3, 14), (3, 4, 16), (5, 6, 22), (6, 7, 24), (1, 8, 0), (8, 9, 2), (9, 10, 4)),
    *((1, 11, 6), (11, 12, 8), (12, 13, 10), (1, 0, 28), (0, 14, 30), (14, 16, 34), (0, 15, 32), (15, 17, 36)),
    *((2, 16, 18), (5, 17, 26)),
)
"""Pairs of joints, with the first of the two maps that say where their limb points to."""


class BodyNet(nn.Module):
    """A trunk, and six stages of two branches: limbs, and joints. Later stages see what the one before said."""

    def __init__(self) -> None:
        super().__init__()
        for layer in TRUNK:
            if layer is not None:
                into, out, name = layer
                setattr(self, name, nn.Conv2d(into, out, 3, padding=1))
        for branch, maps in ((1, LIMB_MAPS), (2, PARTS)):
            for place, (into, out, side) in enumerate(
                ((128, 128, 3), (128, 128, 3), (128, 128, 3), (128, 512, 1), (512, maps, 1)), 1
            ):
                setattr(self, f"conv5_{place}_CPM_L{branch}", nn.Conv2d(into, out, side, padding=side // 2))
            for stage in range(2, STAGES + 1):
                widths = [FEATURES + LIMB_MAPS + PARTS, *[128] * 6, maps]
                for place, side in enumerate((7, 7, 7, 7, 7, 1, 1), 1):
                    own = nn.Conv2d(widths[place - 1], widths[place], side, padding=side // 2)
                    setattr(self, f"Mconv{place}_stage{stage}_L{branch}", own)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """An image [1,3,H,W] to limbs [1,38,H/8,W/8] and joints [1,19,H/8,W/8]."""
        for layer in TRUNK:
            x = F.max_pool2d(x, 2) if layer is None else F.relu(getattr(self, layer[2])(x))
        limbs, joints = (
            self._branch(x, [f"conv5_{place}_CPM_L{branch}" for place in range(1, 6)]) for branch in (1, 2)
        )
        for stage in range(2, STAGES + 1):
            seen = torch.cat([limbs, joints, x], dim=1)
            limbs, joints = (
                self._branch(seen, [f"Mconv{place}_stage{stage}_L{branch}" for place in range(1, 8)])
                for branch in (1, 2)
            )
        return limbs, joints

    def _branch(self, x: Tensor, names: list[str]) -> Tensor:
        for name in names[:-1]:
            x = F.relu(getattr(self, name)(x))
        found: Tensor = getattr(self, names[-1])(x)
        return found


@dataclass(frozen=True)
class Joint:
    """A place that may be a joint, in pixels."""

    x: float
    y: float
    score: float


@dataclass
class Person:
    """Joints by their number."""

    joints: dict[int, Joint] = field(default_factory=dict)
    score: float = 0.0

    def keypoints(self) -> list[float]:
        """x, y and whether it is there, for each joint."""
        found: list[float] = []
        for number in range(JOINTS):
            joint = self.joints.get(number)
            found += [0.0, 0.0, 0.0] if joint is None else [joint.x, joint.y, 1.0]
        return found


@torch.inference_mode()
def bodies(image: Pixels, path: Path) -> dict[str, Any]:
    """The people in [H,W,3], in OpenPose's JSON form."""
    height, width = image.shape[:2]
    scale = HEIGHT / height
    size = (max(1, round(width * scale)), HEIGHT)
    small = (resize_area if scale < 1 else resize_cubic)(image, *size)[:, :, ::-1]
    x = as_batch(small)
    x = F.pad(x, (0, -x.shape[3] % STRIDE, 0, -x.shape[2] % STRIDE), value=GRAY)
    limbs, joints = filled(BodyNet(), path)(x / 256.0 - 0.5)
    maps = [_enlarged(each, size, (width, height)) for each in (limbs, joints.clamp(min=0))]
    people = people_of(maps[0], maps[1])
    return {
        "people": [{"pose_keypoints_2d": person.keypoints()} for person in people],
        "canvas_width": width,
        "canvas_height": height,
    }


def _enlarged(maps: Tensor, seen: tuple[int, int], size: tuple[int, int]) -> Floats:
    """Maps [1,C,h,w] in the size of the image as [C,H,W]; what lies beyond the `seen` part is cut off."""
    whole = F.interpolate(maps, scale_factor=STRIDE, mode="bicubic", align_corners=False)[:, :, : seen[1], : seen[0]]
    found: Floats = F.interpolate(whole, size=(size[1], size[0]), mode="bicubic", align_corners=False)[0].numpy()
    return found


def people_of(limbs: Floats, joints: Floats) -> list[Person]:
    """People of the maps of limbs [38,H,W] and of joints [18 or 19,H,W]."""
    candidates = [peaks(joints[number]) for number in range(JOINTS)]
    people: list[Person] = []
    for first, second, maps in LIMBS:
        pairs = _pairs(candidates[first], candidates[second], limbs[maps : maps + 2])
        for one, other, score in pairs:
            _join(people, first, second, one, other, score)
    return [
        person
        for person in people
        if len(person.joints) >= MIN_JOINTS and person.score / len(person.joints) >= MIN_SCORE
    ]


def peaks(level: Floats) -> list[Joint]:
    """Where a map [H,W] is higher than around, and high enough."""
    smooth = blurred(level[:, :, None], JOINT_SIGMA)[:, :, 0]
    padded = np.pad(smooth, 1)
    around = (padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, :-2], padded[1:-1, 2:])
    is_peak = smooth > JOINT_LEVEL
    for other in around:
        is_peak &= smooth >= other
    return [Joint(float(x), float(y), float(level[y, x])) for y, x in np.argwhere(is_peak)]


def _pairs(ones: list[Joint], others: list[Joint], pointing: Floats) -> list[tuple[Joint, Joint, float]]:
    """The best limbs between two kinds of joints, each of which is used once."""
    height = pointing.shape[1]
    found: list[tuple[float, int, int]] = []
    for a, one in enumerate(ones):
        for b, other in enumerate(others):
            away = (other.x - one.x, other.y - one.y)
            length = max(0.001, math.hypot(*away))
            xs = np.rint(np.linspace(one.x, other.x, POINTS)).astype(int)
            ys = np.rint(np.linspace(one.y, other.y, POINTS)).astype(int)
            along = (pointing[0, ys, xs] * away[0] + pointing[1, ys, xs] * away[1]) / length
            score = float(along.mean()) + min(0.5 * height / length - 1.0, 0.0)
            if score > 0 and int((along > LIMB_LEVEL).sum()) > LIMB_SHARE * POINTS:
                found.append((score, a, b))
    used: tuple[set[int], set[int]] = (set(), set())
    best = []
    for score, a, b in sorted(found, key=lambda each: -each[0]):
        if a not in used[0] and b not in used[1]:
            used[0].add(a)
            used[1].add(b)
            best.append((ones[a], others[b], score))
    return best


def _join(people: list[Person], first: int, second: int, one: Joint, other: Joint, score: float) -> None:
    """Add a limb to the person who has one of its joints, and make one of two people who share it."""
    owners = [each for each in people if each.joints.get(first) is one or each.joints.get(second) is other]
    if not owners:
        if (first, second) not in ((2, 16), (5, 17)):  # from shoulder to ear: no person begins with it
            people.append(Person({first: one, second: other}, one.score + other.score + score))
        return
    person = owners[0]
    if len(owners) > 1 and not person.joints.keys() & owners[1].joints.keys():
        person.joints |= owners[1].joints
        person.score += owners[1].score + score
        people[:] = [each for each in people if each is not owners[1]]
        return
    if person.joints.get(second) is not other:
        person.joints[second] = other
        person.score += other.score + score
