"""How a converted checkpoint is laid out in its file: which of its weights may be stored in few bits, what stands next
to them, and how they are declared."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.catalog import layout_facts
from modules.memory.formats.convrot import ROTATED
from modules.memory.formats.format import Encoded, StorageFormat
from modules.memory.formats.gguf_blocks import GGUF_BLOCKS
from modules.memory.formats.rowwise import E5M2_ROW, INT8_ROW
from modules.models.files.coded_file import MARKER
from modules.models.files.gguf_writer import GgufWriter
from modules.models.files.header import DECLARATIONS_KEY, PACKED_KEY
from modules.models.files.tensor_source import TensorSource
from modules.models.files.tensor_writer import TensorWriter
from modules.models.loading.matching import Assignment
from modules.models.names.fused import original_name

Declared = dict[str, tuple[torch.dtype, tuple[int, ...]]]


@dataclass(frozen=True)
class PlannedTensor:
    """A tensor of the file and the format it gets; None: it stays."""

    assignment: Assignment
    storage: StorageFormat | None
    stays_8_bit: bool  # it is stored in 8 bits in the file already, and is never rounded again
    must_be_finite: bool = False  # it stays, in a component that is stored in 8 bits


class FileLayout(StrEnum):
    """`OWN`: safetensors, scales as `scale_weight`, blocks described in the metadata. `COMFYUI`: safetensors, with
    `weight_scale` and a `comfy_quant` next to each matrix of the denoiser. `GGUF`: as stable-diffusion.cpp reads it."""

    OWN = "own"
    COMFYUI = "comfyui"
    GGUF = "gguf"


SUFFIXES = {FileLayout.OWN: ".safetensors", FileLayout.COMFYUI: ".safetensors", FileLayout.GGUF: ".gguf"}
COMFY_FORMATS: Mapping[str, Mapping[str, object]] = {
    **layout_facts("comfyui"),
    E5M2_ROW.name: {"format": "float8_e5m2", "full_precision_matrix_mult": True},
}
"""How ComfyUI declares a weight, by our name of its format; that of weights that are in 8 bits already among them.
Plain fp8 needs no word."""
MARKER_BYTES = 96
"""Of a marker, filled up with blanks: which of two formats a layer is in is known when the file's header is written
already."""


def layout_of(target: Path, name: str = "") -> FileLayout:
    """The layout that was asked for, else the one that the file's name means. Raises `InvalidValueError` where the two
    are at odds, and for other endings."""
    known = {FileLayout.GGUF} if target.suffix == ".gguf" else {FileLayout.OWN, FileLayout.COMFYUI}
    if name not in ("", *FileLayout):
        raise InvalidValueError(f"Unknown file layout {name!r}. Known: {', '.join(FileLayout)}.")
    layout = FileLayout(name) if name else (FileLayout.GGUF if target.suffix == ".gguf" else FileLayout.OWN)
    if target.suffix != SUFFIXES[layout] or layout not in known:
        raise InvalidValueError(f"{target.name}: the name must end in {SUFFIXES[layout]}.")
    return layout


def check_format(layout: FileLayout, storage: str, has_budget: bool) -> None:
    """Raises `InvalidValueError` for a format that files of this layout do not hold."""
    if layout is FileLayout.OWN:
        return
    allowed = layout_facts(layout)
    if has_budget or storage not in allowed:
        what = "formats chosen by a budget" if has_budget else storage
        raise InvalidValueError(
            f"Files in the layout {layout.value} do not hold {what}. They hold {', '.join(allowed)}."
        )


def fitted(planned: Sequence[PlannedTensor], file: TensorSource, layout: FileLayout) -> list[PlannedTensor]:
    """Return what of the plan files of this layout can hold; the rest stays in 16 bits. Parts of one tensor get one
    format: the smallest that one of them has."""
    kept = [
        item if item.storage is None or _is_held(item, file, layout) else replace(item, storage=None, stays_8_bit=False)
        for item in planned
    ]
    whole: dict[str, list[PlannedTensor]] = {}
    for item in kept:
        whole.setdefault(original_name(item.assignment.original_key).key, []).append(item)
    for key, items in whole.items():
        if len(items) > 1 or not original_name(items[0].assignment.original_key).as_stored:
            whole[key] = items = [_unrotated(item) for item in items]
        names = {item.storage.name if item.storage is not None else "" for item in items}
        if len(names) > 1 and any(isinstance(item.storage, BlockFormat) for item in items):
            forms = [item.storage for item in items if isinstance(item.storage, BlockFormat)]
            smallest = min(forms, key=lambda form: form.bits_per_weight)
            whole[key] = [_in_format(item, smallest) for item in items]
    return [whole[original_name(item.assignment.original_key).key].pop(0) for item in kept]


def _unrotated(item: PlannedTensor) -> PlannedTensor:
    """Rotate no part of a tensor of which not all are rotated."""
    if item.storage is None or item.storage.name != ROTATED.name or item.stays_8_bit:
        return item
    return replace(item, storage=INT8_ROW)


def _in_format(item: PlannedTensor, form: BlockFormat) -> PlannedTensor:
    if isinstance(item.storage, BlockFormat) and item.storage.name == form.name:
        return item
    shape = item.storage.shape if isinstance(item.storage, BlockFormat) else None
    own: StorageFormat = form if shape is None else form.of(shape)
    return replace(item, storage=own, stays_8_bit=False)


def _is_held(item: PlannedTensor, file: TensorSource, layout: FileLayout) -> bool:
    assert item.storage is not None
    key = item.assignment.original_key
    is_matrix = len(file.entries[key].shape) == 2
    if layout is FileLayout.COMFYUI:
        return is_matrix and item.assignment.component.name == "unet" and item.storage.name in COMFY_FORMATS
    if layout is FileLayout.GGUF:
        is_block = isinstance(item.storage, BlockFormat) and item.storage.name in GGUF_BLOCKS
        return is_matrix and is_block and original_name(key).as_stored
    # Of rows in another order than ours the blocks could not be taken as they are when the file is read again.
    return not isinstance(item.storage, BlockFormat) or original_name(key).as_stored


@dataclass(frozen=True)
class Extras:
    """Extras that are written besides the weights: tensors at the end, facts for the metadata, and formats and shapes
    of packed tensors by the name in the file."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]
    packed: Mapping[str, tuple[str, tuple[int, ...]]]


