"""Taggers as ONNX files, such as the WD14 family: `model.onnx` with `selected_tags.csv` next to it. onnxruntime is
optional; it runs them on the CPU."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modules.errors import CheckpointError
from modules.settings.sections.interrogate import InterrogateSettings

RUNTIME = "onnxruntime"
RATING = "9"  # the category of tags that say how explicit an image is
_BRACKETS = re.compile(r"([\\()])")


class Tagger:
    """A tagger of a folder."""

    def __init__(self, folder: Path) -> None:
        """Raises `CheckpointError` where onnxruntime is not installed, and for files that cannot be used."""
        self.folder = folder
        self._tags = _read_tags(folder / "selected_tags.csv")
        self._session = _session(folder / "model.onnx")

    def scores(self, image: Image.Image) -> dict[str, float]:
        """Every tag that is no rating, with its score from 0 to 1."""
        entry = self._session.get_inputs()[0]
        side = entry.shape[1] if isinstance(entry.shape[1], int) and entry.shape[1] > 3 else 448
        (found,) = self._session.run(None, {entry.name: _prepared(image, side)})[:1]
        values = np.asarray(found)[0].astype(float).tolist()
        if len(values) != len(self._tags):
            raise CheckpointError(
                f"{self.folder.name}: model.onnx gives {len(values)} scores, and selected_tags.csv names "
                f"{len(self._tags)} tags. Take both files from the same model."
            )
        return {name: score for (name, category), score in zip(self._tags, values, strict=True) if category != RATING}


def written(scores: Mapping[str, float], options: InterrogateSettings) -> str:
    """The tags above the threshold, as the settings want them written."""
    left_out = {tag.strip().lower().replace(" ", "_") for tag in options.deepbooru_filter_tags.split(",")}
    found = [(tag, score) for tag, score in scores.items() if score >= options.interrogate_deepbooru_score_threshold]
    found = [(tag, score) for tag, score in found if tag.lower() not in left_out]
    found.sort(key=lambda item: item[0] if options.deepbooru_sort_alpha else -item[1])
    parts = []
    for tag, score in found:
        text = tag.replace("_", " ") if options.deepbooru_use_spaces else tag
        text = _BRACKETS.sub(r"\\\1", text) if options.deepbooru_escape else text
        parts.append(f"({text}:{score:.3f})" if options.interrogate_return_ranks else text)
    return ", ".join(parts)


def _prepared(image: Image.Image, side: int) -> Any:
    """[1,side,side,3] float32, blue first, 0 to 255: the image on a white square."""
    rgba = image.convert("RGBA")
    square = Image.new("RGB", (max(image.size),) * 2, "white")
    square.paste(rgba, ((square.width - image.width) // 2, (square.height - image.height) // 2), rgba)
    resized = square.resize((side, side), Image.Resampling.BICUBIC)
    return np.ascontiguousarray(np.asarray(resized, np.float32)[None, :, :, ::-1])


def _read_tags(path: Path) -> list[tuple[str, str]]:
    """Names and categories, in the order of the scores."""
    try:
        with path.open(encoding="utf-8", newline="") as stream:
            return [(row["name"], row["category"]) for row in csv.DictReader(stream)]
    except (OSError, KeyError, UnicodeDecodeError, csv.Error) as error:
        raise CheckpointError(
            f"The tags of {path.parent.name} cannot be read: {path.name} must lie next to model.onnx, with the columns "
            f"name and category ({error})."
        ) from error


def _session(path: Path) -> Any:
    if importlib.util.find_spec(RUNTIME) is None:
        raise CheckpointError(
            f"Taggers need the package {RUNTIME}, which is not installed: pip install {RUNTIME}, and start again."
        )
    runtime: Any = importlib.import_module(RUNTIME)
    try:
        return runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # its errors have no common class of their own
        raise CheckpointError(f"{path.name} of {path.parent.name} cannot be run: {error}") from error
