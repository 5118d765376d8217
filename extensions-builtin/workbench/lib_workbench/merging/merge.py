"""A merge from beginning to end: hash the models, read, put together, convert, write. Tensor by tensor, so that the
models may be much larger than the memory; the file appears when it is complete, or not at all."""

import logging
import math
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lib_workbench.merging.conversion import (
    METADATA_BYTES_A_TENSOR,
    declare_planned,
    encode_planned,
    offload_dtype,
    plan_tensors,
    scale_key_of,
)
from lib_workbench.merging.file_layout import FileLayout, PlannedTensor, extras_of, fitted
from lib_workbench.merging.merged import MergedSource
from lib_workbench.merging.recipe import merge_metadata
from lib_workbench.merging.request import MergeRequest, refuse_taken
from lib_workbench.merging.sources import BakedSource, WideSource
from modules.errors import CheckpointError, InvalidValueError, OutputError
from modules.memory.formats.format import FORMATS
from modules.memory.storage import StorageRules
from modules.models.autoencoders.source import open_vae
from modules.models.families.registry import FAMILIES
from modules.models.files.catalogue import CheckpointInfo
from modules.models.files.eight_bits import LEFT_OVER, SCALE_NAMES
from modules.models.files.tensor_source import TensorSource
from modules.models.names.fused import LayoutWriter, original_name
from modules.models.opening.checkpoint import open_checkpoint
from modules.system.atomic_files import output_error, write_atomic
from modules.system.texts import page_text

log = logging.getLogger(__name__)

Progress = Callable[[float, float, str], None]
"""done, total (bytes), and what happens now; what it raises ends the merge without a trace."""
Declared = dict[str, tuple[torch.dtype, tuple[int, ...]]]
METADATA_SLACK_BYTES = 1024
LISTED_NAMES = 3


@dataclass
class MergeResult:
    """Outcome of a merge. `notices` are sentences for the user."""

    path: Path
    tensors: int
    size_bytes: int
    seconds: float
    notices: list[str] = field(default_factory=list)


def merge(
    request: MergeRequest,
    configs_dir: Path,
    rules: StorageRules,
    hashed: Callable[[CheckpointInfo, Callable[[int], None]], CheckpointInfo],
    progress: Progress = lambda done, total, phase: None,
    text_encoders: bool = True,
) -> MergeResult:
    """Merge and write the result.

    `rules` say how the result is stored, as for a conversion (`text_encoders`: those too). `hashed` gives a model with
    its sha256, telling how many bytes it has read; or as it is, where no hashes are wanted. Raises `CheckpointError`
    for files that are damaged or do not fit together, `InvalidValueError`, `OutputError`, and whatever `progress`
    raises; nothing is left behind then.
    """
    began = time.monotonic()
    refuse_taken(request)
    with ExitStack() as stack:
        work = _open(request, rules, stack)
        planned = _plan(work, request, configs_dir, rules, text_encoders)
        declared, names = _declare(work.source, planned, rules, request.discard)
        for _, family in FAMILIES.items():
            work.notices.extend(family.notes_on_merging(work.files, names))
        size = sum(torch.Size(shape).numel() * dtype.itemsize for dtype, shape in declared.values())
        _refuse_full_disk(request.target, size)
        models = _hash_models(request, hashed, progress, size)
        kept = [planned[name] for name in names if name in planned]
        metadata = merge_metadata(request, models.infos, [file.metadata for file in work.files], work.extra_channels)
        room = sum(len(name) * 6 + len(value.encode()) * 6 for name, value in metadata.items()) + METADATA_SLACK_BYTES
        room += METADATA_BYTES_A_TENSOR * len(kept)
        yaml = _YamlBeside(request)
        infinite: list[str] = []
        stored: dict[str, str] = {}
        with yaml, LayoutWriter(request.target, declared, room) as writer:
            done = 0
            for index, name in enumerate(names):
                progress(
                    models.read_bytes + done, models.read_bytes + size, page_text(f"{index} of {len(names)} tensors")
                )
                done += _write(writer, work.source, name, planned.get(name), declared, infinite, stored)
            progress(models.read_bytes + done, models.read_bytes + size, page_text("finishing the file"))
            writer.metadata = {**metadata, **extras_of(kept, work.source, FileLayout.OWN, stored).metadata}
            refuse_taken(request)  # again: a long merge leaves time for another file of that name
            yaml.write()
    result = MergeResult(
        request.target, len(names), request.target.stat().st_size, time.monotonic() - began, work.notices
    )
    if infinite:
        result.notices.append(
            page_text(
                f"{len(infinite)} tensors have values that are not finite as {request.storage} ({_some(infinite)}): "
                f"merge again with bf16 or fp32, or check for a damaged model."
            )
        )
    log.info("Merged %s in %.1f s", request.target.name, result.seconds)
    return result


