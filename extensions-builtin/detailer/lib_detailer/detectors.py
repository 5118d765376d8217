"""All detectors by name: faces and eyes by the program's own, everything else by the user's files."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from modules.detection.detection import Detection
from modules.errors import CheckpointError, UnknownNameError
from modules.faces.face import Face

if TYPE_CHECKING:
    from lib_detailer.yolo import YoloDetector

FACE, EYES = "face_mtcnn", "eyes_mtcnn"
OTHER_NAMES = {
    "mediapipe_face_full": FACE,
    "mediapipe_face_short": FACE,
    "mediapipe_face_mesh": FACE,
    "mediapipe_face_mesh_eyes_only": EYES,
}
"""Detectors of another package that callers name; ours take their place."""
FOLDER = "adetailer"  # below models/
SUFFIXES = (".pt", ".pth", ".safetensors", ".onnx")
EYE_WIDTH, EYE_HEIGHT = 0.6, 0.4  # of the distance between the eyes, with the lids

FindFaces = Callable[[Image.Image, float], list[Face]]


class Detectors:
    """Holds the file that was used last. `folder` holds the user's files."""

    def __init__(self, find_faces: FindFaces, folder: Path) -> None:
        self._find_faces = find_faces
        self._folder = folder
        self._lock = threading.Lock()
        self._loaded: tuple[Path, int, YoloDetector] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The program's own, then the files."""
        found = sorted(self._folder.glob("*")) if self._folder.is_dir() else []
        return (FACE, EYES, *(path.name for path in found if path.suffix.lower() in SUFFIXES))

    def check(self, name: str) -> str:
        """The name of a detector that is there. Where `hand.pt` is not, the name also means `hand.onnx`, or any other
        file of that stem. Raises `CheckpointError` that says what to put where for a file that is not there, and
        `UnknownNameError` for any other name."""
        by_name = {known.lower(): known for known in self.names} | OTHER_NAMES
        stem, dot, suffix = name.lower().rpartition(".")
        is_file = f"{dot}{suffix}" in SUFFIXES
        for wanted in (name.lower(), *(f"{stem}{other}" for other in SUFFIXES if is_file)):
            if wanted in by_name:
                return by_name[wanted]
        if not is_file:
            raise UnknownNameError.of("detector", name, self.names)
        raise CheckpointError(
            f"The detector {name} is not there: put {Path(name).name} (a YOLOv8 detector, or one exported as ONNX) "
            f"into models/{FOLDER}, or choose {FACE}."
        )

    def find(self, image: Image.Image, name: str, min_score: float = 0.3) -> list[Detection]:
        """Find what a detector sees, the best first. Raises as `check` does, and `CheckpointError` for a file that
        cannot be used."""
        name = self.check(name)
        if name not in (FACE, EYES):
            return self._of_file(self._folder / name).find(image, min_score)
        faces = sorted(self._find_faces(image, min_score), key=lambda face: -face.score)
        return [_face(face, image.size) if name == FACE else _eyes(face, image.size) for face in faces]

    def _of_file(self, path: Path) -> YoloDetector:
        from lib_detailer.yolo import YoloDetector

        with self._lock:
            changed = path.stat().st_mtime_ns
            if self._loaded is None or self._loaded[:2] != (path, changed):
                self._loaded = None
                self._loaded = (path, changed, YoloDetector(path))
            return self._loaded[2]


def _face(face: Face, size_px: tuple[int, int]) -> Detection:
    return Detection(_within(face.box, size_px), face.score, "face")


def _eyes(face: Face, size_px: tuple[int, int]) -> Detection:
    """Two ovals around the eyes."""
    drawn = Image.new("L", size_px)
    pen = ImageDraw.Draw(drawn)
    half_width, half_height = EYE_WIDTH * face.eye_distance / 2, EYE_HEIGHT * face.eye_distance / 2
    boxes = [(x - half_width, y - half_height, x + half_width, y + half_height) for x, y in face.landmarks[:2].tolist()]
    for box in boxes:
        pen.ellipse(box, fill=255)
    left, right = boxes
    whole = (left[0], min(left[1], right[1]), right[2], max(left[3], right[3]))
    return Detection(_within(whole, size_px), face.score, "eyes", drawn)


def _within(box: tuple[float, float, float, float], size_px: tuple[int, int]) -> tuple[float, float, float, float]:
    width, height = size_px
    left, top, right, bottom = box
    return max(left, 0.0), max(top, 0.0), min(right, float(width)), min(bottom, float(height))
