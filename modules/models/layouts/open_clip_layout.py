"""A checkpoint file whose fused tensors appear one by one, as our modules have them.

OpenCLIP (SD2, SDXL) keeps the projections of query, key and value in one tensor `attn.in_proj_weight` [3w, w], the
positions in a bare parameter, and its text projection transposed. Through `OpenClipLayout` they are
`attn.q_proj.weight` ..., `positional_embedding.weight` and `text_projection.weight`; everything else passes unchanged.
Where the file has offsets, the parts of a fused tensor have theirs: they lie one behind the other.

SD3's transformer fuses the same three as `attn.qkv`, and where an `adaLN_modulation.1` makes a shift and a scale alone,
its halves stand the other way round than ours: the tensor is `adaLN_scale_shift` here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.models.closing import Closing
from modules.models.families.external_text_encoders import OPTIONAL_LEVELS, with_external_encoders
from modules.models.layouts.diffusers_layout import DiffusersLayout, is_diffusers_file
from modules.models.layouts.ema_names import restored_names
from modules.models.reading.tensor_file import TensorEntry, TensorFile
from modules.models.reading.tensor_source import TensorSource, open_tensors
from modules.models.reading.tensor_writer import TensorWriter

OPEN_CLIP = r"^((?:cond_stage_model|conditioner\.embedders\.\d+)\.model)"
MMDIT = r"^(model\.diffusion_model)"
FUSED = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj_(weight|bias)$")
SCALES = ("scale_weight", "weight_scale")
FUSED_SCALE = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.in_proj\.({'|'.join(SCALES)})$")
PART = re.compile(rf"{OPEN_CLIP}\.(.*attn)\.([qkv]_proj)\.(weight|bias|{'|'.join(SCALES)})$")
BARE_WEIGHT = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)\.weight$")
BARE = re.compile(rf"{OPEN_CLIP}\.(positional_embedding|text_projection)$")
PARTS = ("q_proj", "k_proj", "v_proj")
KINDS = f"weight|bias|{'|'.join(SCALES)}"
MMDIT_FUSED = re.compile(rf"{MMDIT}\.(joint_blocks\..*\.attn2?)\.qkv\.({KINDS})$")
MMDIT_PART = re.compile(rf"{MMDIT}\.(joint_blocks\..*\.attn2?)\.([qkv]_proj)\.({KINDS})$")
MODULATION = re.compile(rf"{MMDIT}\.(.*)\.adaLN_modulation\.1\.({KINDS})$")
SWAPPED = re.compile(rf"{MMDIT}\.(.*)\.adaLN_scale_shift\.({KINDS})$")


@dataclass(frozen=True)
class Origin:
    """Which tensor of the file a name stands for: all of it, or the third number `part`; `transposed` or not, with its
    halves `swapped` or not."""

    key: str
    part: int | None = None
    transposed: bool = False
    swapped: bool = False

    @property
    def as_stored(self) -> bool:
        """Whether its numbers lie in the file in one row, in our order."""
        return not (self.transposed or self.swapped)


class OpenClipLayout(Closing):
    """A `TensorSource` around another one."""

    def __init__(self, file: TensorSource, hidden: tuple[str, ...] = ()) -> None:
        """Tensors whose names begin with one of `hidden` are left out."""
        self._file = file
        self.path: Path = file.path
        self.metadata = file.metadata
        self.has_offsets = file.has_offsets
        self.origins: dict[str, Origin] = {}
        entries: dict[str, TensorEntry] = {}
        swapped = _shift_and_scale_alone(file.entries)
        renamed = restored_names(file.entries)
        for key, entry in file.entries.items():
            if key.startswith(hidden):
                continue
            named = [(renamed[key], Origin(key))] if key in renamed else _named(key, entry, swapped)
            for name, origin in named:
                self.origins[name] = origin
                entries[name] = _entry(entry, origin)
        self.entries: Mapping[str, TensorEntry] = entries

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor, on the CPU, in memory of its own or in `into`, see `TensorSource`."""
        origin = self.origins[name]
        if origin.swapped:
            return _swapped(self._file.read(origin.key))
        if isinstance(self._file, TensorFile):
            entry = self.entries[name]
            if origin.transposed:
                entry = replace(entry, shape=entry.shape[::-1])
                return self._file.read_entry(entry, origin.key).T.contiguous()
            return self._file.read_entry(entry, origin.key, into)
        if origin.part is None and not origin.transposed:
            return self._file.read(origin.key, into)
        tensor = self._file.read(origin.key)
        if origin.part is not None and tensor.numel() > 1:  # a single scale is that of all three
            rows = tensor.shape[0] // len(PARTS)
            tensor = tensor[origin.part * rows : (origin.part + 1) * rows].clone()
        return tensor.T.contiguous() if origin.transposed else tensor


def open_checkpoint(path: Path, with_optional: bool = False, optional_beside: bool = True) -> OpenClipLayout:
    """Open a checkpoint, a file or a folder in the diffusers layout; raises `CheckpointError` for a file that is not
    what its suffix says. A text encoder that its family can do without, inside of it or (`optional_beside`) in a file
    of its own, is there only if it is asked for."""
    file: TensorSource = DiffusersLayout.of_folder(path, with_optional) if path.is_dir() else open_tensors(path)
    if is_diffusers_file(file.entries):
        file = DiffusersLayout.of_file(file)
    hidden = () if with_optional else OPTIONAL_LEVELS
    return OpenClipLayout(with_external_encoders(file, with_optional and optional_beside), hidden)