@dataclass(frozen=True)
class _Work:
    """The opened files: `source` is what is written, before it is converted."""

    source: TensorSource
    files: Sequence[TensorSource]
    extra_channels: int | None
    notices: list[str]


@dataclass(frozen=True)
class _Hashed:
    infos: tuple[CheckpointInfo, ...]
    read_bytes: int  # how much was read for it: counts as work that is done


def _open(request: MergeRequest, rules: StorageRules, stack: ExitStack) -> _Work:
    files: list[TensorSource] = [stack.enter_context(_opened(info.path)) for info in request.models]
    notices: list[str] = []
    extra_channels = None
    source: TensorSource = files[0]
    if len(files) > 1:
        merged = MergedSource(request.method, request.multiplier, *(WideSource(file) for file in files))
        extra_channels = merged.extra_channels
        if merged.kept:
            notices.append(
                page_text(
                    f"{len(merged.kept)} tensors are those of {files[0].path.name}, because another model lacks them: "
                    f"{_some(merged.kept)}."
                )
            )
        source = merged
    elif not _is_narrow(rules):
        source = WideSource(source)  # in 8 bits what is in 8 bits already stays so, and is not rounded twice
    if request.vae is not None:
        vae = stack.enter_context(open_vae(request.vae.path))
        _refuse_other_vae(source, vae)
        source = BakedSource(source, WideSource(vae))
    return _Work(source, files, extra_channels, notices)


def _opened(path: Path) -> TensorSource:
    """Open it with encoders that a family can do without, where they are in the checkpoint itself."""
    return open_checkpoint(path, with_optional=True, optional_beside=False)


def _is_narrow(rules: StorageRules) -> bool:
    return FORMATS.get(rules.storage).dtype.itemsize == 1


def _refuse_other_vae(source: TensorSource, vae: TensorSource) -> None:
    if not vae.entries:
        raise CheckpointError(f"{vae.path.name} holds no VAE. Choose a VAE file, or a checkpoint that has one.")
    for name, entry in vae.entries.items():
        own = source.entries.get(name)
        if own is not None and own.shape != entry.shape:
            raise CheckpointError(
                f"The VAE {vae.path.name} does not fit {source.path.name}: {name} is {list(entry.shape)}, not "
                f"{list(own.shape)}. Choose a VAE of the model's family."
            )


def _plan(
    work: _Work, request: MergeRequest, configs_dir: Path, rules: StorageRules, text_encoders: bool
) -> dict[str, PlannedTensor]:
    """For an 8-bit result: what becomes of each tensor that the model's modules need."""
    if not _is_narrow(rules):
        return {}
    _, planned = plan_tensors(work.source, request.models[0], configs_dir, rules, text_encoders)
    return {item.assignment.original_key: item for item in fitted(planned, work.source, FileLayout.OWN)}


