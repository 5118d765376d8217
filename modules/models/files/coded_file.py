"""Weights that a `.safetensors` file holds in codes which no storage format of ours has, given decoded.

Two kinds of file: layers that ComfyUI declares (`NAME.comfy_quant`, `_quantization_metadata`; its QUANTIZATION.md and
the `comfy-kitchen` package define the formats) as nvfp4, mxfp8 or rotated int8; and weights of bitsandbytes in 4 bits
(Dettmers et al. 2023, arXiv:2305.14314, appendix E), with a table and block scales next to it. What else
ComfyUI declares is left to `modules.models.files.eight_bits`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError, first_line
from modules.memory.formats.block_formats import BLOCK_FORMATS
from modules.memory.formats.convrot import ROTATED
from modules.memory.formats.format import Encoded
from modules.memory.formats.rotation import GROUP, can_rotate, rotate
from modules.models.files.header import DECLARATIONS_KEY, GPTQ, NUNCHAKU, PACKED_KEY
from modules.models.files.tensor_file import Closing, TensorEntry, TensorFile
from modules.system.bounded import read_json

MARKER = ".comfy_quant"
ATTENTION_HINT = ".comfy_attention.config"
STATE = ".quant_state.bitsandbytes__"
FP4_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""E2M1 by its lower three bits; the fourth is the sign."""
NVFP4_BLOCK, MXFP8_BLOCK = 16, 32
TILE_ROWS, TILE_COLUMNS = 128, 4
ABSMAX = ".absmax"


@dataclass(frozen=True)
class Coded:
    """One weight: its format, shape once decoded, the tensors that belong to it by role, and what was declared."""

    name: str
    shape: tuple[int, ...]
    tensors: Mapping[str, str]
    facts: Mapping[str, object] = field(default_factory=dict)


class CodedFile(Closing):
    """A `TensorSource` in which coded weights are float32. Closes `file`."""

    has_offsets = False

    def __init__(self, file: TensorFile, coded: Mapping[str, Coded], packed: Mapping[str, TensorEntry]) -> None:
        """`packed`: the entries of weights that are kept as their blocks."""
        self._file, self._coded, self._packed = file, coded, packed
        self.path = file.path
        self.metadata = _other_declarations(file.metadata, coded)
        used = {key for weight in coded.values() for key in weight.tensors.values()}
        entries: dict[str, TensorEntry] = {}
        for key, entry in file.entries.items():
            if key in coded:
                own = replace(entry, dtype=torch.float32, shape=coded[key].shape, coded=coded[key].name)
                entries[key] = replace(own, rotated=_as_it_is(file, entry, coded[key]))
            elif key not in used:
                entries[key] = packed.get(key, entry)
        self.entries: Mapping[str, TensorEntry] = entries

    def close(self) -> None:
        """Close the file; tensors that were read stay valid."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor, decoded where it is coded. Raises `CheckpointError` that names it where its parts do not fit."""
        weight = self._coded.get(name)
        form = self._packed[name].packed if name in self._packed else None
        if form is not None:
            decoded = torch.empty(self.entries[name].shape) if into is None else into
            return BLOCK_FORMATS[form].decode(self._file.read(name), None, decoded)
        if weight is None:
            return self._file.read(name, into)
        parts = {role: self._file.read(key) for role, key in weight.tensors.items()}
        try:
            decoded = DECODERS[weight.name](parts, weight).reshape(weight.shape)
        except (ValueError, RuntimeError, IndexError, TypeError, KeyError) as error:
            raise CheckpointError(
                f"{self.path.name}: {name} cannot be decoded from {weight.name}: its scales or codes do not fit its "
                f"shape {list(weight.shape)} ({first_line(error)}). Use another copy."
            ) from error
        return decoded if into is None else into.copy_(decoded)


