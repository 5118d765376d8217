"""`modules.modelloader`: finding model files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compat.facades.refusal import refusing
from compat.facades.shared import walk_files
from compat.facades.util import load_file_from_url

__all__ = ["friendly_name", "load_file_from_url", "load_models"]


def load_models(
    model_path: str,
    model_url: str | None = None,
    command_path: str | None = None,
    ext_filter: Any = None,
    download_name: str | None = None,
    ext_blacklist: Any = None,
    **unused: Any,
) -> list[str]:
    """The files of these suffixes below the given folders; [model_url] where there are none and it is given."""
    found: list[str] = []
    for place in dict.fromkeys(one for one in (command_path, model_path) if one):
        if Path(place).exists():
            files = walk_files(place, allowed_extensions=ext_filter)
            found += [file for file in files if not any(file.endswith(end) for end in ext_blacklist or ())]
    return found


def friendly_name(file: str) -> str:
    """The name of a file without folder and suffix."""
    return Path(file).stem


def load_upscalers() -> None:
    """The program lists its upscalers by itself."""


forbidden_upscaler_classes: set[str] = set()
_REASONS = {"load_spandrel_model": "shared.sd_upscalers has the upscalers, each with scaler.upscale(image, scale)."}
__getattr__ = refusing("modelloader", _REASONS)
