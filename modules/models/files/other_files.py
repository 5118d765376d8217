"""Files that lie among checkpoints and are none: adapters (the LoRA family) and textual inversion embeddings.

Told by the names in the header alone; nothing is unpickled and no weights are read. Imports no torch.
"""

import zipfile
from collections.abc import Collection
from pathlib import Path

from modules.models.files.header import header_of

PICKLE_HEAD_BYTES = 1 << 20
EMBEDDING_TABLES = {1: ("emb_params",), 2: ("clip_l", "clip_g")}
"""What embeddings' files call the vectors for one text encoder, and for two."""
EMBEDDING_NAMES = frozenset(name for names in EMBEDDING_TABLES.values() for name in names)
MAX_EMBEDDING_TENSORS = 4
ADAPTER_WORDS = (
    *("lora_up.", "lora_down.", ".lora_a.", ".lora_b.", "lora_unet_", "lora_te", "lycoris_", "hada_w1", "lokr_w"),
    *("oft_blocks", "oft_diag", "glora", "lora.down.", "lora.up.", "_lora1.", "_lora2."),
)
PICKLE_WORDS = (b"string_to_param", b"lora_up.", b"lora_down.", b"hada_w1", b"lokr_w")


def is_adapter_or_embedding(path: Path) -> bool:
    """Whether the file holds an adapter or an embedding. False for checkpoints, and for what cannot be read: loading
    will say what is wrong with that."""
    try:
        if path.is_dir():
            return False
        if path.suffix.lower() == ".safetensors":
            return bool(adapter_or_embedding(header_of(path).tensors))
        return any(word in _pickle_head(path) for word in PICKLE_WORDS)
    except (OSError, ValueError, zipfile.BadZipFile, KeyError, RuntimeError):
        return False


def adapter_or_embedding(names: Collection[str]) -> str:
    """Return "adapter" or "embedding" where the names of a file's tensors say so; "" for other files."""
    if len(names) <= MAX_EMBEDDING_TENSORS and EMBEDDING_NAMES & set(names):
        return "embedding"
    return "adapter" if any(word in name.lower() for name in names for word in ADAPTER_WORDS) else ""


def _pickle_head(path: Path) -> bytes:
    """The first bytes of the pickle, where the names stand: inside of the archive, or of an old file itself."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            return file.read(PICKLE_HEAD_BYTES)
    with zipfile.ZipFile(path) as archive:
        name = next(name for name in [*archive.namelist(), ""] if name.endswith("data.pkl") or not name)
        with archive.open(name) as file:
            return file.read(PICKLE_HEAD_BYTES)
