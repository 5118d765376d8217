"""Files that lie among checkpoints and are none: adapters (the LoRA family) and textual inversion embeddings.

Told by the names in the header alone; nothing is unpickled and no weights are read. Imports no torch.
"""

import struct
import zipfile
from pathlib import Path

from modules.bounded import read_json

MAX_HEADER_BYTES = 100 << 20
PICKLE_HEAD_BYTES = 1 << 20
EMBEDDING_TABLES = {1: ("emb_params",), 2: ("clip_l", "clip_g")}
"""What embeddings' files call the vectors for one text encoder, and for two."""
EMBEDDING_NAMES = frozenset(name for names in EMBEDDING_TABLES.values() for name in names)
MAX_EMBEDDING_TENSORS = 4
ADAPTER_WORDS = (
    *("lora_up.", "lora_down.", ".lora_a.", ".lora_b.", "lora_unet_", "lora_te", "lycoris_", "hada_w1", "lokr_w"),
    *("oft_blocks", "oft_diag", "glora"),
)
PICKLE_WORDS = (b"string_to_param", b"lora_up.", b"lora_down.", b"hada_w1", b"lokr_w")


def is_adapter_or_embedding(path: Path) -> bool:
    """Whether the file holds an adapter or an embedding. False for checkpoints, and for what cannot be read: loading
    will say what is wrong with that."""
    try:
        if path.is_dir():
            return False
        if path.suffix.lower() == ".safetensors":
            return _names_say_so(_tensor_names(path))
        return any(word in _pickle_head(path) for word in PICKLE_WORDS)
    except (OSError, ValueError, struct.error, zipfile.BadZipFile, KeyError, RuntimeError):
        return False


def _names_say_so(names: list[str]) -> bool:
    if 0 < len(names) <= MAX_EMBEDDING_TENSORS and EMBEDDING_NAMES & set(names):
        return True
    return bool(names) and any(word in name.lower() for name in names for word in ADAPTER_WORDS)


def _tensor_names(path: Path) -> list[str]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        if length > MAX_HEADER_BYTES:
            raise ValueError("no header of this format")
        header = read_json(file.read(length))
    return [name for name in header if name != "__metadata__"] if isinstance(header, dict) else []


def _pickle_head(path: Path) -> bytes:
    """The first bytes of the pickle, where the names stand: inside of the archive, or of an old file itself."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(PICKLE_HEAD_BYTES)
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in [*archive.namelist(), ""] if name.endswith("data.pkl") or not name)
        with archive.open(name) as file:
            return file.read(PICKLE_HEAD_BYTES)
