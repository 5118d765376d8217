"""Where the weights of a checkpoint rest when its model is streamed, decided tensor by tensor while it is read.

A weight that the file holds as the model needs it, up to a conversion between 16 and 32 bits, is not even read: the
layer learns where in the file it lies. All others (encoded to 8 bits, from another layout, from a pickle) are read,
made what they should be, and offloaded to main memory or in the offload folder.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from modules.memory.formats.format import FORMATS, dtype_name
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.groups import MAX_BLOCK_BYTES
from modules.memory.streaming.offload_storage import SMALL_BYTES, OffloadStorage
from modules.memory.streaming.source import FileRegion, WatchedFile
from modules.memory.streaming.streaming import StreamHandle, StreamOptions, stream
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.stream_layout import StreamLayout
from modules.system.devices import memory_info

PINNED_SHARE = 3  # a third of the free main memory may be page-locked


class OffloadPlan:
    """The offload storage of one model's weights."""

    def __init__(self, plan: StreamLayout, small_bytes: int = SMALL_BYTES) -> None:
        self.on_disk = plan.on_disk
        store = BlobStore(plan.folder, plan.quota_bytes) if plan.on_disk and plan.folder is not None else None
        self.place = OffloadStorage(store, small_bytes)

    def leaves(self, stored: torch.dtype, shape: torch.Size, layer: nn.Module, name: str, dtype: torch.dtype) -> bool:
        """Whether a weight that the file has contiguously, in dtype `stored`, can be left there for one in `dtype`."""
        is_plain = self.on_disk and _converts(stored, dtype) and name in layer._parameters
        return is_plain and self.place.wants(shape, dtype)

    def leaves_codes(self, shape: torch.Size, dtype: torch.dtype) -> bool:
        """Whether a weight that the file has contiguously in 8 bits, as the model needs it, is left there."""
        return self.on_disk and dtype.itemsize == 1 and self.place.wants(shape, dtype)

    def leave(
        self, file: TensorSource, key: str, shape: torch.Size, layer: nn.Module, name: str, dtype: torch.dtype
    ) -> None:
        """Leave a weight, which the model has in this shape and `dtype`, where it is in the file."""
        entry = file.entries[key]
        watched = self.place.file(WatchedFile(entry.file or file.path))
        self.place.take_from_file(layer, name, FileRegion(watched, entry.begin, entry.dtype, shape), dtype)

    def take(self, file: TensorSource, key: str, shape: torch.Size | None, layer: nn.Module, name: str) -> None:
        """Take a weight that was read and placed in its layer: back to the file if it is in 8 bits there too, and
        contiguous (`shape`; None: it is not), or in the very blocks that the file has."""
        parameter = layer._parameters.get(name)
        entry = file.entries[key]
        dtype = entry.dtype
        is_same = parameter is not None and parameter.dtype in (dtype, torch.uint8) and parameter.shape == shape
        has_codes = shape is not None and is_same and self.leaves_codes(shape, dtype)
        if parameter is not None and (has_codes or self._has_blocks(entry, parameter)):
            watched = self.place.file(WatchedFile(entry.file or file.path))
            region = FileRegion(watched, entry.begin, parameter.dtype, parameter.shape)
            self.place.take_from_file(layer, name, region, parameter.dtype)
        else:
            self.place.take(layer, name, is_sure=True)

    def _has_blocks(self, entry: TensorEntry, parameter: nn.Parameter) -> bool:
        """Whether a parameter is the bytes of blocks as they lie in the file."""
        is_same = parameter.dtype == torch.uint8 and parameter.numel() == entry.size_bytes
        is_large = self.place.wants(parameter.shape, parameter.dtype)
        return self.on_disk and entry.packed is not None and is_same and is_large

    def start(self, components: Mapping[str, nn.Module], plan: StreamLayout, device: torch.device) -> StreamHandle:
        """All weights are offloaded: stream them."""
        options = StreamOptions(
            max_block_bytes=MAX_BLOCK_BYTES, kept_bytes=plan.kept_bytes, pinned_bytes=pinned_bytes(device)
        )
        levels = {name: plan.level_of(name) for name in components}
        return stream(components, device, levels, options, self.place)


def pinned_bytes(device: torch.device) -> int:
    """How much of main memory may be page-locked for weights that are streamed to `device`."""
    free = memory_info(device)["ram"].get("free")
    return free // PINNED_SHARE if isinstance(free, int) else 0


def _converts(stored: torch.dtype, wanted: torch.dtype) -> bool:
    """Whether both are plain numbers of 16 bits or more."""
    return all(
        dtype.is_floating_point and dtype.itemsize > 1 and dtype_name(dtype) in FORMATS for dtype in (stored, wanted)
    )
