"""Headers of model files: the tensors' names, shapes and types, and the metadata. Imports no torch.

safetensors: 8 bytes little-endian header length, a JSON header of names to {dtype, shape, data_offsets}, then the data.
GGUF (ggml's `docs/gguf.md`, versions 2 and 3): "GGUF", version, counts of tensors and of metadata, the metadata, for
each tensor its name, sizes from the fastest on, type and offset, then, aligned, the data.
The package `gguf` is no substitute: its reader needs the whole file, of which a server gives the beginning, takes 14 to
34 times as long (5.4 s for an encoder with its vocabulary), and ends in an `IndexError` at a damaged one.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from modules.errors import CheckpointError
from modules.system.bounded import read_json, read_json_at

REMEDY = "Download or copy the file again."
LENGTH_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the limit of the library of safetensors
FRONT_BYTES = 1 << 16
METADATA = "__metadata__"
METADATA_FIRST = re.compile(rf'\s*{{\s*"{METADATA}"\s*:\s*')
DECLARATIONS_KEY = "_quantization_metadata"
"""In the metadata: what ComfyUI declares of layers' formats."""
PACKED_KEY = "featherweight_packed"
"""In the metadata of files that we write: {name: [block format, shape]} of weights that are there as their blocks."""
NUNCHAKU, GPTQ = (".qweight", ".wscales"), (".qweight", ".qzeros")
"""Ends of names in files whose codes are not read."""
PICKLED = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]")
"""How a pickle begins, in an archive as PyTorch writes it or alone."""
ONNX = re.compile(rb"\x08[\x03-\x10]\x12")
"""How an ONNX file begins: with its version and who made it."""

