"""Small checkpoint files for tests: written here, right or wrong on purpose."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.tensor_file import TensorFile
from tests.recordings import TINY


def write_raw(path: Path, header: object, data: bytes = b"", claimed: int | None = None) -> Path:
    """A safetensors file with any header; `claimed` is the header length it says it has."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if claimed is None else claimed) + text + data)
    return path


def tiny_tensors() -> dict[str, Tensor]:
    """All tensors of the tiny checkpoint."""
    with TensorFile(TINY) as file:
        return {name: file.read(name) for name in file.entries}


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    """A checkpoint with the tiny model's YAML beside it."""
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.with_suffix(".yaml").write_bytes(TINY.with_suffix(".yaml").read_bytes())
    return path


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, object]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}
