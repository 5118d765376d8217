"""Files that lie among checkpoints and are none: adapters (the LoRA family) and textual inversion embeddings.

Told by the names in the header alone; nothing is unpickled and no weights are read. Imports no torch.
"""

from collections.abc import Collection
from pathlib import Path

from modules.models.files.file_header import header_of

EMBEDDING_TABLES = {1: ("emb_params",), 2: ("clip_l", "clip_g")}
"""What embeddings' files call the vectors for one text encoder, and for two."""
EMBEDDING_NAMES = frozenset(name for names in EMBEDDING_TABLES.values() for name in names)
MAX_EMBEDDING_TENSORS = 4
ADAPTER_WORDS = (
    *("lora_up.", "lora_down.", ".lora_a.", ".lora_b.", "lora_unet_", "lora_te", "lycoris_", "hada_w1", "lokr_w"),
    *("oft_blocks", "oft_diag", "glora", "lora.down.", "lora.up.", "_lora1.", "_lora2."),
)


def is_adapter_or_embedding(path: Path) -> bool:
    """Return whether the file holds an adapter or an embedding. False for checkpoints, and for what cannot be read:
    loading will say what is wrong with that."""
    return bool(adapter_or_embedding(header_of(path).tensors))


def adapter_or_embedding(names: Collection[str]) -> str:
    """Return "adapter" or "embedding" where the names of a file's tensors say so; "" for other files."""
    is_small = len(names) <= MAX_EMBEDDING_TENSORS
    if is_small and any(name in EMBEDDING_NAMES or name.startswith("string_to_param") for name in names):
        return "embedding"
    text = "\n".join(names).lower()
    return "adapter" if any(word in text for word in ADAPTER_WORDS) else ""