def _as_it_is(file: TensorFile, entry: TensorEntry, weight: Coded) -> tuple[TensorEntry, TensorEntry] | None:
    """See `TensorEntry.rotated`; None for what is not rotated int8 in our groups with a scale per row, or one."""
    scale = file.entries.get(weight.tensors.get("weight_scale", ""))
    if weight.name != ROTATED.name or weight.facts.get("convrot_groupsize", GROUP) != GROUP or scale is None:
        return None
    fits = can_rotate(weight.shape[1]) and torch.Size(scale.shape).numel() in (1, weight.shape[0])
    return (entry, scale) if fits and scale.dtype.is_floating_point else None


def read_rotated(path: Path, entry: TensorEntry, name: str) -> Encoded:
    """The int8 rows of a weight whose entry has `rotated`, as they are in its file, and float32 scales [rows]. Raises
    `CheckpointError` that names it for scales that are not finite."""
    assert entry.rotated is not None
    with TensorFile(entry.file or path) as file:
        data, scale = (file.read_entry(part, name).reshape(part.shape) for part in entry.rotated)
    scale = scale.float().reshape(-1)
    if not bool(torch.isfinite(scale).all()):
        raise CheckpointError(
            f"{path.name}: the scales of {name} hold NaN or infinite values. The file is damaged: use another copy."
        )
    return Encoded(data.view(torch.int8), scale.expand(len(data)).clone())


def with_coded(file: TensorFile) -> TensorFile | CodedFile:
    """`file` with its coded weights decoded when they are read; `file` itself where it has none.

    Raises `CheckpointError` for files that only another program's kernels can use, and for damaged declarations.
    """
    if all(any(key.endswith(ending) for key in file.entries) for ending in NUNCHAKU):
        raise CheckpointError(
            f"{file.path.name}: is a Nunchaku (SVDQuant) file, whose weights only that program's GPU kernels can use. "
            "Use a copy in 16 bits, fp8, or GGUF."
        )
    if all(any(key.endswith(ending) for key in file.entries) for ending in GPTQ):
        raise CheckpointError(
            f"{file.path.name}: its weights are in the codes of GPTQ or AWQ, which are not read here. Use a copy in 16 "
            "bits, fp8, or GGUF."
        )
    coded = dict(_declared(file)) | dict(_of_bitsandbytes(file))
    stateless = [key.removesuffix(ABSMAX) for key in file.entries if key.endswith(ABSMAX)]
    stateless = [weight for weight in stateless if weight not in coded]
    if stateless:
        raise CheckpointError(
            f"{file.path.name}: {stateless[0]} is in the codes of bitsandbytes, and nothing in the file says of which "
            f"shape it is (a tensor ...{STATE}nf4). Use another copy."
        )
    packed = dict(_packed(file))
    return CodedFile(file, coded, packed) if coded or packed else file


# -- what a file says --------------------------------------------------------------------------------------------------


def _declared(file: TensorFile) -> Iterator[tuple[str, Coded]]:
    layers: dict[str, tuple[Mapping[str, object], str | None]] = {}
    for layer, facts in _layers(file.metadata).items():
        layers[layer] = facts, None
    for key, entry in file.entries.items():
        if key.endswith(MARKER) and entry.size_bytes < 1 << 16:
            facts = _json(bytes(file.read(key).reshape(-1).view(torch.uint8).tolist()))
            layers[key.removesuffix(MARKER)] = facts, key
    for layer, (facts, marker) in layers.items():
        nested = facts.get("params")
        facts = {**(nested if isinstance(nested, dict) else {}), **facts}
        name = str(facts.get("format"))
        if name == "int8_tensorwise" and facts.get("convrot"):
            name = "int8_convrot"
        declared = file.entries.get(f"{layer}.weight")
        if name not in COMFY or declared is None:
            continue
        shape = declared.shape
        if declared.dtype not in DATA_DTYPES[name]:
            raise CheckpointError(
                f"{file.path.name}: {layer}.weight is declared to be {name}, but its dtype is "
                f"{str(declared.dtype).removeprefix('torch.')}. Use another copy of the file."
            )
        if len(shape) != 2:
            raise CheckpointError(
                f"{file.path.name}: {layer}.weight is declared to be {name}, and is no matrix. Use another copy."
            )
        shape = (shape[0], 2 * shape[1]) if name == "nvfp4" else shape
        tensors = {"data": f"{layer}.weight"} | ({"marker": marker} if marker is not None else {})
        for role in ("weight_scale", "weight_scale_2", "input_scale"):
            if f"{layer}.{role}" in file.entries:
                tensors[role] = f"{layer}.{role}"
        if name == "int8_convrot" and f"{layer}.scale_weight" in file.entries:
            tensors["weight_scale"] = f"{layer}.scale_weight"  # in files that we write
        yield f"{layer}.weight", Coded(name, shape, tensors, facts)


