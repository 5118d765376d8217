"""Corrections to predicted bytes, learned from what work needed before and kept on disk.

A prediction counts tensors (`dry run`). What really comes on top (workspaces of kernels, blocks that the allocator
cannot use again) depends on device and program, and is learnt from real runs: a straight line through what was
measured over what was predicted, and close to a size that was measured, that measurement itself.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file

log = logging.getLogger(__name__)

KEPT = 16  # observations of a key; the oldest go first
CLOSE = 0.03  # predictions that differ by less are the same work
STEEPEST, FLATTEST = 3.0, 0.5  # of a line: more than that is noise
VERSION = 2


@dataclass(frozen=True)
class Observation:
    """Bytes that were predicted for a stage, and that it took."""

    predicted: int
    measured: int


class Corrections:
    """Observations by key (device, family, dtype, stage ...). Thread safe. `path` None: in memory only.

    A file that cannot be read is started again, one that cannot be written is only logged: a plan is never worth an
    error.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._known = _read(path) if path is not None else {}

    def count(self, key: str) -> int:
        """How many observations there are."""
        with self._lock:
            return len(self._known.get(key, ()))

    def correct(self, keys: Sequence[str], predicted: int, extra: int = 0) -> int:
        """Return the bytes that work of `predicted` bytes will take, by the first of `keys` (the most similar first)
        that knows anything. Without observations: `predicted` and `extra`."""
        with self._lock:
            known = next((items for key in keys if (items := self._known.get(key))), ())
        return corrected(known, predicted) if known else predicted + extra

    def learn(self, keys: Sequence[str], predicted: int, measured: int) -> None:
        """Remember a real run under all `keys`, and write the file."""
        with self._lock:
            seen = Observation(predicted, measured)
            if self._path is not None:  # another process may have learnt meanwhile
                self._known |= _read(self._path)
            self._known = {**self._known, **{key: [*self._known.get(key, ()), seen][-KEPT:] for key in keys}}
            if self._path is None:
                return
            content = {name: [[o.predicted, o.measured] for o in items] for name, items in self._known.items()}
            try:
                write_atomic(self._path, json.dumps({"version": VERSION, "observations": content}).encode())
            except OSError as error:
                log.warning("What was learnt about memory could not be written to %s: %s", self._path, error)


def corrected(known: Sequence[Observation], predicted: int) -> int:
    """Correct `predicted` bytes by what was observed; `known` is not empty."""
    close = [item.measured for item in known if abs(item.predicted - predicted) <= CLOSE * max(predicted, 1)]
    if close:
        recent = close[-3:]
        return round(sum(recent) / len(recent))
    count = len(known)
    mean_x = sum(item.predicted for item in known) / count
    mean_y = sum(item.measured for item in known) / count
    spread = sum((item.predicted - mean_x) ** 2 for item in known)
    slope = 1.0
    if spread > 0:
        slope = sum((item.predicted - mean_x) * (item.measured - mean_y) for item in known) / spread
        slope = min(max(slope, FLATTEST), STEEPEST)
    return max(0, round(mean_y + slope * (predicted - mean_x)))


def _read(path: Path) -> dict[str, list[Observation]]:
    try:
        content = read_json_file(path)
        if content["version"] != VERSION:
            return {}
        return {
            str(key): [Observation(int(predicted), int(measured)) for predicted, measured in items]
            for key, items in content["observations"].items()
        }
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("%s cannot be read and is started again: %s", path, error)
        return {}
