"""Embedding tables that stay in the file they came from: only the rows that are looked up are read.

A text model's vocabulary is its largest tensor (49,408 rows), and a prompt uses a few dozen of them. Left in the
checkpoint the table costs the process no memory, is exact, and a look-up reads some kilobytes from the page cache,
where loading leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError

STATE = "_row_table"
CACHED_AT_ONCE = 1 << 20  # bytes


@dataclass(frozen=True)
class RowTable:
    """Rows of a tensor in a file: `shape` is [rows, width], `begin` the byte where they start.

    `size_bytes` and `mtime_ns` are the file's when the table was made; a file that has changed is refused.
    """

    path: Path
    begin: int
    shape: tuple[int, int]
    dtype: torch.dtype
    size_bytes: int
    mtime_ns: int

    def read(self, rows: Tensor) -> Tensor:
        """The rows [n, width] of these numbers [n], on the CPU. Raises `CheckpointError`."""
        width = self.shape[1] * self.dtype.itemsize
        result = torch.empty((rows.numel(), self.shape[1]), dtype=self.dtype)
        view = result.view(torch.uint8).numpy()
        try:
            with self.path.open("rb", buffering=0) as file:
                self._check()
                for index, row in enumerate(rows.tolist()):
                    file.seek(self.begin + row * width)
                    if file.readinto(memoryview(view[index])) != width:
                        raise CheckpointError(self._complaint("has become shorter"))
        except OSError as error:
            raise CheckpointError(self._complaint(f"cannot be read any more ({error.strerror})")) from error
        return result

    def bring_to_cache(self) -> None:
        """Have the system hold the table's pages, which nothing else reads while a model loads: so that no later prompt
        waits for the disk, as long as there is memory to spare. Raises `CheckpointError`."""
        room, left = bytearray(CACHED_AT_ONCE), self.shape[0] * self.shape[1] * self.dtype.itemsize
        try:
            with self.path.open("rb", buffering=0) as file:
                file.seek(self.begin)
                while left > 0 and (count := file.readinto(memoryview(room)[: min(left, len(room))])):
                    left -= count
        except OSError as error:
            raise CheckpointError(self._complaint(f"cannot be read any more ({error.strerror})")) from error

    def read_all(self) -> Tensor:
        """The whole table."""
        return self.read(torch.arange(self.shape[0]))

    def _check(self) -> None:
        stat = self.path.stat()
        if (stat.st_size, stat.st_mtime_ns) != (self.size_bytes, self.mtime_ns):
            raise CheckpointError(self._complaint("has changed since it was loaded"))

    def _complaint(self, what: str) -> str:
        return (
            f"{self.path.name} {what}, and the vocabulary of its text model is read from there while fp8 is on. "
            "Put the file back, or load the checkpoint again."
        )


def look_up_in_file(layer: nn.Embedding, table: RowTable, compute_dtype: torch.dtype, device: torch.device) -> None:
    """Make `layer` read its rows from `table`, giving them out in `compute_dtype` on `device`.

    Its parameter stays as an empty shell on the meta device; reading `layer.weight`, or its state dict, gives the
    whole table.
    """
    layer.__dict__[STATE] = (table, compute_dtype, device)
    layer._parameters["weight"] = nn.Parameter(torch.empty(table.shape, device="meta"), requires_grad=False)
    layer.__class__ = _FileEmbedding


class _FileEmbedding(nn.Embedding):
    """An embedding without weights of its own. Made by `look_up_in_file` alone."""

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        table, dtype, device = self.__dict__[STATE]
        return table.read_all().to(device, dtype)  # type: ignore[no-any-return]

    def forward(self, input: Tensor) -> Tensor:
        table, dtype, device = self.__dict__[STATE]
        numbers, positions = torch.unique(input.cpu(), return_inverse=True)
        rows = table.read(numbers).to(device, dtype)
        return F.embedding(positions.to(device), rows)

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        destination[f"{prefix}weight"] = self.weight


def move_row_table(layer: nn.Module, device: torch.device, dtype: torch.dtype | None) -> Callable[[], None] | None:
    """Have a layer that looks up in a file give its rows out on `device` (in `dtype`); returns the way back, or None
    for any other layer."""
    known = layer.__dict__.get(STATE)
    if known is None:
        return None
    table, old_dtype, _ = known
    layer.__dict__[STATE] = (table, dtype or old_dtype, device)

    def back() -> None:
        layer.__dict__[STATE] = known

    return back