def _packed(file: TensorFile) -> Iterator[tuple[str, TensorEntry]]:
    for key, described in _json(file.metadata.get(PACKED_KEY, "")).items():
        entry = file.entries.get(key)
        name, shape = described if isinstance(described, list) and len(described) == 2 else (None, None)
        form = BLOCK_FORMATS.get(name) if isinstance(name, str) else None
        sides = isinstance(shape, list) and all(isinstance(side, int) and 0 < side < 1 << 40 for side in shape)
        if entry is None or form is None or not isinstance(shape, list) or not sides or not form.takes(tuple(shape)):
            raise CheckpointError(
                f"{file.path.name}: says that {key} is packed as {described!r}, which is not understood. Use a newer "
                "version of this program, or another copy."
            )
        if entry.dtype != torch.uint8 or entry.shape != (shape[0], form.row_bytes(tuple(shape))):
            raise CheckpointError(
                f"{file.path.name}: {key} is said to be packed as {name} of shape {shape}, but its bytes are "
                f"{list(entry.shape)}. Use another copy."
            )
        yield key, replace(entry, dtype=torch.float32, shape=tuple(shape), packed=form.name)


def _of_bitsandbytes(file: TensorFile) -> Iterator[tuple[str, Coded]]:
    for key, entry in file.entries.items():
        weight, mark, kind = key.partition(STATE)
        if not mark or weight not in file.entries or entry.size_bytes >= 1 << 16:
            continue
        facts = _json(bytes(file.read(key).reshape(-1).view(torch.uint8).tolist()))
        shape = facts.get("shape")
        numbers = isinstance(shape, list) and all(isinstance(side, int) and side > 0 for side in shape)
        if not isinstance(shape, list) or not numbers or math.prod(shape) != 2 * file.entries[weight].size_bytes:
            raise CheckpointError(
                f"{file.path.name}: {key} says that {weight} is of shape {shape}, which its bytes do not make. "
                "Use another copy."
            )
        roles = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        tensors = {"data": weight, "state": key}
        tensors |= {role: f"{weight}.{role}" for role in roles if f"{weight}.{role}" in file.entries}
        yield weight, Coded(f"bnb_{kind}" if f"bnb_{kind}" in DECODERS else "bnb_nf4", tuple(shape), tensors, facts)


def _json(text: bytes | str) -> Mapping[str, object]:
    """An object of JSON; empty for anything else, about which `modules.models.files.eight_bits` complains."""
    try:
        parsed = read_json(text)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _layers(metadata: Mapping[str, str]) -> dict[str, Mapping[str, object]]:
    layers = _json(metadata.get(DECLARATIONS_KEY, "")).get("layers")
    return {str(k): v for k, v in layers.items() if isinstance(v, dict)} if isinstance(layers, dict) else {}


def _other_declarations(metadata: Mapping[str, str], coded: Mapping[str, Coded]) -> Mapping[str, str]:
    """The metadata without what it says of weights that are given decoded."""
    if DECLARATIONS_KEY not in metadata:
        return metadata
    left = {layer: facts for layer, facts in _layers(metadata).items() if f"{layer}.weight" not in coded}
    table = dict(_json(metadata[DECLARATIONS_KEY])) | {"layers": left}
    return {**metadata, DECLARATIONS_KEY: json.dumps(table)}


# -- decoding ----------------------------------------------------------------------------------------------------------


