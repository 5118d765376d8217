"""Writing a `.safetensors` file tensor by tensor, atomically, with metadata that may be completed at the end.

The header stands before the data but is only final once all data was seen, so room for it is left and what is not
needed is filled with blanks, as the format allows.
"""

import json
import os
import secrets
import struct
from collections.abc import Mapping
from io import BufferedWriter
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from modules.atomic_files import output_error
from modules.models.reading.tensor_file import DTYPES

DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
ALIGNMENT = 64  # bytes: kernels take the same path for a mapped tensor as for an allocated one


class TensorWriter:
    """A new file of declared tensors; a context manager. Leaving it with an error, or with tensors missing, leaves no
    file and keeps an old one.

    `shapes` declares every tensor, in the order of writing. `metadata_bytes` is the room for the metadata. Raises
    `OutputError` that says what to do when the disk is full or may not be written.
    """

    def __init__(
        self, path: Path, shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata_bytes: int = 1 << 16
    ) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._entries: dict[str, dict[str, object]] = {}
        self._waiting = list(shapes)
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
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        self._file: BufferedWriter | None = None

    def __enter__(self) -> "TensorWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            self._file.write(b" " * (8 + self._header_bytes))
        except OSError as error:
            if self._file is not None:
                self._discard()
            raise output_error(self.path.name, self.path.parent, error) from error
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the next declared tensor."""
        expected = self._waiting[0] if self._waiting else None
        entry = self._entries[name]
        if name != expected or DTYPE_NAMES[tensor.dtype] != entry["dtype"] or list(tensor.shape) != entry["shape"]:
            raise ValueError(f"{name} {tensor.dtype} {list(tensor.shape)} was not declared next ({expected}, {entry})")
        self._waiting.pop(0)
        assert self._file is not None
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            self._file.write(memoryview(data))  # type: ignore[arg-type] # numpy arrays are buffers
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
        header = json.dumps({"__metadata__": self.metadata, **self._entries}).encode()
        if len(header) > self._header_bytes:
            raise ValueError(f"the metadata needs {len(header) - self._header_bytes} bytes more than were reserved")
        self._file.seek(0)
        self._file.write(struct.pack("<Q", self._header_bytes) + header.ljust(self._header_bytes))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        self._temporary.replace(self.path)

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
        self._temporary.unlink(missing_ok=True)
