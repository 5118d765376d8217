"""Poses of people, in the JSON form of OpenPose, as the images that pose networks were trained on: a colored stick for
each limb, a dot for each joint, hands as thin colored lines, faces as white dots."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from lib_controlnet.pixels import Pixels
from modules.errors import InvalidValueError

Color = tuple[int, int, int]
Point = tuple[int, int]

LIMBS = (
    *((1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13), (1, 0)),
    *((0, 14), (14, 16), (0, 15), (15, 17)),
)
"""Pairs of the 18 joints."""
JOINT_COLORS: tuple[Color, ...] = (
    *((255, 0, 0), (255, 85, 0), (255, 170, 0), (255, 255, 0), (170, 255, 0), (85, 255, 0), (0, 255, 0)),
    *((0, 255, 85), (0, 255, 170), (0, 255, 255), (0, 170, 255), (0, 85, 255), (0, 0, 255), (85, 0, 255)),
    *((170, 0, 255), (255, 0, 255), (255, 0, 170), (255, 0, 85)),
)
FINGER_BONES = tuple(
    (0 if place == 0 else 4 * finger + place, 4 * finger + place + 1) for finger in range(5) for place in range(4)
)
HAND_DOT: Color = (0, 0, 255)
FACE_DOT: Color = (255, 255, 255)
STICK_PX, JOINT_PX, FACE_PX = 4, 4, 3
LIMB_SHADE = 0.6
BONE_PX = 1.0  # half of its thickness
NEAR_PX = 3  # of a line of at most 45 degrees: no pixel of it is further away in its row
MAX_SIDE_PX = 8192
MAX_POSES, MAX_PEOPLE, MAX_PIXELS = 100, 200, 2**25  # of one call
MAX_POINTS, MAX_NUMBER = 200, 1e9
PARTS = {"pose_keypoints_2d": 18, "hand_left_keypoints_2d": 21, "hand_right_keypoints_2d": 21, "face_keypoints_2d": 70}


def drawn_all(poses: Sequence[Any]) -> Iterator[Pixels]:
    """The entries of a caller's list, each as [H,W,3]. Raises `InvalidValueError`, also for a list that asks for more
    than is drawn at a time, before anything is."""
    canvases = [_canvas(pose, f"pose {number}") for number, pose in enumerate(poses[: MAX_POSES + 1])]
    people = sum(len(pose["people"]) for pose in poses[:MAX_POSES])
    pixels = sum(height * width for height, width in canvases)
    if len(poses) > MAX_POSES or people > MAX_PEOPLE or pixels > MAX_PIXELS:
        raise InvalidValueError(
            f"{len(poses)} poses with {people} people and {pixels / 1e6:.1f} million pixels are too many at a time; "
            f"allowed are {MAX_POSES}, {MAX_PEOPLE} and {MAX_PIXELS / 1e6:.1f} million. Ask for them in several calls."
        )
    for number, pose in enumerate(poses):
        yield drawn(pose, f"pose {number}")


def _canvas(pose: Any, name: str) -> tuple[int, int]:
    """Height and width of an entry that is one. Raises `InvalidValueError`."""
    if not isinstance(pose, dict):
        raise InvalidValueError(f'{name} is {type(pose).__name__}; it takes an object with "people" and the canvas.')
    if not isinstance(pose.get("people"), list):
        shown = str(pose.get("people"))[:40]
        raise InvalidValueError(f'{name}: "people" is {shown!r}; it takes a list, which may be empty.')
    return _side(pose, "canvas_height", name), _side(pose, "canvas_width", name)


def drawn(pose: Any, name: str) -> Pixels:
    """One entry of a caller's list as [H,W,3]; `name` is for messages. Raises `InvalidValueError`."""
    canvas = np.zeros((*_canvas(pose, name), 3), np.uint8)
    for person in pose["people"]:
        if not isinstance(person, dict):
            raise InvalidValueError(f"{name}: a person is {str(person)[:40]!r}; it takes an object of keypoints.")
        parts = {part: keypoints(person.get(part), canvas, f"{name}: {part}") for part in PARTS}
        draw_body(canvas, parts["pose_keypoints_2d"])
        draw_hand(canvas, parts["hand_left_keypoints_2d"])
        draw_hand(canvas, parts["hand_right_keypoints_2d"])
        for point in parts["face_keypoints_2d"]:
            if point is not None:
                fill_circle(canvas, point, FACE_PX, FACE_DOT)
    return canvas


def _side(pose: dict[str, Any], key: str, name: str) -> int:
    value = pose.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= MAX_SIDE_PX:
        raise InvalidValueError(f"{name}: {key} is {str(value)[:40]!r}; it takes 1 to {MAX_SIDE_PX} pixels.")
    return int(value)


def keypoints(values: Any, canvas: Pixels, name: str) -> list[Point | None]:
    """Triples of x, y and confidence as pixels; None for points of no confidence. Where no coordinate is above 1, they
    are shares of the canvas. Raises `InvalidValueError`."""
    if not values:
        return []
    if not isinstance(values, list) or len(values) % 3 or not all(isinstance(value, int | float) for value in values):
        raise InvalidValueError(f"{name} takes numbers in threes: x, y and the confidence of each point.")
    if len(values) > 3 * MAX_POINTS or not all(-MAX_NUMBER <= value <= MAX_NUMBER for value in values):
        raise InvalidValueError(
            f"{name} takes at most {MAX_POINTS} points, of numbers between -{MAX_NUMBER:g} and {MAX_NUMBER:g}."
        )
    triples = [tuple(float(value) for value in values[place : place + 3]) for place in range(0, len(values), 3)]
    height, width = canvas.shape[:2]
    is_share = all(abs(x) <= 1 and abs(y) <= 1 for x, y, _ in triples)
    scale = (width, height) if is_share else (1, 1)
    reach = 4 * MAX_SIDE_PX
    return [
        (int(np.clip(x * scale[0], -reach, reach)), int(np.clip(y * scale[1], -reach, reach))) if sure > 0 else None
        for x, y, sure in triples
    ]