def in_rows(scales: Tensor, rows: int, columns: int) -> Tensor:
    """Block scales [rows, columns] from the layout of NVIDIA's matrix units: tiles of 128 x 4, in each of which the
    four runs of 32 rows stand side by side. Raises `ValueError` where they are too few."""
    across, down = -(-columns // TILE_COLUMNS), -(-rows // TILE_ROWS)
    if scales.numel() != across * down * TILE_ROWS * TILE_COLUMNS:
        raise ValueError(f"{scales.numel()} block scales for {rows} x {columns} blocks")
    tiles = scales.reshape(down, across, 32, 4, TILE_COLUMNS).permute(0, 3, 2, 1, 4)
    return tiles.reshape(down * TILE_ROWS, across * TILE_COLUMNS)[:rows, :columns]


def fp4(data: Tensor) -> Tensor:
    """E2M1 numbers, two in a byte with the first in the upper bits: uint8 [rows, n] to float32 [rows, 2n]."""
    table = torch.tensor((*FP4_VALUES, *(-value for value in FP4_VALUES)))
    return table[_nibbles(data).long()]


def _nibbles(data: Tensor) -> Tensor:
    return torch.stack([data >> 4, data & 0x0F], dim=-1).flatten(-2)


def _by_blocks(values: Tensor, scales: Tensor) -> Tensor:
    """Values [rows, n] times the scale of their block [rows, blocks]."""
    return (values.view(*scales.shape, -1) * scales[:, :, None]).flatten(1)


def _nvfp4(parts: Mapping[str, Tensor], weight: Coded) -> Tensor:
    rows, columns = weight.shape
    scales = in_rows(parts["weight_scale"].view(torch.float8_e4m3fn).float(), rows, columns // NVFP4_BLOCK)
    scales = scales * parts["weight_scale_2"].float().reshape(())
    return _by_blocks(fp4(parts["data"].view(torch.uint8)), scales)


def _mxfp8(parts: Mapping[str, Tensor], weight: Coded) -> Tensor:
    rows, columns = weight.shape
    exponents = in_rows(parts["weight_scale"].view(torch.uint8), rows, columns // MXFP8_BLOCK)
    scales = torch.exp2(exponents.double() - 127).float()
    scales[exponents == 0xFF] = torch.nan
    return _by_blocks(parts["data"].float(), scales)


def _int8_convrot(parts: Mapping[str, Tensor], weight: Coded) -> Tensor:
    size = weight.facts.get("convrot_groupsize", GROUP)
    if not isinstance(size, int) or size <= 0 or not can_rotate(weight.shape[1], size):
        raise ValueError(f"groups of {size}")
    scale = parts["weight_scale"].float().reshape(-1, 1)
    return rotate(parts["data"].view(torch.int8).float() * scale, size)


def _bitsandbytes(parts: Mapping[str, Tensor], weight: Coded) -> Tensor:
    size = weight.facts.get("blocksize")
    if not isinstance(size, int) or not 0 < size <= 1 << 16:
        raise ValueError(f"blocks of {size}")
    codes = _nibbles(parts["data"].reshape(-1).view(torch.uint8))
    values = parts["quant_map"].float()[codes.long()]
    scales = parts["absmax"].reshape(-1)
    if "nested_absmax" in parts:
        nested, offset = weight.facts.get("nested_blocksize"), weight.facts.get("nested_offset", 0.0)
        if not isinstance(nested, int) or nested <= 0 or not isinstance(offset, int | float):
            raise ValueError("no sizes of the scales' own blocks")
        outer = parts["nested_absmax"].float().repeat_interleave(nested)[: len(scales)]
        scales = parts["nested_quant_map"].float()[scales.long()] * outer + offset
    return values * scales.float().repeat_interleave(size)[: len(values)]


Decode = Callable[[Mapping[str, Tensor], Coded], Tensor]
COMFY: Mapping[str, Decode] = {"nvfp4": _nvfp4, "mxfp8": _mxfp8, "int8_convrot": _int8_convrot}
DATA_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    "nvfp4": (torch.uint8, torch.int8),
    "mxfp8": (torch.float8_e4m3fn,),
    "int8_convrot": (torch.int8,),
}
DECODERS: Mapping[str, Decode] = {**COMFY, "bnb_nf4": _bitsandbytes, "bnb_fp4": _bitsandbytes}
"""By name; the names are those in the line about what was loaded."""
