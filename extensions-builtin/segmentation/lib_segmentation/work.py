"""Masks of images, made where images are computed, and detections for other extensions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from PIL import Image, ImageChops

from lib_segmentation.asked import Asked, as_base64, image_of
from lib_segmentation.segmenter import Segmenter
from modules.detection.detection import Detection
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.masks import blur_mask
from modules.prompting.extra_networks import PromptTag, extract_tags

SEGMENT = "Segmentation"
"""The work, by the name that the queue shows."""
TAG = "segment"
PREFIX = f"{TAG}:"
OPTIONS = ("score", "grow", "blur", "invert", "model")


def tags_of(prompt: str) -> list[Asked]:
    """Return what the tags `<segment:word:grow=8>` of a prompt ask for. Raises `InvalidValueError`."""
    return [_asked(tag) for tag in extract_tags(prompt)[1].get(TAG, ())]


def _asked(tag: PromptTag) -> Asked:
    written = f"<{TAG}:{':'.join(tag.items)}>"
    unknown = [name for name in tag.named if name not in OPTIONS]
    if unknown:
        raise InvalidValueError(f"{written} has {unknown[0]}=; it takes {', '.join(f'{name}=' for name in OPTIONS)}.")
    try:
        return Asked.read({**tag.named, "words": ":".join(tag.positional)})
    except InvalidValueError as error:
        raise InvalidValueError(f"{written}: {error}") from error


def mask_of(segmenter: Segmenter, image: Image.Image, asked: Asked) -> tuple[Image.Image, list[Detection]]:
    """Return the mask ("L") of what is asked for, and what it is made of. Raises `InvalidValueError` where there is
    nothing, or a point is outside of the image."""
    asked.check_inside(image.size)
    if asked.words:
        found = segmenter.by_words(image, asked.words, asked.min_score, asked.model)
        if not found:
            least = "" if asked.min_score is None else f" with a score of {asked.min_score:g}"
            raise InvalidValueError(
                f"Nothing in the image is found for {asked.words!r}{least}, and nothing is masked. Try another word, "
                "or a lower score."
            )
    else:
        found = [segmenter.by_points(image, asked.points, asked.box, asked.model)]
    mask = Image.new("L", image.size)
    for item in found:
        mask = ImageChops.lighter(mask, item.mask(image.size))
    if mask.getbbox() is None:
        raise InvalidValueError("Nothing is found there, and nothing is masked. Click another place, or draw a box.")
    return changed(mask, asked), found


def changed(mask: Image.Image, asked: Asked) -> Image.Image:
    """The mask grown or shrunk, inverted, and blurred."""
    if asked.grow_px:
        import numpy as np
        from scipy.ndimage import maximum_filter, minimum_filter  # slow to import, and a start does not need it

        change = maximum_filter if asked.grow_px > 0 else minimum_filter
        mask = Image.fromarray(change(np.asarray(mask), size=2 * abs(asked.grow_px) + 1))
    if asked.is_inverted:
        mask = ImageChops.invert(mask)
    return blur_mask(mask, asked.blur_px, asked.blur_px) if asked.blur_px else mask


def segment(segmenter: Segmenter, values: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of the route to its body. Raises as `mask_of`."""
    asked = Asked.read(values)
    mask, found = mask_of(segmenter, image_of(values.get("image")), asked)
    things = [{"label": item.label, "score": round(item.score, 4), "box": list(item.box)} for item in found]
    return {"mask": as_base64(mask), "found": things}


class WordDetectors:
    """Detectors by the names `segment:word`, for the detailer; words take the options of a tag."""

    names = ()

    def __init__(self, segmenter: Segmenter) -> None:
        self._segmenter = segmenter

    def check(self, name: str) -> str:
        """Raises `UnknownNameError` for other names, and `InvalidValueError`, `CheckpointError`."""
        self._read(name)
        return name

    def find(self, image: Image.Image, name: str, min_score: float = 0.3) -> list[Detection]:
        """Find what the words name, each thing with its outline changed as the options say."""
        asked = self._read(name)
        score = min_score if asked.min_score is None else asked.min_score
        found = self._segmenter.by_words(image, asked.words, score, asked.model)
        return [Detection(item.box, item.score, item.label, changed(item.mask(image.size), asked)) for item in found]

    def _read(self, name: str) -> Asked:
        if not name.lower().startswith(PREFIX):
            raise UnknownNameError.of("detector", name, [])
        asked = _asked(PromptTag(tuple(name[len(PREFIX) :].split(":"))))
        self._segmenter.check(asked)
        return asked