class LayoutWriter:
    """A `TensorWriter` that is given the tensors as `OpenClipLayout` has them, in any order, and writes the original
    layout. Scales of fused weights lie side by side in one tensor, as their rows do.

    Raises `InvalidValueError` where the parts of one tensor are to be stored differently.
    """

    def __init__(self, target: Path, declared: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], room: int) -> None:
        joined: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for name, (dtype, shape) in declared.items():
            origin = original_name(name)
            shape = shape[::-1] if origin.transposed else shape
            before = joined.get(origin.key)
            if before is not None:
                if before[0] != dtype:
                    raise InvalidValueError(
                        f"{origin.key} holds the projections of query, key and value in one tensor, so all three or "
                        "none of them must be skipped. Change the skip patterns."
                    )
                shape = (before[1][0] + shape[0], *shape[1:])
            joined[origin.key] = (dtype, shape)
        self._writer = TensorWriter(target, joined, room)
        self._parts: dict[str, dict[int, Tensor]] = {}

    @property
    def metadata(self) -> dict[str, str]:
        """What goes into the header's `__metadata__`; set it before the end."""
        return self._writer.metadata

    @metadata.setter
    def metadata(self, metadata: dict[str, str]) -> None:
        self._writer.metadata = metadata

    def __enter__(self) -> "LayoutWriter":
        self._writer.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.__exit__(kind, error, trace)

    def write(self, name: str, tensor: Tensor) -> None:
        """Write one tensor, or keep it until the others of its fused tensor are there."""
        origin = original_name(name)
        if origin.part is None:
            tensor = _swapped(tensor) if origin.swapped else tensor
            self._writer.write(origin.key, tensor.T.contiguous() if origin.transposed else tensor)
            return
        parts = self._parts.setdefault(origin.key, {})
        parts[origin.part] = tensor
        if len(parts) == len(PARTS):
            self._writer.write(origin.key, torch.cat([parts[index] for index in range(len(PARTS))]))
            del self._parts[origin.key]


def original_name(name: str) -> Origin:
    """The tensor of the original layout that a name of `OpenClipLayout` stands for."""
    part = PART.match(name)
    if part is not None:
        kind = f".{part[4]}" if part[4] in SCALES else f"_{part[4]}"
        return Origin(f"{part[1]}.{part[2]}.in_proj{kind}", PARTS.index(part[3]))
    mmdit = MMDIT_PART.match(name)
    if mmdit is not None:
        return Origin(f"{mmdit[1]}.{mmdit[2]}.qkv.{mmdit[4]}", PARTS.index(mmdit[3]))
    swapped = SWAPPED.match(name)
    if swapped is not None:
        return Origin(f"{swapped[1]}.{swapped[2]}.adaLN_modulation.1.{swapped[3]}", swapped=True)
    bare = BARE_WEIGHT.match(name)
    if bare is not None:
        return Origin(name.removesuffix(".weight"), transposed=bare[2] == "text_projection")
    return Origin(name)


def _shift_and_scale_alone(entries: Mapping[str, TensorEntry]) -> frozenset[str]:
    """The modulations of SD3's transformer that make two vectors: the last block's for the text, the final layer's."""
    suffix = ".adaLN_modulation.1.weight"
    return frozenset(
        key.removesuffix(suffix)
        for key, entry in entries.items()
        if key.endswith(suffix) and len(entry.shape) == 2 and entry.shape[0] == 2 * entry.shape[1]
    )


def _swapped(tensor: Tensor) -> Tensor:
    """Halves of the first dimension in the other order; a single scale is that of both."""
    if tensor.numel() == 1:
        return tensor
    first, second = tensor.chunk(2)
    return torch.cat([second, first])


def _named(key: str, entry: TensorEntry, swapped: frozenset[str]) -> list[tuple[str, Origin]]:
    """The names under which a tensor of the file appears."""
    modulation = MODULATION.match(key)
    if modulation is not None and f"{modulation[1]}.{modulation[2]}" in swapped:
        return [(f"{modulation[1]}.{modulation[2]}.adaLN_scale_shift.{modulation[3]}", Origin(key, swapped=True))]
    fused = FUSED.match(key) or FUSED_SCALE.match(key) or MMDIT_FUSED.match(key)
    if fused is not None:
        return [(f"{fused[1]}.{fused[2]}.{part}.{fused[3]}", Origin(key, index)) for index, part in enumerate(PARTS)]
    bare = BARE.match(key)
    if bare is not None:
        return [(f"{key}.weight", Origin(key, transposed=bare[2] == "text_projection"))]
    return [(key, Origin(key))]


def _entry(entry: TensorEntry, origin: Origin) -> TensorEntry:
    if origin.transposed:
        return replace(entry, shape=entry.shape[::-1])
    if origin.part is None or not entry.shape or entry.shape[0] == 1:
        return entry
    rows = entry.shape[0] // len(PARTS)
    size = entry.size_bytes // len(PARTS)
    begin = entry.begin + origin.part * size
    return replace(entry, shape=(rows, *entry.shape[1:]), begin=begin, end=begin + size)
