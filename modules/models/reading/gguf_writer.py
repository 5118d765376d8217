"""Writing a `.gguf` file tensor by tensor, atomically, as stable-diffusion.cpp and ggml's own package read it."""

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
from modules.errors import InvalidValueError
from modules.models.reading.gguf_file import BLOCK_TYPES, DEFAULT_ALIGNMENT, MAGIC, PLAIN_TYPES, TEXT

VERSION = 3
MAX_NAME_BYTES = 127  # of a tensor in stable-diffusion.cpp
RECEIPT = "featherweight.receipt"
WHOLE = 4  # type of metadata: a number of 32 bits
KINDS: dict[str | torch.dtype, int] = {}
KINDS.update((name, kind) for kind, name in BLOCK_TYPES.items())
KINDS.update((dtype, kind) for kind, dtype in PLAIN_TYPES.items())
FILE_TYPES = {"gguf_q8_0": 7, "gguf_q4_0": 2, "gguf_q4_1": 3, "gguf_q5_0": 8, "gguf_q5_1": 9}
"""llama.cpp's numbers for what most tensors of a file are in; 1 is fp16."""


class GgufWriter:
    """A new file of declared tensors; a context manager with the ways of `TensorWriter`. `packed`: format and shape of
    those that are declared as their bytes. `metadata` becomes one text, for which `metadata_bytes` are left."""

    def __init__(
        self,
        path: Path,
        shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
        metadata_bytes: int = 1 << 16,
        packed: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
    ) -> None:
        self.path = path
        self.metadata: dict[str, str] = {}
        self._waiting = list(shapes)
        self._declared = dict(shapes)
        self._room = metadata_bytes
        packed = packed or {}
        kinds = [name for name, _ in packed.values()]
        most = max(set(kinds), key=kinds.count) if kinds else ""
        facts = {"general.quantization_version": 2, "general.file_type": FILE_TYPES.get(most, 1)}
        pairs = [_text(key) + struct.pack("<II", WHOLE, value) for key, value in facts.items()]
        head = MAGIC + struct.pack("<IQQ", VERSION, len(shapes), len(pairs) + 1) + b"".join(pairs)
        self._head = head + _text(RECEIPT) + struct.pack("<IQ", TEXT, metadata_bytes)
        infos, offset = [], 0
        for name, (dtype, stored) in shapes.items():
            if len(name.encode()) > MAX_NAME_BYTES:
                raise InvalidValueError(f"{name}: GGUF files take names of at most {MAX_NAME_BYTES} bytes.")
            form, shape = packed.get(name, (dtype, stored))
            if form not in KINDS:
                raise InvalidValueError(f"{name}: GGUF files hold no tensors of {form}.")
            sizes = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
            infos.append(_text(name) + sizes + struct.pack("<IQ", KINDS[form], offset))
            size = torch.Size(stored).numel() * dtype.itemsize
            offset += -(-size // DEFAULT_ALIGNMENT) * DEFAULT_ALIGNMENT
        self._infos = b"".join(infos)
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
        self._file: BufferedWriter | None = None

    def __enter__(self) -> "GgufWriter":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._temporary.open("wb")
            self._file.write(self._head + b" " * self._room + self._infos)
            self._pad()
        except OSError as error:
            if self._file is not None:
                self._discard()
            raise output_error(self.path.name, self.path.parent, error) from error
        return self

    def write(self, name: str, tensor: Tensor) -> None:
        """Write the next declared tensor."""
        if not self._waiting or name != self._waiting[0] or self._declared[name] != (tensor.dtype, tuple(tensor.shape)):
            raise ValueError(f"{name} {tensor.dtype} {list(tensor.shape)} was not declared next")
        self._waiting.pop(0)
        assert self._file is not None
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        try:
            self._file.write(memoryview(data))  # type: ignore[arg-type] # numpy arrays are buffers
            self._pad()
        except OSError as error:
            raise output_error(self.path.name, self.path.parent, error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None or self._waiting:
            self._discard()
            if kind is None:
                raise ValueError(f"{len(self._waiting)} declared tensors were not written: {self._waiting[:3]}")
            return
        assert self._file is not None
        try:
            receipt = json.dumps(self.metadata).encode()
            if len(receipt) > self._room:
                raise ValueError(f"the metadata needs {len(receipt) - self._room} bytes more than were reserved")
            self._file.seek(len(self._head))
            self._file.write(receipt)
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        except OSError as problem:
            self._discard()
            raise output_error(self.path.name, self.path.parent, problem) from problem
        except BaseException:
            self._discard()
            raise

    def _pad(self) -> None:
        assert self._file is not None
        self._file.write(bytes(-self._file.tell() % DEFAULT_ALIGNMENT))

    def _discard(self) -> None:
        if self._file is not None:
            self._file.close()
        self._temporary.unlink(missing_ok=True)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
