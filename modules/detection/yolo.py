"""Detectors of the user's as ONNX files: YOLOv8 and its like, for boxes or with outlines. onnxruntime is optional; it
runs them on the CPU.

The layout is that of the exports: input [1,3,h,w] red first in 0 to 1, the image in the middle of grey; output
[1,4+classes,n] with the middle, width and height of n boxes in pixels of the input and a score for each class. With
outlines 32 further rows, which weigh the 32 maps [1,32,h/4,w/4] of a second output into the logits of a mask.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.detection.detection import Detection
from modules.errors import CheckpointError

RUNTIME = "onnxruntime"
USUAL_SIDE_PX = 640  # of files that take any size
GREY = (114, 114, 114)
MAX_OVERLAP = 0.7  # of two boxes of one thing: common area by that of both

Floats = NDArray[np.float64]


class YoloDetector:
    """A file."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` where onnxruntime is not installed, and for a file that cannot be used."""
        self.path = path
        self._session = _session(path)
        entry = self._session.get_inputs()[0]
        if len(entry.shape) != 4:
            raise self._other_layout(f"its input has the shape {entry.shape}")
        self._input: str = entry.name
        self._side_px = tuple(size if isinstance(size, int) else USUAL_SIDE_PX for size in entry.shape[2:])
        self._labels = _labels(self._session)

    def find(self, image: Image.Image, min_score: float) -> list[Detection]:
        """The best first. Raises `CheckpointError` for an output of another layout."""
        height, width = self._side_px
        scale = min(width / image.width, height / image.height)
        inner = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
        corner = ((width - inner[0]) // 2, (height - inner[1]) // 2)
        framed = Image.new("RGB", (width, height), GREY)
        framed.paste(image.convert("RGB").resize(inner, Image.Resampling.BILINEAR), corner)
        pixels = np.ascontiguousarray((np.asarray(framed, np.float32) / 255).transpose(2, 0, 1)[None])
        outputs = [np.asarray(output, np.float64) for output in self._session.run(None, {self._input: pixels})]
        maps = outputs[1][0] if len(outputs) > 1 and outputs[1].ndim == 4 else None
        extra = len(maps) if maps is not None else 0
        if outputs[0].ndim != 3 or outputs[0].shape[1] < 5 + extra:
            raise self._other_layout(f"its output has the shape {list(outputs[0].shape)}")
        rows = outputs[0][0].T
        scores = rows[:, 4 : rows.shape[1] - extra]
        labels, best = scores.argmax(1), scores.max(1)
        good = np.flatnonzero(best >= min_score)
        half = rows[good, 2:4] / 2
        boxes = np.concatenate([rows[good, :2] - half, rows[good, :2] + half], 1)
        found = []
        for place in _distinct(boxes, best[good], labels[good]):
            row, box = good[place], boxes[place]
            outline = None
            if maps is not None:
                outline = _outline(rows[row, -extra:], maps, box, (width, height), corner, inner).resize(image.size)
            in_image = (box.reshape(2, 2) - corner) / scale
            in_image = in_image.clip(0, image.size).reshape(4).tolist()
            if in_image[2] > in_image[0] and in_image[3] > in_image[1]:
                label = self._labels.get(int(labels[row]), str(labels[row]))
                found.append(Detection(tuple(in_image), float(best[row]), label, outline))
        return found

    def _other_layout(self, what: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path.name} is no detector that can be used: {what}. Export a YOLOv8 detector or segmenter as ONNX, "
            "without end-to-end suppression of boxes."
        )


def _outline(
    weights: Floats,
    maps: Floats,
    box: Floats,
    size_px: tuple[int, int],
    corner: tuple[int, int],
    inner: tuple[int, int],
) -> Image.Image:
    """The mask ("L") of one thing, in the part of the input that shows the image."""
    logits = np.tensordot(weights, maps, 1).astype(np.float32)
    whole = np.asarray(Image.fromarray(logits).resize(size_px, Image.Resampling.BILINEAR)) > 0
    left, top, right, bottom = (round(value) for value in box.tolist())
    kept = np.zeros_like(whole)
    area = (slice(max(top, 0), max(bottom, 0)), slice(max(left, 0), max(right, 0)))
    kept[area] = whole[area]
    shown = kept[corner[1] : corner[1] + inner[1], corner[0] : corner[0] + inner[0]]
    return Image.fromarray((shown * 255).astype(np.uint8))


def _distinct(boxes: Floats, scores: Floats, labels: NDArray[np.int64]) -> list[int]:
    """Places of boxes, the best first, of which none overlaps a better one of its label too much."""
    kept: list[int] = []
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    for place in np.argsort(-scores, kind="stable").tolist():
        rivals = [other for other in kept if labels[other] == labels[place]]
        low = np.maximum(boxes[rivals, :2], boxes[place, :2])
        high = np.minimum(boxes[rivals, 2:], boxes[place, 2:])
        common = np.maximum(high - low, 0).prod(1)
        if not (common > MAX_OVERLAP * (areas[rivals] + areas[place] - common)).any():
            kept.append(place)
    return kept


def _labels(session: Any) -> dict[int, str]:
    """The names of the classes, where the file has them."""
    try:
        found = ast.literal_eval(session.get_modelmeta().custom_metadata_map.get("names", "{}"))
        return {int(number): str(name) for number, name in found.items()}
    except (ValueError, SyntaxError, AttributeError, TypeError):
        return {}


def _session(path: Path) -> Any:
    if importlib.util.find_spec(RUNTIME) is None:
        raise CheckpointError(
            f"Detectors as files need the package {RUNTIME}, which is not installed: pip install {RUNTIME}, and start "
            "again. face_mtcnn needs none."
        )
    runtime: Any = importlib.import_module(RUNTIME)
    try:
        return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise CheckpointError(f"The detector {path.name} cannot be run: {error}") from error
