"""Reading a `.safetensors` file tensor by tensor, with every way the file can be wrong told apart.

See `header` for the format. Each read goes straight from the file into the tensor that is returned: nothing stays
mapped, so the resident memory of a load is what was placed plus the tensor at hand, and a file that shrinks under us is
an error and not a crash.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Self, TypeGuard

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.files.header import LENGTH_BYTES, MAX_SIDES, REMEDY, parsed, read_raw

DTYPES: dict[str, torch.dtype] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of the header; `begin` and `end` are byte offsets from the start of the file, which is `file` where a
    source has several. What has a shape and no bytes lies in no file.

    `packed`: the bytes are rows of blocks of this format (`modules.memory.formats.blocks`), and `dtype` is that of the
    weights decoded. `coded`: they are given decoded from this format. `rotated`: where the bytes and the scales of a
    weight in rotated int8 are, which may stay as it is. `has_offset` is False for a tensor of a source of several files
    whose own file does not say where its bytes are."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int
    file: Path | None = None
    packed: str | None = None
    coded: str | None = None
    rotated: tuple["TensorEntry", "TensorEntry"] | None = None
    has_offset: bool = True

    @property
    def size_bytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.end - self.begin


class Closing(ABC):
    """A context manager that closes itself."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


class TensorFile(Closing):
    """An open `.safetensors` file. A context manager; raises `CheckpointError` for a file that is not what it says."""

    has_offsets = True  # `TensorEntry.begin` is where the bytes lie

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, open_binary(path)
        try:
            size = path.stat().st_size
            self.entries, self.metadata = parse_header(path, read_raw(self._file.read, size, path.name), size)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, on the CPU, in memory of its own or in `into` (of its shape and dtype)."""
        return self.read_entry(self.entries[name], name, into)

    def read_entry(self, entry: TensorEntry, name: str, into: Tensor | None = None) -> Tensor:
        """The bytes of `entry` as a tensor, see `read`; `name` is for the error."""
        tensor = torch.empty(entry.shape, dtype=entry.dtype) if into is None else into
        if entry.size_bytes:
            self._file.seek(entry.begin)
            read_exactly(self._file, self.path, tensor, name)
        return tensor


def open_binary(path: Path) -> BufferedReader:
    """The open file. Raises `CheckpointError` where it cannot be opened."""
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(
            f"{path.name}: cannot be opened ({error.strerror}). Check that it is there and readable."
        ) from error


def read_exactly(file: BufferedReader, path: Path, target: Tensor, name: str) -> None:
    """The next bytes of a file into all of `target`, contiguous and on the CPU; `name` is for the error."""
    buffer = target.reshape(-1).view(torch.uint8).numpy()
    if file.readinto(memoryview(buffer)) != buffer.nbytes:  # type: ignore[arg-type]
        raise CheckpointError(f"{path.name}: the file ends inside of the tensor {name!r}. {REMEDY}")


def refuse_overlaps(path: Path, entries: Mapping[str, TensorEntry]) -> None:
    """Overlapping tensors let a small file claim gigabytes; no writer makes them. Raises `CheckpointError`."""
    last, end = "", 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].begin, item[1].end)):
        if entry.size_bytes and entry.begin < end:
            raise CheckpointError(f"{path.name}: the tensors {last!r} and {name!r} overlap. {REMEDY}")
        last, end = name, max(end, entry.end)


def parse_header(path: Path, raw: bytes, size: int) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """The tensors and the metadata of a file of `size` bytes by its header's JSON; `path` is for errors. Raises
    `CheckpointError`."""
    header, metadata = parsed(raw, path.name)
    data_begin = LENGTH_BYTES + len(raw)
    entries = {name: _entry(path, name, value, data_begin, size) for name, value in header.items()}
    if not entries:
        raise CheckpointError(f"{path.name}: holds no tensors. {REMEDY}")
    refuse_overlaps(path, entries)
    return entries, metadata


def _entry(path: Path, name: str, value: object, data_begin: int, file_size: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise CheckpointError(f"{path.name}: the header's entry for {name!r} is not a table. {REMEDY}")
    dtype_name, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    dtype = DTYPES.get(str(dtype_name))
    if dtype is None:
        raise CheckpointError(
            f"{path.name}: {name!r} has the unknown dtype {dtype_name!r:.60}. Known: {', '.join(DTYPES)}."
        )
    if not _are_counts(shape) or not _are_counts(offsets) or len(offsets) != 2:
        raise CheckpointError(f"{path.name}: {name!r} has no usable shape or offsets in the header. {REMEDY}")
    begin, end = data_begin + offsets[0], data_begin + offsets[1]
    needed = math.prod(shape) * dtype.itemsize
    if end > file_size or end - begin != needed:
        raise CheckpointError(
            f"{path.name}: the header places {name!r} at bytes {begin} to {end}, but its shape {str(shape)[:60]} needs "
            f"{str(needed)[:40]} bytes and the file has {file_size}. It is truncated or damaged. {REMEDY}"
        )
    return TensorEntry(dtype, tuple(shape), begin, end)


def _are_counts(value: object) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= MAX_SIDES
        and all(isinstance(item, int) and not isinstance(item, bool) and item >= 0 for item in value)
    )
