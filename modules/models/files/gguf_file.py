"""Reading a `.gguf` file tensor by tensor, with every way the file can be wrong told apart.

See `header` for the format. Tensors of block types are given as float32; `TensorEntry` says where their bytes are and
of which type, so that they can be kept as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.memory.formats.gguf_blocks import GGUF_BLOCKS
from modules.models.files.header import GGUF_TYPES, REMEDY, GgufHeader, GgufReader, GgufTensor
from modules.models.files.tensor_file import DTYPES, Closing, TensorEntry, open_binary, read_exactly, refuse_overlaps

PLAIN_TYPES: Mapping[int, torch.dtype] = {kind: DTYPES[name] for kind, name in GGUF_TYPES.items() if name in DTYPES}
BLOCK_TYPES: Mapping[int, str] = {
    kind: f"gguf_{name.lower()}" for kind, name in GGUF_TYPES.items() if f"gguf_{name.lower()}" in GGUF_BLOCKS
}


class GgufFile(Closing):
    """An open `.gguf` file, a `TensorSource`. Raises `CheckpointError` for a file that is not what it says, and for
    types of tensors that are not decoded, by name."""

    has_offsets = False

    def __init__(self, path: Path) -> None:
        self.path, self._file = path, open_binary(path)
        try:
            size = path.stat().st_size
            reader = GgufReader(self._file.read, size, path.name)
            header = reader.read()
            self.entries, self.metadata = _entries(path, reader, header, size), header.metadata
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


def _entries(path: Path, reader: GgufReader, header: GgufHeader, size: int) -> dict[str, TensorEntry]:
    entries: dict[str, TensorEntry] = {}
    for tensor in header.tensors:
        if tensor.name in entries:
            raise reader.wrong(f"the tensor {tensor.name!r} is in it twice")
        entries[tensor.name] = _entry(path, reader, header, tensor, size)
    if not entries:
        raise reader.wrong("it holds no tensors")
    refuse_overlaps(path, entries)
    return entries


def _entry(path: Path, reader: GgufReader, header: GgufHeader, tensor: GgufTensor, file_size: int) -> TensorEntry:
    name, kind, shape, offset = tensor
    begin, original = header.data_begin + offset, header.shapes.get(name)
    count = math.prod(shape)
    block = GGUF_BLOCKS[BLOCK_TYPES[kind]] if kind in BLOCK_TYPES else None
    if block is not None:
        if count % block.block or not shape or shape[-1] % block.block:
            raise reader.wrong(f"{name!r} of shape {list(shape)} is not made of whole blocks of {block.block}")
        size, dtype = count // block.block * block.block_bytes, torch.float32
    elif kind in PLAIN_TYPES:
        size, dtype = count * PLAIN_TYPES[kind].itemsize, PLAIN_TYPES[kind]
    else:
        label = GGUF_TYPES.get(kind, f"number {kind}")
        known = ", ".join(name.removeprefix("gguf_").upper() for name in BLOCK_TYPES.values())
        raise CheckpointError(
            f"{path.name}: {name!r} is of GGUF type {label}, which is not decoded. Known are F32, F16, BF16, "
            f"{known}: use a file in one of these, Q4_K or Q8_0 for example."
        )
    if begin + size > file_size:
        raise CheckpointError(
            f"{path.name}: the header places {name!r} at bytes {begin} to {begin + size}, but the file has "
            f"{file_size}. It is truncated or damaged. {REMEDY}"
        )
    if original is not None:
        if math.prod(original) != count:
            raise reader.wrong(f"{name!r} is said to be of shape {list(original)}, and has {count} numbers")
        shape = original
    packed = None if block is None else block.name
    return TensorEntry(dtype, shape, begin, begin + size, packed=packed)


def read_packed(path: Path, entry: TensorEntry, name: str) -> Tensor:
    """The bytes of a tensor of a block type as they are in its file, uint8 [rows, bytes of a row]."""
    data = torch.empty((entry.shape[0], entry.size_bytes // entry.shape[0]), dtype=torch.uint8)
    with open_binary(entry.file or path) as file:
        file.seek(entry.begin)
        read_exactly(file, path, data, name)
    return data
