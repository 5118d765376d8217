"""Reading a `.gguf` file tensor by tensor, with every way the file can be wrong told apart.

Format (ggml's `docs/gguf.md`, versions 2 and 3): "GGUF", version, counts of tensors and of metadata, the metadata, for
each tensor its name, sizes from the fastest on, type and offset, then, aligned, the data. Tensors of block types are
given as float32; `TensorEntry` says where their bytes are and of which type, so that they can be kept as they are.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.gguf_blocks import GGUF_BLOCKS
from modules.models.files.tensor_file import REMEDY, Closing, TensorEntry, open_binary, read_exactly, refuse_overlaps

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_HEADER_BYTES = 200_000_000
MAX_DIMENSIONS = 6
MAX_NAME_BYTES = 1 << 12
MAX_KEPT_BYTES = 1 << 22  # of a text in the metadata: longer ones are templates and licences
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 20
ALIGNMENT = "general.alignment"
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
"""Before a tensor's name: the shape of one whose numbers were put into rows of 256."""

NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, ARRAY = 8, 9
"""Types of metadata."""
PLAIN_TYPES: Mapping[int, torch.dtype] = {
    0: torch.float32,
    1: torch.float16,
    24: torch.int8,
    25: torch.int16,
    26: torch.int32,
    27: torch.int64,
    28: torch.float64,
    30: torch.bfloat16,
}
BLOCK_TYPES: Mapping[int, str] = {
    2: "gguf_q4_0",
    3: "gguf_q4_1",
    6: "gguf_q5_0",
    7: "gguf_q5_1",
    8: "gguf_q8_0",
    10: "gguf_q2_k",
    11: "gguf_q3_k",
    12: "gguf_q4_k",
    13: "gguf_q5_k",
    14: "gguf_q6_k",
    20: "gguf_iq4_nl",
    23: "gguf_iq4_xs",
}
OTHER_TYPES: Mapping[int, str] = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    21: "IQ3_S",
    22: "IQ2_S",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
}
"""Types that exist and are not decoded."""


