"""Writing a file of tensors one by one, atomically, with metadata that may be completed at the end: `.safetensors`
here, `.gguf` in `gguf_writer`.

The header stands before the data but is only final once all data was seen, so room for it is left and what is not
needed is filled with blanks, as the formats allow.
"""

import json
import os
import secrets
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping
from io import BufferedWriter
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from modules.models.files.tensor_file import DTYPES
from modules.system.atomic_files import output_error

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 64  # bytes: kernels take the same path for a mapped tensor as for an allocated one
Shapes = Mapping[str, tuple[torch.dtype, tuple[int, ...]]]


def data_of(tensor: Tensor) -> memoryview:
    """A tensor's bytes, in row-major order."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(data)  # type: ignore[arg-type] # numpy arrays are buffers


class DeclaredWriter(ABC):
    """A new file of declared tensors; a context manager. Leaving it with an error, or with tensors missing, leaves no
    file and keeps an old one. Raises `OutputError` that says what to do when the disk is full or may not be written.

    `metadata` is written at the end. Each tensor begins at a multiple of `data_alignment` bytes.
    """

    data_alignment = 1

    def __init__(self, path: Path, shapes: Shapes) -> None:
        """`shapes` declares every tensor, in the order of writing."""
        self.path = path
        self.metadata: dict[str, str] = {}
        self._declared = dict(shapes)
        self._waiting = list(shapes)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        self._file: BufferedWriter | None = None

    @abstractmethod
    def _beginning(self) -> bytes:
        """Return what comes before the data, with room for what is known at the end."""

    @abstractmethod
    def _completed(self) -> tuple[int, bytes]:
        """Return what was left open in the beginning, and its byte. Raises `ValueError` if there is not enough room."""

    def __enter__(self) -> Self:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            self._file.write(self._beginning())
            self._pad()
        except OSError as error:
            if self._file is not None:
                self._discard()
            raise output_error(self.path.name, self.path.parent, error) from error
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the next declared tensor."""
        expected = self._waiting[0] if self._waiting else None
        given = (tensor.dtype, tuple(tensor.shape))
        if name != expected or self._declared[name] != given:
            raise ValueError(f"{name} {tensor.dtype} {list(tensor.shape)} was not declared next ({expected})")
        self._waiting.pop(0)
        assert self._file is not None
        try:
            self._file.write(data_of(tensor))
            self._pad()
        except OSError as error:
            raise output_error(self.path.name, self.path.parent, error) from error

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error_type is not None:
            self._discard()
            return
        if self._waiting:
            self._discard()
            raise ValueError(f"{len(self._waiting)} declared tensors were not written: {self._waiting[:3]}")
        try:
            self._finish()
        except OSError as problem:
            self._discard()
            raise output_error(self.path.name, self.path.parent, problem) from problem
        except BaseException:
            self._discard()
            raise

    def _finish(self) -> None:
        assert self._file is not None
        at, data = self._completed()
        self._file.seek(at)
        self._file.write(data)
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)

    def _pad(self) -> None:
        assert self._file is not None
        if self.data_alignment > 1:
            self._file.write(bytes(-self._file.tell() % self.data_alignment))

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
        self._temporary.unlink(missing_ok=True)


class TensorWriter(DeclaredWriter):
    """A new `.safetensors` file. `metadata_bytes` is the room for the metadata."""

    def __init__(self, path: Path, shapes: Shapes, metadata_bytes: int = 1 << 16) -> None:
        super().__init__(path, shapes)
        self._entries: dict[str, dict[str, object]] = {}
        offset = 0
        for name, (dtype, shape) in shapes.items():
            size = torch.Size(shape).numel() * dtype.itemsize
            self._entries[name] = {
                "dtype": DTYPE_NAMES[dtype],
                "shape": list(shape),
                "data_offsets": [offset, offset + size],
            }
            offset += size
        room = len(json.dumps(self._entries)) + metadata_bytes
        self._header_bytes = -(-(room + 8) // ALIGNMENT) * ALIGNMENT - 8

    def _beginning(self) -> bytes:
        return b" " * (8 + self._header_bytes)

    def _completed(self) -> tuple[int, bytes]:
        header = json.dumps({"__metadata__": self.metadata, **self._entries}).encode()
        if len(header) > self._header_bytes:
            raise ValueError(f"the metadata needs {len(header) - self._header_bytes} bytes more than were reserved")
        return 0, struct.pack("<Q", self._header_bytes) + header.ljust(self._header_bytes)