GGUF_MAGIC = b"GGUF"
ARCHITECTURE, ALIGNMENT = "general.architecture", "general.alignment"
VERSIONS = (2, 3)
MAX_GGUF_HEADER_BYTES = 200_000_000
MAX_DIMENSIONS = 6
MAX_SIDES, MAX_NAME_CHARS = 64, 1000  # of a tensor in a safetensors file
MAX_NAME_BYTES = 1 << 12
MAX_KEPT_BYTES = 1 << 22  # of a text in the metadata: longer ones are templates and licences
DEFAULT_ALIGNMENT, MAX_ALIGNMENT = 32, 1 << 20
ORIGINAL_SHAPE = "comfy.gguf.orig_shape."
"""Before a tensor's name: the shape of one whose values were put into rows of 256."""
NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, ARRAY = 8, 9
"""Types of metadata in GGUF files."""
VOCABULARY = "tokenizer."
"""Before the names of what is long in the metadata."""
GGUF_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K"},
    **{12: "Q4_K", 13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S"},
    **{20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64"},
    **{29: "IQ1_M", 30: "BF16", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4"},
}
"""Types of tensors in GGUF files."""

Read = Callable[[int], bytes]
"""Reads the next bytes of a file; fewer at its end."""


class Stored(NamedTuple):
    """The shape and the type of a tensor, as the format of its file calls it."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class Header:
    """The header of a file: its format ("safetensors", "gguf", "pickle", "onnx", "" for others), the tensors, the
    metadata, and of a safetensors file the JSON. Of GGUF files with a vocabulary only what is before it is read.
    `is_whole`: whether all tensors are there."""

    format: str
    tensors: Mapping[str, Stored] = field(default_factory=dict)
    metadata: Mapping[str, str] = field(default_factory=dict)
    raw: bytes = field(repr=False, default=b"")
    is_whole: bool = True

    @property
    def architecture(self) -> str:
        """The architecture that a GGUF file names; "" for other formats."""
        return self.metadata.get(ARCHITECTURE, "") if self.format == "gguf" else ""

    @property
    def parameters(self) -> int:
        """The number of weights in all tensors."""
        return sum(math.prod(shape) for shape, _ in self.tensors.values())

    @property
    def types(self) -> dict[str, int]:
        """The numbers of weights by their stored type."""
        found: dict[str, int] = {}
        for shape, dtype in self.tensors.values():
            found[dtype] = found.get(dtype, 0) + math.prod(shape)
        return found


def header_length(start: bytes) -> int:
    """Return the length of a safetensors header by the first bytes of its file."""
    return int.from_bytes(start[:LENGTH_BYTES], "little")


def read_raw(read: Read, size: int, label: str) -> bytes:
    """Read the JSON of a safetensors file of `size` bytes; `label` names it in errors. Raises `CheckpointError`."""
    if size < LENGTH_BYTES:
        raise CheckpointError(f"{label}: only {size} bytes long, so it is not a safetensors file. {REMEDY}")
    length = header_length(read(LENGTH_BYTES))
    if length > MAX_HEADER_BYTES or LENGTH_BYTES + length > size:
        raise CheckpointError(
            f"{label}: says its header is {length} bytes long, but the file has {size} and a header may have "
            f"{MAX_HEADER_BYTES}. It is truncated, or not a safetensors file. {REMEDY}"
        )
    return read(length)


def parsed(raw: bytes, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the tensors' entries and the metadata in the JSON of a header. Raises `CheckpointError`."""
    try:
        header = read_json(raw)
    except ValueError as error:
        raise CheckpointError(f"{label}: its header is not JSON; not a safetensors file. {REMEDY}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{label}: its header is not a table of tensors. {REMEDY}")
    metadata = header.pop(METADATA, None) or {}
    if not isinstance(metadata, dict):
        raise CheckpointError(f"{label}: the metadata in its header is not a table. {REMEDY}")
    if any(len(name) > MAX_NAME_CHARS for name in header):
        raise CheckpointError(f"{label}: a name in its header has more than {MAX_NAME_CHARS} characters. {REMEDY}")
    return header, {str(key): str(value) for key, value in metadata.items()}


def as_header(raw: bytes, label: str) -> Header:
    """Parse the JSON of a safetensors file whose data nobody reads. Raises `CheckpointError`."""
    entries, metadata = parsed(raw, label)
    try:
        tensors = {name: Stored(_sides(entry["shape"]), str(entry["dtype"])[:60]) for name, entry in entries.items()}
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{label}: its header cannot be read ({error!s:.200}). {REMEDY}") from error
    return Header("safetensors", tensors, metadata, raw)


def _sides(shape: object) -> tuple[int, ...]:
    if not isinstance(shape, list) or len(shape) > MAX_SIDES:
        raise ValueError(f"a shape is {str(shape)[:60]}")
    return tuple(map(int, shape))


def format_of(start: bytes) -> str:
    """Return the format of a file by its first bytes, nine at least where it has so many; what is neither GGUF, ONNX
    nor a pickle may be safetensors. The length of a header can begin as a pickle or ONNX does, and "{" follows it."""
    if start.startswith(GGUF_MAGIC):
        return "gguf"
    if start[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{":
        return "safetensors"
    return "pickle" if PICKLED.match(start) else "onnx" if ONNX.match(start) else "safetensors"


def read_metadata(path: Path) -> dict[str, str]:
    """Read the text table in a safetensors header; empty for other files and damaged ones."""
    if path.suffix.lower() != ".safetensors":
        return {}
    try:
        with path.open("rb") as file:
            length = header_length(file.read(LENGTH_BYTES))
            if length > path.stat().st_size:
                return {}
            head = file.read(min(length, FRONT_BYTES))
            found = _metadata_in_front(head)
            if found is None:
                found = read_json(head + file.read(length - len(head))).get(METADATA, {})
    except (OSError, ValueError, AttributeError):
        return {}
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}


def _metadata_in_front(head: bytes) -> Any:
    """Return the table if it comes first and whole, as most writers have it, so that the long list of tensors is not
    parsed; None otherwise."""
    text = head.decode("utf-8", "ignore")
    start = METADATA_FIRST.match(text)
    if start is None:
        return None
    try:
        return read_json_at(text, start.end())[0]
    except ValueError:  # cut off
        return None


class GgufTensor(NamedTuple):
    """A tensor as the header of a GGUF file has it; `offset` counts from the beginning of the data."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file: tensors, the texts and numbers (as text) of the metadata, the wanted lists of it, the
    shapes that tensors had before they were put into rows, and where the data begin."""

    tensors: tuple[GgufTensor, ...]
    metadata: Mapping[str, str]
    lists: Mapping[str, list[object]]
    shapes: Mapping[str, tuple[int, ...]]
    data_begin: int


class GgufReader:
    """A reader of what stands before the data of a GGUF file of `size` bytes; `label` names it in errors. Of the lists
    in the metadata those in `wanted` are kept. Raises `CheckpointError`."""

    def __init__(self, read: Read, size: int, label: str, wanted: Collection[str] = ()) -> None:
        self._read_bytes, self._size, self._label, self._wanted = read, size, label, wanted
        self._at = self._count = 0

    def head(self) -> Header:
        """Return the texts and numbers of the metadata before a vocabulary, and the tensors of a file without one; what
        is there where the file, or the beginning of it, is cut off."""
        metadata: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        try:
            self._collect(metadata, shapes, {}, VOCABULARY)
            found = [self._tensor() for _ in range(self._count)]
        except CheckpointError:
            return Header("gguf", metadata=metadata, is_whole=False)
        tensors = {one.name: Stored(shapes.get(one.name, one.shape), GGUF_TYPES.get(one.type, "")) for one in found}
        return Header("gguf", tensors, metadata)

    def read(self) -> GgufHeader:
        """Read all of the header."""
        metadata: dict[str, str] = {}
        shapes: dict[str, tuple[int, ...]] = {}
        lists: dict[str, list[object]] = {}
        self._collect(metadata, shapes, lists)
        tensors = tuple(self._tensor() for _ in range(self._count))
        alignment = int(metadata.get(ALIGNMENT, DEFAULT_ALIGNMENT)) if _is_count(metadata.get(ALIGNMENT, "32")) else 0
        if not 0 < alignment <= MAX_ALIGNMENT:
            raise self.wrong(f"its alignment is {metadata[ALIGNMENT]}")
        return GgufHeader(tensors, metadata, lists, shapes, -(-self._at // alignment) * alignment)

    def _collect(
        self,
        metadata: dict[str, str],
        shapes: dict[str, tuple[int, ...]],
        lists: dict[str, list[object]],
        until: str | None = None,
    ) -> None:
        """Read the metadata into these tables; raises where a key begins with `until`."""
        for key, value in self._pairs(until):
            if key.startswith(ORIGINAL_SHAPE):
                shapes[key.removeprefix(ORIGINAL_SHAPE)] = self._shape(key, value)
            elif isinstance(value, str):
                metadata[key] = value
            elif isinstance(value, list) and key in self._wanted:
                lists[key] = value

    def _pairs(self, until: str | None) -> Iterator[tuple[str, object]]:
        """Yield the metadata, see `_value`; whole lists of the wanted."""
        if self._size < 24 or self._take(4) != GGUF_MAGIC:
            raise self.wrong("it does not begin as a GGUF file does")
        version = self._number("<I")
        if version not in VERSIONS:
            raise self.wrong(
                f"it is of version {version}, and {VERSIONS[0]} and {VERSIONS[1]} are known (big-endian files are not)"
            )
        self._count, pairs = self._number("<Q"), self._number("<Q")
        if self._count > self._size // 24 or pairs > self._size // 13:
            raise self.wrong(f"its header counts {self._count} tensors and {pairs} metadata, which it has no room for")
        for _ in range(pairs):
            key = self._text(MAX_NAME_BYTES)
            if until is not None and key.startswith(until):
                raise self.wrong("a vocabulary follows")
            kind = self._number("<I")
            yield key, self._list() if kind == ARRAY and key in self._wanted else self._value(kind)

    def _tensor(self) -> GgufTensor:
        name = self._text(MAX_NAME_BYTES)
        dimensions = self._number("<I")
        if dimensions > MAX_DIMENSIONS:
            raise self.wrong(f"{name!r} has {dimensions} dimensions")
        sizes = [self._number("<Q") for _ in range(dimensions)]
        return GgufTensor(name, self._number("<I"), tuple(reversed(sizes)), self._number("<Q"))

    def _shape(self, key: str, value: object) -> tuple[int, ...]:
        if not isinstance(value, list) or not 0 < len(value) <= MAX_DIMENSIONS:
            raise self.wrong(f"{key} is not a shape")
        if not all(isinstance(side, int) and side > 0 for side in value):
            raise self.wrong(f"{key} is not a shape")
        return tuple(value)

    def _value(self, kind: int) -> str | list[object] | None:
        """A text or number as text; a short list of numbers; None of anything else, which is passed over."""
        if kind == TEXT:
            return self._text(None)
        if kind in NUMBERS:
            return str(self._number(NUMBERS[kind]))
        if kind != ARRAY:
            raise self.wrong(f"its metadata has a value of the unknown type {kind}")
        inner, count = self._number("<I"), self._number("<Q")
        if inner in NUMBERS:
            layout = NUMBERS[inner]
            if count > MAX_DIMENSIONS:
                self._skip(count * struct.calcsize(layout))
                return None
            return [self._number(layout) for _ in range(count)]
        if inner != TEXT:
            raise self.wrong(f"its metadata has a list of the unknown type {inner}")
        if count > self._size // 8:
            raise self.wrong(f"its metadata has a list of {count} texts, which it has no room for")
        for _ in range(count):
            self._skip(self._number("<Q"))
        return None

    def _list(self) -> list[object]:
        """A list of texts or numbers as a whole."""
        inner, count = self._number("<I"), self._number("<Q")
        if inner != TEXT and inner not in NUMBERS:
            raise self.wrong(f"its metadata has a list of the unknown type {inner}")
        least = 8 if inner == TEXT else struct.calcsize(NUMBERS[inner])
        if count > self._size // least:
            raise self.wrong(f"its metadata has a list of {count} values, which it has no room for")
        if inner == TEXT:
            return [self._text(None) for _ in range(count)]
        letter = NUMBERS[inner][1:]
        return list(struct.unpack(f"<{count}{letter}", self._take(count * least)))

    def _text(self, most: int | None) -> str:
        length = self._number("<Q")
        if most is not None and length > most:
            raise self.wrong(f"a name in its header is {length} bytes long")
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
        if self._at + count > min(self._size, MAX_GGUF_HEADER_BYTES):
            raise self.wrong(f"its header does not end within the file, or within {MAX_GGUF_HEADER_BYTES} bytes")
        self._at += count
        data = self._read_bytes(count)
        if len(data) != count:
            raise self.wrong("it ends inside of its header")
        return data

    def wrong(self, what: str) -> CheckpointError:
        """Return the error that says what is wrong with the file."""
        return CheckpointError(f"{self._label}: {what}, so it is no GGUF file that can be read. {REMEDY}")


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 10
