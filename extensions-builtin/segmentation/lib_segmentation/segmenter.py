"""Finding things in images: by points and a box with SAM 2, by words with OWLv2 or CLIPSeg. Imports no torch before
something is looked for."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from lib_segmentation.asked import Asked, Point
from lib_segmentation.files import BY_WORDS, CLIPSEG, FOLDER, OWL, SAM, check_any, chosen, model_files
from modules.detection.detection import Detection
from modules.scripts.program import Program

MIN_SCORES = {SAM: 0.7, OWL: 0.2, CLIPSEG: 0.4}
EVERYTHING = "*"
"""In the place of words: all that SAM 2 sees at the points of a grid."""
MAX_FEATURES_BYTES = 128 << 20
"""In main memory: about seven images of SAM 2 in 32 bits."""


class SeenImages:
    """The features of the images that were encoded last, by the hash of the image and the model."""

    def __init__(self, max_bytes: int = MAX_FEATURES_BYTES) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], list[Any]] = OrderedDict()
        self.encoded = 0  # how often an encoder has run

    @property
    def size_bytes(self) -> int:
        """Bytes of all that is kept."""
        return sum(level.nbytes for levels in self._kept.values() for level in levels)

    def of(self, image: Image.Image, sam: Any) -> list[Any]:
        """Return the features of an RGB image by this model, the tensors of `networks.features`."""
        from lib_segmentation.networks import features

        digest = hashlib.sha256(image.tobytes()).digest()
        key = (digest, image.size, sam.path, sam.path.stat().st_mtime_ns, str(sam.device), str(sam.dtype), id(sam))
        with self._lock:
            found = self._kept.pop(key, None)
            if found is None:
                found = [level.cpu() for level in features(image, sam)]
                self.encoded += 1
            self._kept[key] = found
            while len(self._kept) > 1 and self.size_bytes > self._max_bytes:
                self._kept.popitem(last=False)
        return [level.to(sam.device) for level in found]


class Segmenter:
    """Uses the user's models through the engine. Images may have any mode and size."""

    def __init__(self, program: Program, seen: SeenImages | None = None) -> None:
        self._program = program
        self.seen = seen or SeenImages()

    @property
    def folder(self) -> Path:
        """The folder of the user's files."""
        return self._program.folders(FOLDER)[0]

    def check_any(self, asked: Asked) -> None:
        """Raise `CheckpointError` where there is no file at all for what is asked for; opens none."""
        check_any(self.folder, _kinds(asked.words))

    def check(self, asked: Asked) -> None:
        """Raise `CheckpointError` where there is no model for what is asked for, `UnknownNameError` for one that is
        not there."""
        chosen(self.folder, _kinds(asked.words), asked.model)

    def by_points(
        self, image: Image.Image, points: Sequence[Point], box: Sequence[float] | None = None, model: str = ""
    ) -> Detection:
        """Find the thing at some points, and in a box, in pixels; points that are not included are outside of it.
        Raises `CheckpointError` where there is no SAM 2."""
        file = chosen(self.folder, (SAM,), model)
        from lib_segmentation.building import BUILDERS
        from lib_segmentation.networks import outlined

        def outline(sam: Any) -> Detection:
            return outlined(image.size, self.seen.of(image.convert("RGB"), sam), sam, points, box)

        found: Detection = self._program.compute_alone(file.path, BUILDERS[SAM], outline)
        return found

    def by_words(
        self, image: Image.Image, words: str, min_score: float | None = None, model: str = ""
    ) -> list[Detection]:
        """Find what some words, separated by commas, name, or `EVERYTHING`, the best first; `min_score` None: as suits
        the model. Raises `CheckpointError` where there is no model for words."""
        file = chosen(self.folder, _kinds(words), model)
        from lib_segmentation.building import BUILDERS
        from lib_segmentation.networks import areas, boxes, everything
        from lib_segmentation.pixels import max_found

        least = MIN_SCORES[file.kind] if min_score is None else min_score
        rgb = image.convert("RGB")

        def find(network: Any) -> list[Detection]:
            if file.kind == SAM:
                return everything(image.size, self.seen.of(rgb, network), network, least)
            names = [name.strip() for name in words.split(",") if name.strip()]
            by_name = boxes if file.kind == OWL else areas
            return [item for name in names for item in by_name(network, rgb, name, least)]

        found: list[Detection] = self._program.compute_alone(file.path, BUILDERS[file.kind], find)
        if file.kind == SAM:
            return found
        found = sorted(found, key=lambda item: -item.score)[: max_found(image.size)]
        has_sam = any(one.kind == SAM for one in model_files(self.folder))
        if file.kind != OWL or not has_sam:
            return found
        outlines = [self.by_points(rgb, (), item.box).outline for item in found]
        return [
            Detection(item.box, item.score, item.label, outline) for item, outline in zip(found, outlines, strict=True)
        ]


def _kinds(words: str) -> tuple[str, ...]:
    """Return the kinds of models that find what is named; without words: what is clicked."""
    return BY_WORDS if words and words != EVERYTHING else (SAM,)
