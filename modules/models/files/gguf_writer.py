"""Writing a `.gguf` file tensor by tensor, atomically, as stable-diffusion.cpp and ggml's own package read it."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import torch

from modules.errors import InvalidValueError
from modules.memory.formats.catalog import layout_facts
from modules.models.files.gguf_file import BLOCK_TYPES, PLAIN_TYPES
from modules.models.files.header import DEFAULT_ALIGNMENT, GGUF_MAGIC, TEXT
from modules.models.files.tensor_writer import DeclaredWriter, Shapes

VERSION = 3
MAX_NAME_BYTES = 127  # of a tensor in stable-diffusion.cpp
RECEIPT = "featherweight.receipt"
WHOLE = 4  # type of metadata: a number of 32 bits
KINDS: dict[str | torch.dtype, int] = {}
KINDS.update((name, kind) for kind, name in BLOCK_TYPES.items())
KINDS.update((dtype, kind) for kind, dtype in PLAIN_TYPES.items())
FP16_FILE = 1
"""llama.cpp's number for a file whose tensors are in fp16; the catalog of formats has those of blocks."""


class GgufWriter(DeclaredWriter):
    """A new `.gguf` file. `packed`: format and shape of those tensors that are declared as their bytes. `metadata`
    becomes one text, for which `metadata_bytes` are left."""

    data_alignment = DEFAULT_ALIGNMENT

    def __init__(
        self,
        path: Path,
        shapes: Shapes,
        metadata_bytes: int = 1 << 16,
        packed: Mapping[str, tuple[str, tuple[int, ...]]] | None = None,
    ) -> None:
        super().__init__(path, shapes)
        self._room = metadata_bytes
        packed = packed or {}
        kinds = [name for name, _ in packed.values()]
        most = max(set(kinds), key=kinds.count) if kinds else ""
        file_type = layout_facts("gguf").get(most, {}).get("file_type", FP16_FILE)
        assert isinstance(file_type, int)
        facts = {"general.quantization_version": 2, "general.file_type": file_type}
        pairs = [_text(key) + struct.pack("<II", WHOLE, value) for key, value in facts.items()]
        head = GGUF_MAGIC + struct.pack("<IQQ", VERSION, len(shapes), len(pairs) + 1) + b"".join(pairs)
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

    def _beginning(self) -> bytes:
        return self._head + b" " * self._room + self._infos

    def _completed(self) -> tuple[int, bytes]:
        receipt = json.dumps(self.metadata).encode()
        if len(receipt) > self._room:
            raise ValueError(f"the metadata needs {len(receipt) - self._room} bytes more than were reserved")
        return len(self._head), receipt


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
