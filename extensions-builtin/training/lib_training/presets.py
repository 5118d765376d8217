"""Presets of the page: a character, a style or a concept; everything else follows from it, the model and the images.
Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lib_training.config import TrainingConfig, config_of
from modules.errors import UnknownNameError
from modules.models.files.file_header import header_of
from modules.system.file_names import given_path

STEPS_PER_IMAGE = 60
TEXT_ENCODERS = ("cond_stage_model.", "conditioner.")
"""How the names of text encoders begin in checkpoints that have them."""
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
MIN_STEPS, MAX_STEPS = 300, 2400
SMALL_MODEL_BYTES = 200_000_000
"""Checkpoints with less learn by other rates. The bundled model has 37 MB, full-size ones half a GB and more."""


@dataclass(frozen=True)
class Preset:
    """A starting point: sections of a configuration, and a sentence for people."""

    label: str
    says: str
    sections: Mapping[str, Mapping[str, Any]]


PRESETS: Mapping[str, Preset] = {
    "character": Preset(
        "Character",
        "One person or figure, recognizable in other clothes and places. 15 to 40 images, from all sides.",
        {
            "adapter": {"rank": 16, "text_rank": 0},
            "data": {"shuffle_tags": True, "keep_tokens": 1, "caption_dropout": 0.05},
        },
    ),
    "style": Preset(
        "Style",
        "How things are drawn, whatever is shown. 30 images or more, of many subjects.",
        {
            "adapter": {"rank": 16, "conv_rank": 8},
            "data": {"shuffle_tags": True, "keep_tokens": 1, "caption_dropout": 0.1, "flip": True},
            "loss": {"noise_offset": 0.05},
        },
    ),
    "concept": Preset(
        "Concept",
        "A thing, a pose, a piece of clothing. 10 to 30 images in which all else differs.",
        {
            "adapter": {"rank": 8},
            "data": {"shuffle_tags": True, "keep_tokens": 1, "caption_dropout": 0.05, "flip": True},
        },
    ),
}

SMALL_MODEL: Mapping[str, Mapping[str, Any]] = {
    "adapter": {"rank": 8, "conv_rank": 4, "text_rank": 8},
    "training": {"batch": 8, "learning_rate": 1.5e-3, "text_learning_rate": 7.5e-4},
    "loss": {"noise_offset": 0.1},
}
"""What every preset has instead of its own for a small model, whose few and narrow layers have to change a lot: the
text encoder and the convolutions too."""
MIN_SMALL_STEPS = 100


def count_images(folder: str | Path) -> int:
    """Count the images in a folder and its subfolders; 0 for one that is not there. Raises `InvalidValueError` for what
    is no path."""
    place = given_path(str(folder)) if str(folder).strip() else None
    found = [*place.glob("*"), *place.glob("*/*")] if place and place.is_dir() else []
    return sum(path.suffix.lower() in SUFFIXES for path in found)


def is_small(checkpoint: Path) -> bool:
    """Whether a checkpoint is a small model with its text encoder, for which `SMALL_MODEL` is. A look at its header."""
    try:
        if checkpoint.suffix != ".safetensors" or checkpoint.stat().st_size >= SMALL_MODEL_BYTES:
            return False
    except OSError:
        return False
    return any(name.startswith(TEXT_ENCODERS) for name in header_of(checkpoint).tensors)


def preset_config(
    preset: str,
    folder: str,
    name: str,
    checkpoint: str,
    images: int,
    trigger: str = "",
    budget_gb: float | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    small_model: bool = False,
) -> TrainingConfig:
    """The configuration of a preset for so many images. `changes` are sections that go before it. `small_model`: what
    `is_small` says of the checkpoint, unless the changes name another.

    Raises `UnknownNameError` for a preset that is not there, and `InvalidValueError` for changes that cannot be.
    """
    if preset not in PRESETS:
        raise UnknownNameError.of("preset", preset, PRESETS)
    small_model = small_model and "checkpoint" not in (changes or {}).get("model", {})
    small = SMALL_MODEL if small_model else {}
    steps = min(max(images * STEPS_PER_IMAGE, MIN_STEPS), MAX_STEPS)
    if small_model:  # as many images, in batches
        steps = max(steps // SMALL_MODEL["training"]["batch"], MIN_SMALL_STEPS)
    steps = _whole((changes or {}).get("training", {}).get("steps")) or steps
    base: dict[str, dict[str, Any]] = {
        "model": {"checkpoint": checkpoint},
        "data": {"folders": [folder], "prefix": f"{trigger}, " if trigger else ""},
        "training": {"steps": steps, "learning_rate": 2e-4, "ema": 0.98},
        "memory": {"budget_gb": budget_gb},
        "output": {
            "name": name,
            "trigger": trigger,
            "validate_every": max(steps // 20, 10),
            "sample_every": max(steps // 5, 50),
            "save_every": max(steps // 10, 25),
        },
    }
    for sections in (PRESETS[preset].sections, small, changes or {}):
        for section, values in sections.items():
            base[section] = {**base.get(section, {}), **values}
    return config_of(base)


def _whole(value: Any) -> int:
    """0 where it is none: what is wrong with it is said when the configuration is read."""
    return value if isinstance(value, int) and value > 0 else 0
