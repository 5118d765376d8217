"""Presets of block weights that users keep in `lbwpresets.txt`, the file of the extension LoRA Block Weight."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from modules.errors import InvalidValueError

FILE = "lbwpresets.txt"


def read_presets(paths: Iterable[Path]) -> Mapping[str, str]:
    """Read what follows the colon in each line `NAME:1,0,0,...`, by the name in upper case; the first file with a name
    counts. Lines without a colon and those that begin with # say nothing, files that are not there neither. Raises
    `InvalidValueError` for one that cannot be read."""
    found: dict[str, str] = {}
    for path in paths:
        try:
            lines = path.read_text("utf-8-sig").splitlines()
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
            raise InvalidValueError(f"{path.name}: the presets of block weights cannot be read ({why}).") from error
        for name, weights in presets_of(lines).items():
            found.setdefault(name, weights)
    return found


def presets_of(lines: Iterable[str]) -> dict[str, str]:
    """Return what follows the colon in each line, by the name in upper case; the first of a name counts."""
    found: dict[str, str] = {}
    for line in lines:
        name, colon, weights = line.partition(":")
        if colon and name.strip() and not line.lstrip().startswith("#"):
            found.setdefault(name.strip().upper(), weights.strip())
    return found
