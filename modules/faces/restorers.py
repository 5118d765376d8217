"""Face restorers at work: finds the faces of an image, restores each, and lays them back.

Torch is imported on first use, so that a page can be served before.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from modules.errors import CheckpointError, UnknownNameError
from modules.faces.alignment import Alignment
from modules.faces.restorer_types import NAMES, NO_RESTORERS, RESTORERS, SUFFIXES, RestorerType
from modules.system.model_folders import as_folders

if TYPE_CHECKING:
    import torch

    from modules.faces.face import Face
    from modules.faces.loading import FaceModel
    from modules.faces.mtcnn import FaceDetector

log = logging.getLogger(__name__)

MIN_EYE_DISTANCE_PX = 5.0  # smaller faces hold nothing to restore
FIND_PART = "gfpgan"  # the word of --use-cpu for the detector

OnFace = Callable[[int, int], None]


@dataclass(frozen=True)
class _Loaded:
    path: Path
    mtime_ns: int
    device: torch.device
    model: FaceModel


def _files_of(folder: Path) -> list[Path]:
    """List what may be restorers in a folder, by name."""
    if not folder.is_dir():
        return []
    return [
        path
        for path in sorted(folder.iterdir(), key=lambda path: path.name.lower())
        if path.suffix.lower() in SUFFIXES and path.is_file() and not path.name.startswith(NO_RESTORERS)
    ]


class FaceRestorers:
    """Holds at most one restorer, and the detector. `folders` are given by type (`RestorerType.folder`), `files` where
    the command line names one; `find_device` maps a program part ("gfpgan", "codeformer") to its device."""

    def __init__(
        self,
        folders: Mapping[str, Path | Iterable[Path]],
        find_device: Callable[[str], torch.device],
        files: Mapping[str, Path] | None = None,
    ) -> None:
        self._folders = {name: as_folders(some) for name, some in folders.items()}
        self._files = dict(files or {})
        self._find_device = find_device
        self._lock = threading.RLock()
        self._loaded: _Loaded | None = None
        self._detector: FaceDetector | None = None

    def file_of(self, restorer: RestorerType) -> Path | None:
        """The file of a restorer: the one of the command line, or the last by name of those that carry its name,
        or else of all; in the first of its folders that holds one."""
        named = self._files.get(restorer.name)
        if named is not None:
            return named
        for folder in self._folders.get(restorer.folder, ()):
            found = _files_of(folder)
            own = [path for path in found if restorer.name.lower() in path.name.lower()]
            chosen = own or found
            if chosen:
                return chosen[-1]
        return None

    def check(self, name: str) -> RestorerType:
        """The restorer of this name, in any case. Raises `UnknownNameError`, and `CheckpointError` that says which file
        goes where if there is none."""
        restorer = next((restorer for restorer in RESTORERS if restorer.name.lower() == name.lower()), None)
        if restorer is None:
            raise UnknownNameError.of("face restorer", name, NAMES)
        if self.file_of(restorer) is None:
            folder = next(iter(self._folders.get(restorer.folder, ())), Path("models") / restorer.folder)
            raise CheckpointError(
                f"{restorer.name} has no file: put one, such as {restorer.example}, into {folder}. "
                "Nothing is downloaded."
            )
        return restorer

    def restore(
        self,
        image: Image.Image,
        name: str,
        weight: float = 0.5,
        on_face: OnFace = lambda index, count: None,
        *,
        unload: bool = False,
    ) -> Image.Image:
        """The image with its faces restored; the same image where no face is found.

        `weight` is CodeFormer's, 0 (most restored) to 1 (closest to the image). `on_face(index, count)` comes before
        each face and may raise to stop. With `unload` the model is let go afterwards. Raises as `check`, and
        `CheckpointError` that names a file which cannot be used.
        """
        restorer = self.check(name)
        with self._lock:
            try:
                model = self._load(restorer)
                faces = [face for face in self.find(image) if face.eye_distance >= MIN_EYE_DISTANCE_PX]
                result = image
                for index, face in enumerate(faces):
                    on_face(index, len(faces))
                    alignment = Alignment.of(face.landmarks)
                    result = alignment.pasted(result, model.restore(alignment.face(image), weight))
                return result
            finally:
                if unload:
                    self.release()

    def find(self, image: Image.Image, min_score: float = 0.9) -> list[Face]:
        """The faces of an image with at least this score, the largest first. Raises `FeatherweightError` where the
        detector's weights are not installed."""
        from modules.faces.mtcnn import FaceDetector

        with self._lock:
            if self._detector is None:
                self._detector = FaceDetector(self._find_device(FIND_PART))
            return self._detector.find(image, min_score)

    def weights_bytes(self, name: str = "") -> tuple[int, torch.device | None]:
        """Bytes of the restorer's file that is held, or of the restorer `name`, which takes its place; and on which
        device (None: nothing is held). The detector has 2 MB and is not counted. Never waits."""
        restorer = next((one for one in RESTORERS if one.name.lower() == name.lower()), None)
        path = self.file_of(restorer) if restorer is not None else None
        loaded = self._loaded
        if restorer is not None and path is not None and path.is_file():
            return path.stat().st_size, self._find_device(restorer.part)
        if loaded is not None and loaded.path.is_file():
            return loaded.path.stat().st_size, loaded.device
        return 0, None

    def release(self) -> None:
        """Let go of the models."""
        with self._lock:
            self._loaded = self._detector = None

    def _load(self, restorer: RestorerType) -> FaceModel:
        from modules.faces.loading import load_restorer

        path = self.file_of(restorer)
        assert path is not None, "check() has found it"
        device = self._find_device(restorer.part)
        mtime_ns = path.stat().st_mtime_ns if path.is_file() else 0
        loaded = self._loaded
        if loaded is None or (loaded.path, loaded.mtime_ns, loaded.device) != (path, mtime_ns, device):
            self._loaded = None
            log.info("Loading %s from %s.", restorer.name, path.name)
            loaded = self._loaded = _Loaded(path, mtime_ns, device, load_restorer(path, restorer, device))
        return loaded.model