def extras_of(
    planned: Sequence[PlannedTensor], file: TensorSource, layout: FileLayout, chosen: Mapping[str, str] | None = None
) -> Extras:
    """See `Extras`. `chosen`: by name in the file the format that a weight was stored in, once all are."""
    rotated: dict[str, Mapping[str, object]] = {}
    markers: dict[str, Tensor] = {}
    packed: dict[str, tuple[str, tuple[int, ...]]] = {}
    for item in planned:
        if item.storage is None:
            continue
        name = item.assignment.original_key
        key, shape = original_name(name).key, file.entries[name].shape
        if isinstance(item.storage, BlockFormat):
            rows = packed[key][1][0] if key in packed else 0
            packed[key] = item.storage.name, (rows + shape[0], *shape[1:])
            continue
        storage, layer = (chosen or {}).get(name, item.storage.name), key.removesuffix(".weight")
        if layout is FileLayout.COMFYUI and COMFY_FORMATS[storage]:
            text = json.dumps(COMFY_FORMATS[storage]).encode().ljust(MARKER_BYTES)
            markers[f"{layer}{MARKER}"] = torch.tensor(list(text), dtype=torch.uint8)
        elif layout is FileLayout.OWN and storage == ROTATED.name:
            rotated[layer] = COMFY_FORMATS[storage]
    own = {PACKED_KEY: json.dumps(packed)} if packed and layout is FileLayout.OWN else {}
    if rotated:
        own[DECLARATIONS_KEY] = json.dumps({"format_version": "1.0", "layers": rotated})
    return Extras(markers, own, packed)


def scale_of(encoded: Encoded, layout: FileLayout) -> Tensor | None:
    """The scale in the shape that the layout has it in."""
    if encoded.scale is None or layout is not FileLayout.COMFYUI:
        return encoded.scale
    return encoded.scale.reshape(-1, 1)


def scale_key_in(layout: FileLayout, key: str) -> str:
    """Return what the scale of a weight is called."""
    return f"{key.removesuffix('.weight')}.{'weight_scale' if layout is FileLayout.COMFYUI else 'scale_weight'}"


def writer_in(layout: FileLayout, packed: Mapping[str, tuple[str, tuple[int, ...]]]) -> Callable[..., Any]:
    """Return what makes the writer of a file, called as `TensorWriter` is."""
    if layout is not FileLayout.GGUF:
        return TensorWriter

    def make(path: Path, shapes: Declared, room: int) -> GgufWriter:
        return GgufWriter(path, shapes, room, packed)

    return make
