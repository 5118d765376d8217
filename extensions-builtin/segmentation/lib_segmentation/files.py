"""The user's segmentation models: files in `models/segmentation`, or folders there in transformers' layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modules.errors import CheckpointError, UnknownNameError
from modules.models.detection.kinds import Kind, row_of
from modules.system.model_folders import files_below

FOLDER = "segmentation"  # below models/
SUFFIXES = (".safetensors", ".pt", ".pth", ".bin")
SAM, OWL, CLIPSEG = "SAM 2", "OWLv2", "CLIPSeg"
BY_WORDS = (OWL, CLIPSEG)
"""Types that find things by words: by boxes, which SAM 2 outlines where there is one, or by areas."""
SOURCES = {SAM: "sam2.1-hiera-tiny", OWL: "owlv2-base", CLIPSEG: "clipseg"}
"""Names in the list of models."""


@dataclass(frozen=True)
class ModelFile:
    """A user file. `name`: its own, or its folder's where that holds a model in transformers' layout."""

    name: str
    path: Path
    kind: str


def model_files(folder: Path) -> list[ModelFile]:
    """Return the models in a folder and in those in it, by name. Files of other models are left out."""
    found = []
    for path in _paths(folder):
        stat = path.stat()
        kind = _kind_of(path, stat.st_mtime_ns, stat.st_size)
        if kind:
            in_folder = path.with_name("config.json").is_file() and path.parent != folder
            found.append(ModelFile(path.parent.name if in_folder else path.name, path, kind))
    return found


def chosen(folder: Path, kinds: Sequence[str], name: str = "") -> ModelFile:
    """Return the model of this name, else the first of these kinds. Raises `CheckpointError` that says what to put
    where, and `UnknownNameError`."""
    check_any(folder, kinds)
    files = [file for kind in kinds for file in model_files(folder) if file.kind == kind]
    if name:
        found = next((file for file in files if name.lower() in (file.name.lower(), file.path.stem.lower())), None)
        if found is None:
            raise UnknownNameError.of(f"model of {' or '.join(kinds)}", name, [file.name for file in files])
        return found
    if not files:
        raise _missing(kinds, [path.name for path in _paths(folder)])
    return files[0]


def check_any(folder: Path, kinds: Sequence[str]) -> None:
    """Raise `CheckpointError` that says what to put where, for a folder without files; opens none."""
    if not _paths(folder):
        raise _missing(kinds, [])


def _missing(kinds: Sequence[str], others: Sequence[str]) -> CheckpointError:
    have = f" It holds {', '.join(others[:5])}, none of which is that." if others else ""
    return CheckpointError(
        f"There is no model of {' or '.join(kinds)} in models/{FOLDER}.{have} Get "
        f"{' or '.join(SOURCES[kind] for kind in kinds)} in the tab Get models, or put a file of one there."
    )


def _paths(folder: Path) -> list[Path]:
    return sorted(path for path in files_below(folder) if path.suffix.lower() in SUFFIXES and path.is_file())


@cache
def _kind_of(path: Path, changed_ns: int, size: int) -> str:
    """Return the kind of a file; "" for those of other models and for what cannot be read."""
    from modules.models.files.tensor_source import open_tensors  # PyTorch, which the server does without

    try:
        with open_tensors(path) as file:
            row = row_of(file.entries, (Kind.SEGMENTER,))
    except CheckpointError:
        return ""
    return row.name if row is not None and row.is_read else ""