def _declare(
    source: TensorSource,
    planned: Mapping[str, PlannedTensor],
    rules: StorageRules,
    discard: re.Pattern[str] | None,
) -> tuple[Declared, list[str]]:
    """Declare what will be written, scales included, and the names of the source's tensors among it."""
    rest = offload_dtype(rules.storage)
    names = [
        name
        for name in source.entries
        if not name.endswith((*SCALE_NAMES, *LEFT_OVER)) and not (discard and discard.search(original_name(name).key))
    ]
    if not names:
        raise InvalidValueError(
            f"Discard weights: {discard.pattern if discard else ''!r} is found in every name, so nothing would be left."
        )
    declared: Declared = {}
    for name in names:
        if name in planned:
            declared |= declare_planned(source, planned[name], rest)
        else:
            entry = source.entries[name]
            # Schedules (no dot in their names) are a thousand numbers that other programs compute with.
            cast = entry.dtype.is_floating_point and "." in name
            declared[name] = (rest if cast else entry.dtype, entry.shape)
    return declared, names


def _write(
    writer: LayoutWriter,
    source: TensorSource,
    name: str,
    planned: PlannedTensor | None,
    declared: Declared,
    infinite: list[str],
    stored: dict[str, str],
) -> int:
    """Read, convert and write a tensor, and its scale; returns the bytes written. Nothing of it stays in memory.

    `infinite` gets the names of tensors that are not finite as written, `stored` the format of each encoded weight."""
    dtype = declared[name][0]
    tensor, encoded = (source.read(name), None) if planned is None else encode_planned(source, planned)
    written = {name: tensor.to(dtype) if encoded is None else encoded.data}
    if planned is not None and planned.storage is not None and encoded is not None:
        stored[name] = (encoded.storage or planned.storage).name
    if encoded is not None and encoded.scale is not None:
        written[scale_key_of(name)] = encoded.scale
    for key, content in written.items():
        if _became_infinite(content):
            infinite.append(key)
        writer.write(key, content)
    return sum(content.numel() * content.element_size() for content in written.values())


def _became_infinite(tensor: Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.element_size() == 1 or tensor.numel() == 0:
        return False
    return not all(math.isfinite(extreme) for extreme in torch.aminmax(tensor))  # no copies; NaN is the extreme of all


def _hash_models(
    request: MergeRequest,
    hashed: Callable[[CheckpointInfo, Callable[[int], None]], CheckpointInfo],
    progress: Progress,
    size: int,
) -> _Hashed:
    """The recipe names its models by hash; without a recipe none is computed."""
    if not (request.save_metadata and request.add_recipe):
        return _Hashed(request.models, 0)
    total = sum(info.size_bytes for info in request.models if not info.sha256)
    before = 0
    infos = []
    for info in request.models:
        text = page_text(f"hashing {info.name}")
        infos.append(
            hashed(info, lambda count, b=before, text=text: progress(b + count, total + size, text))  # type: ignore[misc]
        )
        before += 0 if info.sha256 else info.size_bytes
    return _Hashed(tuple(infos), total)


def _refuse_full_disk(target: Path, size: int) -> None:
    folder = next(path for path in target.parents if path.is_dir())
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise output_error(target.name, folder, error) from error
    if free < size:
        raise OutputError(
            f"{target.name} needs {size / 1e9:.2f} GB, but in {folder} only {free / 1e9:.2f} GB are free. Free some "
            "space, or choose a smaller format."
        )


class _YamlBeside:
    """The YAML next to the result: written before the result appears, gone again if it does not."""

    def __init__(self, request: MergeRequest) -> None:
        self._source = request.config_path
        self._path = request.target.with_suffix(".yaml")
        self._is_ours = False

    def write(self) -> None:
        """Copy it, if there is one."""
        if self._source is None or self._path.exists():
            return
        try:
            write_atomic(self._path, self._source.read_bytes())
        except OSError as error:
            raise output_error(self._path.name, self._path.parent, error) from error
        self._is_ours = True

    def __enter__(self) -> "_YamlBeside":
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None and self._is_ours:
            self._path.unlink(missing_ok=True)


def _some(names: Sequence[str]) -> str:
    more = f" ... (+{len(names) - LISTED_NAMES})" if len(names) > LISTED_NAMES else ""
    return ", ".join(names[:LISTED_NAMES]) + more
