"""The placing of a checkpoint's tensor: whether it stays as the file has it, the format in which it is stored, and how
many bytes it takes.

Loading does it, the memory estimate adds it up, conversion writes it, and reports say it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

import torch
from torch import nn

from modules.memory.formats.block_formats import BLOCK_FORMATS
from modules.memory.formats.blocks import kept_bytes
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.memory.formats.codes import as_codes
from modules.memory.formats.convrot import ROTATED
from modules.memory.formats.format import StorageFormat, dtype_name
from modules.memory.storage import CASTABLE, StorageRules
from modules.models.files.eight_bits import STORED_AS
from modules.models.files.tensor_file import TensorEntry

MIN_TABLE_BYTES = 1 << 20
SCALE_BYTES = 4


class Way(Enum):
    """The ways that a tensor can go."""

    KEPT = "in few bits, as the file has it"
    ENCODED = "encoded to a storage format"
    PLAIN = "without a storage format"
    IN_FILE = "a large embedding table, whose rows are looked up in the file"


@dataclass(frozen=True)
class Layer:
    """The place of a tensor in a model: parameter or buffer `name` of `module`, which its component knows by `path`,
    and its shape there. `scale` is the scale that the file has next to it."""

    component: str
    module: nn.Module
    path: str
    name: str
    shape: tuple[int, ...]
    scale: TensorEntry | None = None


@dataclass(frozen=True)
class PlacingRules:
    """The rules for the tensors of one component. `dtype`: of floating-point tensors without a storage format.
    `storage`: which weights get one; None: none. `tables_in_file`: large embedding tables stay in a file that says
    where they are. `keeps`: weights in few bits stay so. `float8`: the device has 8-bit floats; else it keeps
    their codes."""

    dtype: torch.dtype
    storage: StorageRules | None = None
    tables_in_file: bool = False
    keeps: bool = True
    float8: bool = True


@dataclass(frozen=True)
class Placed:
    """The placing of a tensor: its way, its storage format (None: it has none), the bytes that it takes with its
    scales, and the expected relative error of its weights (None: it depends on them)."""

    way: Way
    format: StorageFormat | None
    size_bytes: int
    error: float | None = 0.0


def placed(entry: TensorEntry, layer: Layer, rules: PlacingRules) -> Placed:
    """Decide what becomes of a tensor that a file has so."""
    found = _placed(entry, layer, rules)
    return found if rules.float8 else replace(found, format=as_codes(found.format))


def _placed(entry: TensorEntry, layer: Layer, rules: PlacingRules) -> Placed:
    if rules.tables_in_file and _is_large_table(entry, layer):
        return Placed(Way.IN_FILE, None, 0)
    kept = _kept_format(entry, layer) if rules.keeps else None
    if kept is not None and layer.scale is not None:
        size = math.prod(layer.shape) * entry.dtype.itemsize + SCALE_BYTES * math.prod(layer.scale.shape)
        return Placed(Way.KEPT, kept, size)
    if kept is not None:
        return Placed(Way.KEPT, kept, kept_bytes(kept, layer.shape))
    storage = None
    if rules.storage is not None:
        storage = rules.storage.format_of(layer.path, layer.module, layer.name, layer.shape)
    if storage is not None:
        error = FORMAT_SPECS.get(storage.name).error if storage.name in FORMAT_SPECS else None
        return Placed(Way.ENCODED, storage, kept_bytes(storage, layer.shape), error)
    is_floating = entry.dtype.is_floating_point or layer.scale is not None
    return Placed(Way.PLAIN, None, math.prod(layer.shape) * (rules.dtype if is_floating else entry.dtype).itemsize)


def format_in_file(entry: TensorEntry, has_scale: bool) -> str | None:
    """Return the format in which a file has a tensor; None for 16 bits and more."""
    if entry.packed or entry.coded or entry.dtype.itemsize > 1:
        return entry.packed or entry.coded
    if not has_scale:
        return dtype_name(entry.dtype)
    found = STORED_AS.get((entry.dtype, True))
    return None if found is None else found.name


def _is_large_table(entry: TensorEntry, layer: Layer) -> bool:
    is_wide = entry.dtype.is_floating_point and entry.dtype.itemsize > 1
    is_table = type(layer.module) is nn.Embedding and len(entry.shape) == 2
    return is_table and is_wide and entry.has_offset and entry.size_bytes >= MIN_TABLE_BYTES


def _kept_format(entry: TensorEntry, layer: Layer) -> StorageFormat | None:
    """Return the format of a weight in few bits that can stay as the file has it; None for others."""
    if not isinstance(layer.module, CASTABLE):
        return None
    if layer.component == "vae" or layer.name != "weight":  # a VAE is small, and diffusers asks for its weights' dtype
        return STORED_AS.get((entry.dtype, layer.scale is not None))
    if entry.packed is not None:
        block, shape = BLOCK_FORMATS[entry.packed], layer.shape
        return block.of(shape) if block.takes(shape) and entry.size_bytes % shape[0] == 0 else None
    if entry.rotated is not None and entry.shape == layer.shape:
        return ROTATED
    return STORED_AS.get((entry.dtype, layer.scale is not None))