class GgufFile(Closing):
    """An open `.gguf` file, a `TensorSource`. Raises `CheckpointError` for a file that is not what it says, and for
    types of tensors that are not decoded, by name."""

    has_offsets = False

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, open_binary(path)
        try:
            self.entries, self.metadata = _Header(path, self._file.read, path.stat().st_size).read()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor on the CPU, decoded where it is of a block type, in memory of its own or in `into`."""
        entry = self.entries[name]
        tensor = torch.empty(entry.shape, dtype=entry.dtype) if into is None else into
        if not tensor.numel():
            return tensor
        self._file.seek(entry.begin)
        if entry.packed is None:
            read_exactly(self._file, self.path, tensor, name)
            return tensor
        data = torch.empty(entry.size_bytes, dtype=torch.uint8)
        read_exactly(self._file, self.path, data, name)
        return GGUF_BLOCKS[entry.packed].decode(data, None, tensor.view(-1)).view(entry.shape)


class _Header:
    """Reads what stands before the data. `read_bytes` reads on in the file, which has `size` bytes. Of the lists in the
    metadata those in `wanted` are kept in `lists`."""

    def __init__(self, path: Path, read_bytes: object, size: int, wanted: Collection[str] = ()) -> None:
        self._path, self._size = path, size
        self._wanted = wanted
        self.lists: dict[str, list[object]] = {}
        assert callable(read_bytes)
        self._read_bytes = read_bytes
        self._at = 0

    def read(self) -> tuple[dict[str, TensorEntry], dict[str, str]]:
        """Tensors, and of the metadata the texts and numbers (as text)."""
        if self._size < 24 or self._take(4) != MAGIC:
            raise self._wrong("it does not begin as a GGUF file does")
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._wrong(
                f"it is of version {version}, and {VERSIONS[0]} and {VERSIONS[1]} are known (big-endian files are not)"
            )
        tensors, pairs = self._number("<Q"), self._number("<Q")
        if tensors > self._size // 24 or pairs > self._size // 13:
            raise self._wrong(f"its header counts {tensors} tensors and {pairs} metadata, which it has no room for")
        metadata: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        for _ in range(pairs):
            key = self._text(MAX_NAME_BYTES)
            kind = self._number("<I")
            if kind == ARRAY and key in self._wanted:
                self.lists[key] = self._list()
                continue
            value = self._value(kind)
            if key.startswith(ORIGINAL_SHAPE):
                shapes[key.removeprefix(ORIGINAL_SHAPE)] = self._shape(key, value)
            elif isinstance(value, str):
                metadata[key] = value
        found = [self._tensor() for _ in range(tensors)]
        alignment = int(metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)) if _is_count(metadata.get(ALIGNMENT, "32")) else 0
        if not 0 < alignment <= MAX_ALIGNMENT:
            raise self._wrong(f"its alignment is {metadata[ALIGNMENT]}")
        begin = -(-self._at // alignment) * alignment
        entries: dict[str, TensorEntry] = {}
        for name, kind, shape, offset in found:
            if name in entries:
                raise self._wrong(f"the tensor {name!r} is in it twice")
            entries[name] = self._entry(name, kind, shape, begin + offset, shapes.get(name))
        if not entries:
            raise self._wrong("it holds no tensors")
        refuse_overlaps(self._path, entries)
        return entries, metadata

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        name = self._text(MAX_NAME_BYTES)
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise self._wrong(f"{name!r} has {dimensions} dimensions")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        return name, self._number("<I"), tuple(reversed(sizes)), self._number("<Q")

    def _entry(
        self, name: str, kind: int, shape: tuple[int, ...], begin: int, original: tuple[int, ...] | None
    ) -> TensorEntry:
        count = math.prod(shape)
        block = GGUF_BLOCKS[BLOCK_TYPES[kind]] if kind in BLOCK_TYPES else None
        if block is not None:
            if count % block.block or not shape or shape[-1] % block.block:
                raise self._wrong(f"{name!r} of shape {list(shape)} is not made of whole blocks of {block.block}")
            size, dtype = count // block.block * block.block_bytes, torch.float32
        elif kind in PLAIN_TYPES:
            size, dtype = count * PLAIN_TYPES[kind].itemsize, PLAIN_TYPES[kind]
        else:
            label = OTHER_TYPES.get(kind, f"number {kind}")
            known = ", ".join(name.removeprefix("gguf_").upper() for name in BLOCK_TYPES.values())
            raise CheckpointError(
                f"{self._path.name}: {name!r} is of GGUF type {label}, which is not decoded. Known are F32, F16, BF16, "
                f"{known}: use a file in one of these, Q4_K or Q8_0 for example."
            )
        if begin + size > self._size:
            raise CheckpointError(
                f"{self._path.name}: the header places {name!r} at bytes {begin} to {begin + size}, but the file has "
                f"{self._size}. It is truncated or damaged. {REMEDY}"
            )
        if original is not None:
            if math.prod(original) != count:
                raise self._wrong(f"{name!r} is said to be of shape {list(original)}, and has {count} numbers")
            shape = original
        packed = None if block is None else block.name
        return TensorEntry(dtype, shape, begin, begin + size, packed=packed)

    def _shape(self, key: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_DIMENSIONS:
            raise self._wrong(f"{key} is not a shape")
        if not all(isinstance(side, int) and side > 0 for side in value):
            raise self._wrong(f"{key} is not a shape")
        return tuple(value)

    def _value(self, kind: int) -> str | list[object] | None:
        """A text or number as text; a short list of numbers; None of anything else, which is passed over."""
        if kind == TEXT:
            return self._text(None)
        if kind in NUMBERS:
            return str(self._number(NUMBERS[kind]))
        if kind != ARRAY:
            raise self._wrong(f"its metadata has a value of the unknown type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner in NUMBERS:
            layout = NUMBERS[inner]
            if count > MAX_DIMENSIONS:
                self._skip(count * struct.calcsize(layout))
                return None
            return [self._number(layout) for _ in range(count)]
        if inner != TEXT:
            raise self._wrong(f"its metadata has a list of the unknown type {inner}")
        if count > self._size // 8:
            raise self._wrong(f"its metadata has a list of {count} texts, which it has no room for")
        for _ in range(count):
            self._skip(self._number("<Q"))
        return None

    def _list(self) -> list[object]:
        """A list of texts or numbers as a whole."""
        inner, count = self._number("<I"), self._number("<Q")
        if inner != TEXT and inner not in NUMBERS:
            raise self._wrong(f"its metadata has a list of the unknown type {inner}")
        least = 8 if inner == TEXT else struct.calcsize(NUMBERS[inner])
        if count > self._size // least:
            raise self._wrong(f"its metadata has a list of {count} values, which it has no room for")
        if inner == TEXT:
            return [self._text(None) for _ in range(count)]
        letter = NUMBERS[inner][1:]
        return list(struct.unpack(f"<{count}{letter}", self._take(count * least)))

    def _text(self, most: int | None) -> str:
        length = self._number("<Q")
        if most is not None and length > most:
            raise self._wrong(f"a name in its header is {length} bytes long")
        if length > MAX_KEPT_BYTES:
            self._skip(length)
            return ""
        return self._take(length).decode("utf-8", "replace")

    def _number(self, layout: str) -> int:
        (value,) = struct.unpack(layout, self._take(struct.calcsize(layout)))
        return value  # type: ignore[no-any-return] # floats are only made into text

    def _skip(self, count: int) -> None:
        while count:
            step = min(count, 1 << 20)
            self._take(step)
            count -= step

    def _take(self, count: int) -> bytes:
        if self._at + count > min(self._size, MAX_HEADER_BYTES):
            raise self._wrong(f"its header does not end within the file, or within {MAX_HEADER_BYTES} bytes")
        self._at += count
        data = self._read_bytes(count)
        assert isinstance(data, bytes)
        if len(data) != count:
            raise self._wrong("it ends inside of its header")
        return data

    def _wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._path.name}: {what}, so it is no GGUF file that can be read. {REMEDY}")


@dataclass(frozen=True)
class GgufHeader:
    """What stands before the data: the tensors, the texts and numbers (as text) of the metadata, and lists of it."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    lists: Mapping[str, list[object]]


def read_header(path: Path, lists: Collection[str]) -> GgufHeader:
    """The header of a file with those of these `lists` that it has; tensors are not read. Raises `CheckpointError` as
    `GgufFile` does."""
    with open_binary(path) as file:
        header = _Header(path, file.read, path.stat().st_size, lists)
        entries, metadata = header.read()
        return GgufHeader(entries, metadata, header.lists)


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10


def read_packed(path: Path, entry: TensorEntry, name: str) -> Tensor:
    """The bytes of a tensor of a block type as they are in its file, uint8 [rows, bytes of a row]."""
    data = torch.empty((entry.shape[0], entry.size_bytes // entry.shape[0]), dtype=torch.uint8)
    with open_binary(entry.file or path) as file:
        file.seek(entry.begin)
        read_exactly(file, path, data, name)
    return data
