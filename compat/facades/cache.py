"""`modules.cache`: facts about files that extensions keep between starts, in the cache folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compat.facades.refusal import lazy
from compat.host import host_now
from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file


def cache(subsection: str) -> dict[str, Any]:
    """A dict that is saved by `cached_data_for_file` and read again by the next start."""
    path = host_now().paths.cache_dir / "extensions" / f"{subsection}.json"
    try:
        found = read_json_file(path)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def cached_data_for_file(subsection: str, title: str, filename: str, func: Callable[[], Any]) -> Any:
    """Return what `func` gave for this file; called again where the file has changed. None is not kept."""
    known = cache(subsection)
    modified = Path(filename).stat().st_mtime
    entry = known.get(title)
    if isinstance(entry, dict) and entry.get("mtime") == modified and "value" in entry:
        return entry["value"]
    value = func()
    if value is None:
        return None
    known[title] = {"mtime": modified, "value": value}
    path = host_now().paths.cache_dir / "extensions" / f"{subsection}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, json.dumps(known).encode())
    return value


def dump_cache() -> None:
    """Facts are saved when they are found."""


_LAZY = {"cache_dir": lambda: str(host_now().paths.cache_dir), "cache_filename": lambda: ""}
__getattr__ = lazy("cache", _LAZY, {})
