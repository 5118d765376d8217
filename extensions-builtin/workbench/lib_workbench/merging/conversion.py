"""A checkpoint in another precision: what it would weigh and lose (a dry run), and saving it.

Both go through the file tensor by tensor, so a model much larger than the memory can be examined and converted.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from lib_workbench.merging.file_layout import (
    FileLayout,
    PlannedTensor,
    check_format,
    extras_of,
    fitted,
    layout_of,
    scale_key_in,
    scale_of,
    writer_in,
)
from modules.errors import CheckpointError, InvalidValueError
from modules.memory.formats.blocks import BlockFormat
from modules.memory.formats.format import FORMATS, Encoded, StorageFormat
from modules.memory.storage import StorageRules
from modules.models.families.family import ModelFamily
from modules.models.families.ldm.noise import V_KEY, ZERO_SNR_KEY
from modules.models.families.registry import denoiser_family_of, detect_family
from modules.models.files.catalogue import CheckpointInfo, sha256_of
from modules.models.files.coded_file import read_rotated
from modules.models.files.eight_bits import read_scale, refuse_non_finite, widened
from modules.models.files.gguf_file import read_packed
from modules.models.files.header import DECLARATIONS_KEY, PACKED_KEY
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.budget import plan_budget
from modules.models.loading.load_model import architecture_of
from modules.models.loading.matching import assign_tensors, layers_of
from modules.models.names.component import Component
from modules.models.names.fused import LayoutWriter
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.opening.parts import is_alone
from modules.models.placing import PlacingRules, Way, placed
from modules.system.atomic_files import write_atomic
from modules.version import PROGRAM_VERSION

Progress = Callable[[int, int], None]
METADATA_KEY = "featherweight"
METADATA_BYTES_A_TENSOR = 400
MARKERS = (V_KEY, ZERO_SNR_KEY)
"""Tensors that no module needs and that say what the model is."""


@dataclass(frozen=True)
class TensorReport:
    """One tensor: its name in the file, the format it gets (None: it stays), bytes, and the error of its weights.

    `error` is relative: the norm of the difference by the norm of the weights; 0 for tensors that stay.
    """

    name: str
    component: str
    shape: tuple[int, ...]
    storage: str | None
    bytes_16: int
    bytes_stored: int
    error: float = 0.0
    saturated: int = 0


@dataclass
class PrecisionReport:
    """Report on what a storage format makes of a checkpoint. `notices` are sentences for the user."""

    checkpoint: str
    family: str
    storage: str
    tensors: list[TensorReport] = field(default_factory=list)
    notices: tuple[str, ...] = ()

    def components(self) -> tuple[str, ...]:
        """The parts of the model, in the order of the file."""
        return tuple(dict.fromkeys(tensor.component for tensor in self.tensors))

    def bytes_of(self, component: str | None = None) -> tuple[int, int]:
        """Bytes in 16 bit and as stored, of one part or of all."""
        chosen = [tensor for tensor in self.tensors if component in (None, tensor.component)]
        return sum(tensor.bytes_16 for tensor in chosen), sum(tensor.bytes_stored for tensor in chosen)

    def worst(self, count: int = 10) -> list[TensorReport]:
        """The stored tensors with the largest relative errors."""
        return sorted((t for t in self.tensors if t.storage), key=lambda t: t.error, reverse=True)[:count]

    @property
    def mean_error(self) -> float:
        """The mean relative error of all stored tensors, each counted by its number of weights."""
        stored = [(tensor.error, torch.Size(tensor.shape).numel()) for tensor in self.tensors if tensor.storage]
        weights = sum(count for _, count in stored)
        return sum(error * count for error, count in stored) / weights if weights else 0.0

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        before, after = self.bytes_of()
        return {
            "checkpoint": self.checkpoint,
            "family": self.family,
            "storage": self.storage,
            "bytes_16": before,
            "bytes_stored": after,
            "mean_error": self.mean_error,
            "saturated": sum(tensor.saturated for tensor in self.tensors),
            "notices": list(self.notices),
            "tensors": [vars(tensor) for tensor in self.tensors],
        }


def report_precision(
    info: CheckpointInfo,
    configs_dir: Path,
    rules: StorageRules,
    text_encoders: bool = True,
    progress: Progress = lambda done, total: None,
    budget_bytes: int | None = None,
) -> PrecisionReport:
    """Encode every tensor as loading would, measure, and keep nothing.

    The autoencoder stays in 16 bit, as when loading. Encoders that a family can do without count where they
    are in the checkpoint itself. With `budget_bytes` each layer gets a format of its own, see
    `modules.models.loading.budget`.
    Raises `CheckpointError` as loading does, and `InvalidValueError` for a budget that nothing fits.
    """
    with open_checkpoint(info.path, with_optional=True, optional_beside=False) as file:
        family, planned, said = plan_with_budget(file, info, configs_dir, rules, text_encoders, budget_bytes)
        report = PrecisionReport(info.name, family.label, _label(rules, budget_bytes))
        report.notices = (*said, *family.notes_on_converting(file.entries))
        for index, item in enumerate(planned):
            tensor, encoded = encode_planned(file, item)
            report.tensors.append(_measure(item, tensor, encoded))
            progress(index + 1, len(planned))
    return report


def save_as(
    info: CheckpointInfo,
    configs_dir: Path,
    rules: StorageRules,
    target: Path,
    text_encoders: bool = True,
    progress: Progress = lambda done, total: None,
    budget_bytes: int | None = None,
    layout: str = "",
    alone: bool = False,
) -> PrecisionReport:
    """Write the checkpoint to `target` in the format of `rules`, in the original layout, atomically.

    With fp16, bf16 or fp32 all tensors are cast; with an 8-bit format those that the rules take, the rest becomes
    fp16. Scales stand next to their weights as `NAME.scale_weight` (float32, one per row). The metadata holds format,
    source hash, program version and the error of every stored tensor. What is in 8 bits already stays as it is, so
    load -> save -> load is bit-equal. Encoders that a family can do without are
    kept where they are in the checkpoint itself. `budget_bytes`: see `report_precision`. `layout` is a `FileLayout`;
    "": as the target's name says (.gguf, else our own). `alone`: text encoders and a VAE in files near it stay out of
    the result. A YAML next to the source is copied next to the target. Raises `CheckpointError`, `OutputError`, and
    `InvalidValueError` when target and source are the same file.
    """
    if target.resolve() == info.path.resolve():
        raise InvalidValueError(f"{target.name} is the checkpoint that is being read. Choose another name.")
    chosen = layout_of(target, layout)
    check_format(chosen, rules.storage, budget_bytes is not None)
    with open_checkpoint(info.path, with_optional=True, optional_beside=False, alone=alone) as file:
        family, planned, said = plan_with_budget(file, info, configs_dir, rules, text_encoders, budget_bytes)
        planned = fitted(planned, file, chosen)
        report = PrecisionReport(info.name, family.label, _label(rules, budget_bytes))
        report.notices = (*said, *family.notes_on_converting(file.entries))
        markers = [name for name in MARKERS if name in file.entries and chosen is not FileLayout.GGUF]
        extras, rest = extras_of(planned, file, chosen), offload_dtype(rules.storage)
        shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
        for item in planned:
            shapes |= declare_planned(file, item, rest, chosen)
        shapes |= {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in extras.tensors.items()}
        shapes |= {name: (file.entries[name].dtype, file.entries[name].shape) for name in markers}
        room = METADATA_BYTES_A_TENSOR * len(planned) + 4096
        with LayoutWriter(target, shapes, room, writer_in(chosen, extras.packed)) as writer:
            for index, item in enumerate(planned):
                tensor, encoded = encode_planned(file, item)
                key = item.assignment.original_key
                writer.write(key, tensor.to(shapes[key][0]) if encoded is None else encoded.data)
                scale = None if encoded is None else scale_of(encoded, chosen)
                if scale is not None:
                    writer.write(scale_key_in(chosen, key), scale)
                report.tensors.append(_measure(item, tensor, encoded))
                progress(index + 1, len(planned))
            stored = {tensor.name: tensor.storage for tensor in report.tensors if tensor.storage is not None}
            extras = extras_of(planned, file, chosen, stored)
            for name, tensor in extras.tensors.items():
                writer.write(name, tensor)
            writer.metadata = {**_metadata(file, info, report), **extras.metadata}
            for name in markers:
                writer.write(name, file.read(name))
    yaml = target.with_suffix(".yaml")
    if info.config_path is not None and not yaml.exists():
        write_atomic(yaml, info.config_path.read_bytes())
    return report


def plan_with_budget(
    file: TensorSource,
    info: CheckpointInfo,
    configs_dir: Path,
    rules: StorageRules,
    text_encoders: bool,
    budget_bytes: int | None,
) -> tuple[ModelFamily, list[PlannedTensor], tuple[str, ...]]:
    """See `plan_tensors`; with a budget each layer gets a format of its own, and a sentence says which and why."""
    if budget_bytes is None:
        return *plan_tensors(file, info, configs_dir, rules, text_encoders), ()
    family, components = _parts_of(file, info, configs_dir)

    def rules_of(name: str) -> StorageRules | None:
        component = next(item for item in components if item.name == name)
        return component.rules(rules) if _takes(name, text_encoders) else None

    budget = plan_budget(file, assign_tensors(file, components, family.is_ignored), rules_of, budget_bytes)
    family, planned = plan_tensors(file, info, configs_dir, rules, text_encoders, budget.chosen)
    return family, planned, (budget.explained(),)


def _label(rules: StorageRules, budget_bytes: int | None) -> str:
    return rules.storage if budget_bytes is None else f"mixed formats within {budget_bytes / 1e9:g} GB"


def _takes(component: str, text_encoders: bool) -> bool:
    return component != "vae" and (text_encoders or not component.startswith("text_encoder"))


def _parts_of(file: TensorSource, info: CheckpointInfo, configs_dir: Path) -> tuple[ModelFamily, tuple[Component, ...]]:
    """The family of a file, and the parts of the model that it fills."""
    alone = is_alone(file.entries)
    family = (denoiser_family_of(file.entries) if alone else None) or detect_family(file)
    architecture = architecture_of(file, info, family, configs_dir)
    if alone:
        return family, family.denoiser.build(file.entries, architecture)
    folders = (info.path.parent, info.path.parent.parent, configs_dir.parent)
    return family, family.components(file.entries, architecture, folders)


def plan_tensors(
    file: TensorSource,
    info: CheckpointInfo,
    configs_dir: Path,
    rules: StorageRules,
    text_encoders: bool,
    chosen: Mapping[str, Mapping[str, str | None]] | None = None,
) -> tuple[ModelFamily, list[PlannedTensor]]:
    """The family, and what becomes of each tensor that its modules need; `chosen`: formats by component and our name.
    Raises `CheckpointError` as loading does."""
    family, components = _parts_of(file, info, configs_dir)
    wide = FORMATS.get(rules.storage).dtype.itemsize > 1
    by_component: dict[str, PlacingRules] = {}
    for component in components:
        own = component.rules(rules) if _takes(component.name, text_encoders) and not wide else None
        if own is not None and chosen is not None:
            own = replace(own, chosen=chosen.get(component.name, {}))
        by_component[component.name] = PlacingRules(offload_dtype(rules.storage), own, keeps=not wide)
    planned = []
    for assignment, layer in layers_of(file, assign_tensors(file, components, family.is_ignored)):
        own_rules = by_component[layer.component]
        found = placed(file.entries[assignment.original_key], layer, own_rules)
        is_kept, is_checked = found.way is Way.KEPT, own_rules.storage is not None
        planned.append(PlannedTensor(assignment, found.format, stays_8_bit=is_kept, must_be_finite=is_checked))
    return family, planned


def offload_dtype(storage: str) -> torch.dtype:
    """Return what tensors become that are not stored in 8 bits."""
    chosen = FORMATS.get(storage).dtype
    return chosen if chosen.itemsize > 1 else torch.float16


def encode_planned(file: TensorSource, item: PlannedTensor) -> tuple[Tensor, Encoded | None]:
    """The tensor as it is in the file, widened where it is in 8 bits, and as it is to be stored."""
    key = item.assignment.original_key
    raw = file.read(key)
    if item.stays_8_bit and file.entries[key].packed is not None:
        return raw, Encoded(read_packed(file.path, file.entries[key], key))
    if item.stays_8_bit and file.entries[key].rotated is not None:
        return raw, read_rotated(file.path, file.entries[key], key)
    if raw.element_size() == 1 or (item.must_be_finite and item.storage is None):
        refuse_non_finite(file, key, raw)
    scale = read_scale(file, item.assignment.scale_key, key, tuple(raw.shape))
    is_narrow = raw.element_size() == 1 and (raw.is_floating_point() or scale is not None)
    wide = widened(raw, scale) if is_narrow else raw
    if item.stays_8_bit:
        return wide, Encoded(raw, scale)
    if item.storage is None:
        return wide, None
    try:
        return wide, item.storage.encode(wide)
    except InvalidValueError as error:
        raise CheckpointError(f"{file.path.name}: {key} cannot be stored as {item.storage.name}: {error}") from error


def _measure(item: PlannedTensor, tensor: Tensor, encoded: Encoded | None) -> TensorReport:
    bytes_16 = tensor.numel() * 2 if tensor.is_floating_point() else tensor.numel() * tensor.element_size()
    name, component = item.assignment.original_key, item.assignment.component.name
    if encoded is None or item.storage is None:
        return TensorReport(name, component, tuple(tensor.shape), None, bytes_16, bytes_16)
    stored = encoded.data.numel() * encoded.data.element_size()
    if encoded.scale is not None:
        stored += encoded.scale.numel() * 4
    storage = encoded.storage or item.storage
    error = 0.0 if item.stays_8_bit else _relative_error(storage, tensor, encoded)
    shape = tuple(tensor.shape)
    return TensorReport(name, component, shape, storage.name, bytes_16, stored, error, encoded.saturated)


def _relative_error(storage: StorageFormat, tensor: Tensor, encoded: Encoded) -> float:
    weight = tensor.float()
    decoded = storage.decode(encoded.data, encoded.scale, torch.empty(tensor.shape))
    norm = float(weight.norm())
    return float(decoded.sub_(weight).norm()) / norm if norm else 0.0


def declare_planned(
    file: TensorSource, item: PlannedTensor, rest: torch.dtype, layout: FileLayout = FileLayout.OWN
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Declare what will be written for a tensor: itself, and its scale."""
    key = item.assignment.original_key
    entry = file.entries[key]
    if item.storage is None:
        floating = entry.dtype.is_floating_point or item.assignment.scale_key is not None
        if layout is FileLayout.GGUF and floating and len(entry.shape) < 2:
            rest = torch.float32  # as other writers of GGUF have biases and norms
        return {key: (rest if floating else entry.dtype, entry.shape)}
    if isinstance(item.storage, BlockFormat):
        return {key: (torch.uint8, (entry.shape[0], item.storage.row_bytes(entry.shape)))}
    declared = {key: (item.storage.dtype, entry.shape)}
    scale_key, side = scale_key_in(layout, key), ((1,) if layout is FileLayout.COMFYUI else ())
    if item.assignment.scale_key and item.stays_8_bit:
        scale = file.entries[item.assignment.scale_key]
        declared[scale_key] = (torch.float32, (torch.Size(scale.shape).numel(), *side))
    elif item.storage.scaled:
        declared[scale_key] = (torch.float32, (*entry.shape[:1], *side))
    return declared


def scale_key_of(key: str) -> str:
    """Return what the scale of a weight is called in the files that we write."""
    return scale_key_in(FileLayout.OWN, key)


def _metadata(file: TensorSource, info: CheckpointInfo, report: PrecisionReport) -> dict[str, str]:
    ours = {
        "storage": report.storage,
        "source": info.name,
        "source_sha256": info.sha256 or sha256_of(info.path),
        "version": PROGRAM_VERSION,
        "errors": {tensor.name: float(f"{tensor.error:.3g}") for tensor in report.tensors if tensor.storage},
    }
    formats_of_source = (DECLARATIONS_KEY, PACKED_KEY)
    others = {key: text for key, text in file.metadata.items() if key not in formats_of_source}
    return {**others, METADATA_KEY: json.dumps(ours)}
