"""Storing weights in a smaller format: which weights, and how. Works on any `nn.Module`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import nn

from modules.memory.formats.blocks import for_weight
from modules.memory.formats.format import FORMATS, Encoded, StorageFormat
from modules.memory.layer import SCALE_SUFFIX, manage, put, stored_state
from modules.memory.skip import SkipRules

CASTABLE = (
    nn.Linear,
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
)
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._NormBase, nn.RMSNorm)
SMALLEST_SCALED_ELEMENTS = 4096  # smaller weights are not worth a scale and an error


@dataclass(frozen=True)
class StorageRules:
    """The rules that say what is stored in which format. `storage` is the name of a format in `FORMATS`.

    Formats without scales take weight and bias of every Linear and convolution, as the reference UI does; those with
    scales take the weights (two dimensions or more) and leave biases and small tensors in the compute dtype.
    `embeddings` adds embedding tables, `direct` parameters of two dimensions or more that a module which is no leaf
    layer owns itself (the in-projection of nn.MultiheadAttention). Norms are never taken. `chosen`: formats by the full
    name of a parameter, for what would be stored in `storage` without it; what has none stays.
    """

    storage: str
    skip: SkipRules = field(default_factory=SkipRules)
    embeddings: bool = False
    direct: bool = False
    chosen: Mapping[str, str | None] | None = None

    def __post_init__(self) -> None:
        FORMATS.get(self.storage)

    def format_of(self, path: str, layer: nn.Module, name: str, shape: tuple[int, ...]) -> StorageFormat | None:
        """The format for the parameter `name` of `layer`, which is at `path`; None: it is not stored."""
        storage = FORMATS.get(self.storage)
        if isinstance(layer, CASTABLE):
            wanted = name in ("weight", "bias")
        elif isinstance(layer, nn.Embedding):
            wanted = self.embeddings and name == "weight"
        else:
            wanted = self.direct and not isinstance(layer, NORMS) and len(shape) >= 2
        if not wanted or self.skip.skips(path, layer):
            return None
        if storage.scaled and (len(shape) < 2 or torch.Size(shape).numel() < SMALLEST_SCALED_ELEMENTS):
            return None
        if self.chosen is not None:
            own = self.chosen.get(f"{path}.{name}" if path else name)
            return None if own is None else for_weight(FORMATS.get(own), shape)
        return for_weight(storage, shape)


class StoredLayers:
    """Takes encoded weights one after the other, and makes their layers stored ones when all of them are there.

    Loading feeds it from a file (`modules.models.loading.filling`). `saturated` counts by label how many values of a
    weight were beyond its format's range.
    """

    def __init__(self) -> None:
        self.saturated: dict[str, int] = {}
        self._layers: dict[int, tuple[nn.Module, dict[str, StorageFormat]]] = {}

    def put(self, layer: nn.Module, name: str, storage: StorageFormat, encoded: Encoded, label: str) -> None:
        """Place a weight, encoded in `storage` (or in what that chose for it), as the parameter `name` of `layer`."""
        storage = encoded.storage or storage
        put(layer, name, encoded.data, encoded.scale)
        self._layers.setdefault(id(layer), (layer, {}))[1][name] = storage
        if encoded.saturated:
            self.saturated[label] = encoded.saturated

    def manage(self, compute_dtype: torch.dtype, cast_inputs: bool = True) -> list[nn.Module]:
        """Have all layers that got a weight compute in `compute_dtype` from what is stored; returns them."""
        for layer, formats in self._layers.values():
            manage(layer, formats, compute_dtype, cast_inputs=cast_inputs and not isinstance(layer, nn.Embedding))
        return [layer for layer, _ in self._layers.values()]


def stored_bytes(root: nn.Module) -> int:
    """Bytes of all parameters below `root` as they are stored, with their scales; shared ones count once."""
    seen: dict[int, int] = {}
    for layer in root.modules():
        for tensor in layer._parameters.values():
            if tensor is not None and not tensor.is_meta:  # a table that is looked up in its file
                seen[id(tensor)] = tensor.numel() * tensor.element_size()
        for name, buffer in layer._buffers.items():
            if buffer is not None and name.endswith(SCALE_SUFFIX) and stored_state(layer) is not None:
                seen[id(buffer)] = buffer.numel() * buffer.element_size()
    return sum(seen.values())
