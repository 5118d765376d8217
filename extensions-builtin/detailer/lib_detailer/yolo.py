"""The user's detectors, which run on the CPU: ONNX files of YOLOv8 and its like, for boxes or with outlines, with
onnxruntime, which is optional; and the files of YOLOv8 itself (`yolo_file`).

The layout of both is that of the exports: input [1,3,h,w] red first in 0 to 1, the image in the middle of grey; output
[1,4+classes,n] with the middle, width and height of n boxes in pixels of the input and a score for each class. With
outlines 32 further rows, which weigh the 32 maps [1,32,h/4,w/4] of a second output into the logits of a mask.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from lib_detailer.yolo_file import USUAL_SIDE_PX, read_yolo_file
from modules.detection.detection import Detection
from modules.errors import CheckpointError

RUNTIME = "onnxruntime"
ONNX = ".onnx"
GREY = (114, 114, 114)
MAX_NAMES_CHARS = 100_000
MAX_OVERLAP = 0.7  # of two boxes of one thing: common area by that of both

Floats = NDArray[np.float64]


class Network(Protocol):
    """Model of a file, ready to run."""

    @property
    def side_px(self) -> tuple[int, ...]:
        """Height and width of the input."""

    @property
    def labels(self) -> dict[int, str]:
        """The names of the classes, where the file has them."""

    def run(self, pixels: NDArray[np.float32]) -> Sequence[NDArray[Any]]:
        """The outputs for an input of the layout above."""


class OnnxNetwork:
    """An ONNX file."""

    def __init__(self, path: Path) -> None:
        """Raises as `YoloDetector` does."""
        self._session = _session(path)
        entry = self._session.get_inputs()[0]
        if len(entry.shape) != 4:
            raise _other_layout(path, f"its input has the shape {entry.shape}")
        self._input: str = entry.name
        self.side_px = tuple(size if isinstance(size, int) else USUAL_SIDE_PX for size in entry.shape[2:])
        self.labels = _labels(self._session)

    def run(self, pixels: NDArray[np.float32]) -> Sequence[NDArray[Any]]:
        """The detector's raw output for one image, see `Network.run`."""
        outputs: Sequence[NDArray[Any]] = self._session.run(None, {self._input: pixels})
        return outputs


class TorchNetwork:
    """A file of YOLOv8 itself."""

    def __init__(self, path: Path) -> None:
        """Raises as `read_yolo_file` does."""
        file = read_yolo_file(path)
        self._network = file.network
        self.side_px = (file.side_px, file.side_px)
        self.labels = dict(file.labels)

    @torch.inference_mode()
    def run(self, pixels: NDArray[np.float32]) -> Sequence[NDArray[Any]]:
        """The detector's raw output for one image, see `Network.run`."""
        rows, maps = self._network(torch.from_numpy(pixels))
        return [output.numpy() for output in (rows, maps) if output is not None]


class YoloDetector:
    """A file."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` for a file that cannot be used, and for an ONNX file where onnxruntime is not
        installed."""
        self.path = path
        self._network: Network = OnnxNetwork(path) if path.suffix.lower() == ONNX else TorchNetwork(path)

    def find(self, image: Image.Image, min_score: float) -> list[Detection]:
        """The best first. Raises `CheckpointError` for an output of another layout."""
        height, width = self._network.side_px
        scale = min(width / image.width, height / image.height)
        inner = (max(round(image.width * scale), 1), max(round(image.height * scale), 1))
        corner = ((width - inner[0]) // 2, (height - inner[1]) // 2)
        framed = Image.new("RGB", (width, height), GREY)
        framed.paste(image.convert("RGB").resize(inner, Image.Resampling.BILINEAR), corner)
        scaled = np.asarray(framed, np.float32) / np.float32(255)
        pixels: NDArray[np.float32] = np.ascontiguousarray(scaled.transpose(2, 0, 1)[None], np.float32)
        outputs = [np.asarray(output, np.float64) for output in self._network.run(pixels)]
        maps = outputs[1][0] if len(outputs) > 1 and outputs[1].ndim == 4 else None
        extra = len(maps) if maps is not None else 0
        if outputs[0].ndim != 3 or outputs[0].shape[1] < 5 + extra:
            raise _other_layout(self.path, f"its output has the shape {list(outputs[0].shape)}")
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
                label = self._network.labels.get(int(labels[row]), str(labels[row]))
                found.append(Detection(tuple(in_image), float(best[row]), label, outline))
        return found


def _other_layout(path: Path, what: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} is no detector that can be used: {what}. Export a YOLOv8 detector or segmenter as ONNX, without "
        "end-to-end suppression of boxes."
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
        found = ast.literal_eval(session.get_modelmeta().custom_metadata_map.get("names", "{}")[:MAX_NAMES_CHARS])
        return {int(number): str(name) for number, name in found.items()}
    except (ValueError, SyntaxError, AttributeError, TypeError, RecursionError, MemoryError):
        return {}


def _session(path: Path) -> Any:
    if importlib.util.find_spec(RUNTIME) is None:
        raise CheckpointError(
            f"Detectors as ONNX files need the package {RUNTIME}, which is not installed: pip install {RUNTIME}, and "
            "start again. face_mtcnn and YOLOv8 files (.pt) need none."
        )
    runtime: Any = importlib.import_module(RUNTIME)
    try:
        return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise CheckpointError(f"The detector {path.name} cannot be run: {error}") from error