def draw_body(canvas: Pixels, joints: Sequence[Point | None]) -> None:
    """Sticks first, joints over them."""
    for (first, second), color in zip(LIMBS, JOINT_COLORS, strict=False):
        ends = [joints[place] for place in (first, second) if place < len(joints)]
        if len(ends) == 2 and ends[0] is not None and ends[1] is not None:
            shade = tuple(int(value * LIMB_SHADE) for value in color)
            fill_stick(canvas, ends[0], ends[1], (shade[0], shade[1], shade[2]))
    for joint, color in zip(joints, JOINT_COLORS, strict=False):
        if joint is not None:
            fill_circle(canvas, joint, JOINT_PX, color)


def draw_hand(canvas: Pixels, joints: Sequence[Point | None]) -> None:
    """The bones in the colors of the rainbow, the joints over them in blue."""
    for place, (first, second) in enumerate(FINGER_BONES):
        if max(first, second) >= len(joints):
            continue
        start, end = joints[first], joints[second]
        if start is not None and end is not None:
            red, green, blue = (int(value * 255) for value in colorsys.hsv_to_rgb(place / len(FINGER_BONES), 1, 1))
            fill_bone(canvas, start, end, (red, green, blue))
    for joint in joints:
        if joint is not None:
            fill_circle(canvas, joint, JOINT_PX, HAND_DOT)


def fill_circle(canvas: Pixels, centre: Point, radius: int, color: Color) -> None:
    """All pixels of a circle in whole numbers (Bresenham 1977), clipped to the canvas."""
    across, down, error, plus, minus = radius, 0, 0, 1, 2 * radius - 1
    while across >= down:
        for reach, offset in ((across, down), (down, across)):
            for row in (centre[1] - offset, centre[1] + offset):
                if 0 <= row < canvas.shape[0]:
                    canvas[row, max(0, centre[0] - reach) : max(0, centre[0] + reach + 1)] = color
        down += 1
        error += plus
        plus += 2
        if error > 0:
            error -= minus
            across -= 1
            minus -= 2


def fill_stick(canvas: Pixels, start: Point, end: Point, color: Color) -> None:
    """An ellipse from one joint to the other."""
    length = math.hypot(start[0] - end[0], start[1] - end[1])
    centre = (int((start[0] + end[0]) / 2), int((start[1] + end[1]) / 2))
    turned = math.radians(int(math.degrees(math.atan2(start[1] - end[1], start[0] - end[0]))))
    turns = np.radians(np.arange(361))
    along, beside = int(length / 2) * np.cos(turns), STICK_PX * np.sin(turns)
    x = centre[0] + along * math.cos(turned) - beside * math.sin(turned)
    y = centre[1] + along * math.sin(turned) + beside * math.cos(turned)
    corners = np.stack([np.rint(x), np.rint(y)], axis=1).astype(int)
    _fill_convex(canvas, corners, color)


def _fill_convex(canvas: Pixels, corners: Any, color: Color) -> None:
    """A convex shape with its border, row by row between the pixels of its border, as far as they are on the canvas."""
    height, width = canvas.shape[:2]
    lowest, highest = np.full(height, width), np.full(height, -1)
    for (x, y), (next_x, next_y) in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        if max(y, next_y) < 0 or min(y, next_y) >= height:
            continue
        steps = max(abs(next_x - x), abs(next_y - y), 1)
        step = np.arange(steps + 1)
        columns = np.rint(x + (next_x - x) * step / steps).astype(int)
        rows = np.rint(y + (next_y - y) * step / steps).astype(int)
        is_on = (rows >= 0) & (rows < height)
        np.minimum.at(lowest, rows[is_on], columns[is_on])
        np.maximum.at(highest, rows[is_on], columns[is_on])
    for row in np.flatnonzero((highest >= 0) & (lowest <= highest)):
        canvas[row, max(0, lowest[row]) : highest[row] + 1] = color


def fill_bone(canvas: Pixels, start: Point, end: Point, color: Color) -> None:
    """All pixels near the straight line between two joints: along its longer side, a few to both sides of it."""
    if abs(end[0] - start[0]) > abs(end[1] - start[1]):
        fill_bone(canvas.transpose(1, 0, 2), start[::-1], end[::-1], color)
        return
    top, bottom = sorted((start[1], end[1]))
    height, width = canvas.shape[:2]
    rows = np.arange(max(0, top - 1), min(height, bottom + 2))[:, None]
    span = (end[0] - start[0], end[1] - start[1])
    squared = span[0] ** 2 + span[1] ** 2
    middle = start[0] + ((rows - start[1]) / (span[1] or 1)).clip(0, 1) * span[0]
    columns = np.floor(middle).astype(int) + np.arange(-NEAR_PX, NEAR_PX + 1)
    share = ((columns - start[0]) * span[0] + (rows - start[1]) * span[1]) / max(squared, 1)
    share = share.clip(0, 1)
    far = np.hypot(columns - start[0] - share * span[0], rows - start[1] - share * span[1])
    is_near = (far <= BONE_PX) & (columns >= 0) & (columns < width)
    canvas[np.broadcast_to(rows, columns.shape)[is_near], columns[is_near]] = color
