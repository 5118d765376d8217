"""Requests for masks: points, a box or words, and how the mask is changed. Imports no torch."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any

from PIL import Image

from modules.errors import InvalidValueError
from modules.images.reading import open_image

MAX_POINTS = 64
MAX_WORDS = 500  # characters
MAX_GROW_PX, MAX_BLUR_PX = 512, 128
TRUTHS = {"": False, "1": True, "1.0": True, "true": True, "0": False, "0.0": False, "false": False}


@dataclass(frozen=True)
class Point:
    """A place in pixels; one that is not included is outside of the thing."""

    x: float
    y: float
    is_included: bool = True


@dataclass(frozen=True)
class Asked:
    """A mask that is asked for, by points and a box, or by words. `min_score` None: as suits the model. `grow_px`
    shrinks where it is negative."""

    points: tuple[Point, ...] = ()
    box: tuple[float, float, float, float] | None = None
    words: str = ""
    min_score: float | None = None
    grow_px: int = 0
    blur_px: float = 0.0
    is_inverted: bool = False
    model: str = ""

    @classmethod
    def read(cls, given: Mapping[str, Any]) -> Asked:
        """Read a request. Raises `InvalidValueError` that names what is wrong."""
        words = str(given.get("words") or "").strip()
        points = tuple(_point(value) for value in _listed(given.get("points"), "points"))
        corners = _listed(given.get("box"), "box")
        if len(points) > MAX_POINTS:
            raise InvalidValueError(f"points has {len(points)} points; allowed are {MAX_POINTS}.")
        if corners and len(corners) != 4:
            raise InvalidValueError(f"box has {len(corners)} numbers; it takes left, top, right and bottom in pixels.")
        if len(words) > MAX_WORDS:
            raise InvalidValueError(f"words has {len(words)} characters; allowed are {MAX_WORDS}.")
        if bool(words.replace(",", "").strip()) == bool(points or corners):
            raise InvalidValueError("Give either points or a box, or words that name a thing, and not both.")
        box = None
        if corners:
            left, top, right, bottom = (_number(value, "box") for value in corners)
            box = (min(left, right), min(top, bottom), max(left, right), max(top, bottom))
            if box[0] == box[2] or box[1] == box[3]:
                raise InvalidValueError("box has no area; its corners are left, top, right and bottom in pixels.")
        elif not words and not any(point.is_included for point in points):
            raise InvalidValueError("All points are excluded; include at least one, which lies in the thing.")
        score = given.get("score")
        return cls(
            points,
            box,
            words,
            None if score is None else _number(score, "score", 0, 1),
            round(_number(given.get("grow") or 0, "grow", -MAX_GROW_PX, MAX_GROW_PX)),
            _number(given.get("blur") or 0, "blur", 0, MAX_BLUR_PX),
            _truth(given.get("invert"), "invert"),
            str(given.get("model") or ""),
        )

    def check_inside(self, size_px: tuple[int, int]) -> None:
        """Raise `InvalidValueError` for a point that is outside of an image, and for a box that does not touch it."""
        width, height = size_px
        for point in self.points:
            if not (0 <= point.x <= width and 0 <= point.y <= height):
                raise InvalidValueError(
                    f"The point {point.x:g}, {point.y:g} is outside of the image, which is {width}x{height} pixels."
                )
        if self.box is not None:
            left, top, right, bottom = self.box
            if left >= width or top >= height or right <= 0 or bottom <= 0:
                raise InvalidValueError(f"The box is outside of the image, which is {width}x{height} pixels.")


def image_of(text: object) -> Image.Image:
    """Read an image from base64, with or without `data:...;base64,` before it. Raises `InvalidValueError`."""
    data = str(text or "").partition("base64,")
    try:
        content = base64.b64decode(data[2] or data[0], validate=True)
    except binascii.Error as error:
        raise InvalidValueError("image is no base64; give the bytes of a PNG or JPEG file in base64.") from error
    return open_image(content, "image")


def as_base64(image: Image.Image) -> str:
    """A PNG in base64."""
    file = BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode("ascii")


def _listed(value: object, name: str) -> Sequence[Any]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidValueError(f"{name} takes a list.")
    return value


def _point(value: object) -> Point:
    """[x, y] or [x, y, included]."""
    given = _listed(value, "A point")
    if len(given) not in (2, 3):
        raise InvalidValueError(f"A point has {len(given)} values; it takes x, y, and 1 (include) or 0 (exclude).")
    included = _truth(given[2], "include") if len(given) == 3 else True
    return Point(_number(given[0], "x"), _number(given[1], "y"), included)


def _number(value: object, name: str, low: float = -1e9, high: float = 1e9) -> float:
    try:
        found = float(str(value))
    except ValueError as error:
        raise InvalidValueError(f"{name} is {value!r}; it takes a number.") from error
    if not low <= found <= high:
        raise InvalidValueError(f"{name} is {value!r}; allowed is {low:g} to {high:g}.")
    return found


def _truth(value: object, name: str) -> bool:
    if value is None:
        return False
    text = str(value).strip().lower()
    if text not in TRUTHS:
        raise InvalidValueError(f"{name} is {value!r}; it takes true or false.")
    return TRUTHS[text]
