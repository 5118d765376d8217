"""Whether the bytes of a weight lie in a checkpoint as our layer has them."""

import torch

from modules.models.layouts.keymaps.keymap import KeyMap
from modules.models.layouts.open_clip_layout import OpenClipLayout
from modules.models.reading.tensor_source import TensorSource


def shape_in_row(file: TensorSource, key: str, keymap: KeyMap) -> torch.Size | None:
    """The shape of a weight of ours whose bytes lie in the file in one row, in our order; None: they do not."""
    if not file.has_offsets:
        return None
    if isinstance(file, OpenClipLayout) and not file.origins[key].as_stored:
        return None
    entry = file.entries[key]
    if not entry.size_bytes:  # zeros that lie in no file
        return None
    shell = torch.empty(entry.shape, device="meta")
    ours = keymap.tensor_to_ours(key, shell)
    is_same_row = (ours is shell or ours._base is shell) and ours.is_contiguous() and ours.numel() == shell.numel()
    return ours.shape if is_same_row else None
