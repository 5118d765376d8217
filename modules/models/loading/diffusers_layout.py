"""A model in the diffusers layout as if it were one file in the original one, so that nothing else knows of it.

Either a folder (`NAME/unet/...`, with weights in one file or several), or one file whose tensors begin with the names
of those folders (`unet.down_blocks...`). Each tensor is read where it lies when it is asked for.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.autoencoders.registry import autoencoder_type
from modules.models.families.diffusers_config import prediction_of
from modules.models.families.family import ModelFamily
from modules.models.families.ldm.parts import PREDICTION_KEY, V_KEY, ZERO_SNR_KEY
from modules.models.files.diffusers_folder import COMPONENTS, components_in, weight_files
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.diffusers_names import Named, left_out_layer, original_names
from modules.models.names.folder_layout import FolderLayout, Header, Names, Parts
from modules.models.names.row_map import Source

QUANTIZED = "quantization_config.json"
PROJECTION = re.compile(r"\.([qkv])_proj\.(\w+)$")


@dataclass(frozen=True)
class _Origin:
    """Which tensor of which file; None: zeros, which lie in no file."""

    file: TensorSource | None
    key: str


class DiffusersLayout(Closing):
    """A `TensorSource` over the files of one model, by part ("unet", "vae" ...). Closes them.

    `markers` are names of empty tensors that an original file would have (see `ldm_parts`).
    """

    def __init__(
        self,
        path: Path,
        parts: Mapping[str, Mapping[str, tuple[TensorSource, str]]],
        stack: ExitStack,
        families: Sequence[ModelFamily],
        markers: tuple[str, ...] = (),
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.path = path
        self.metadata: Mapping[str, str] = metadata or {}
        self._stack = stack
        headers = {
            part: {name: file.entries[key] for name, (file, key) in tensors.items()} for part, tensors in parts.items()
        }
        layout = _layout_of(headers, families)
        self.has_offsets = True  # of those entries that do not say that they have none
        self._origins: dict[str, _Origin] = {}
        entries: dict[str, TensorEntry] = {}
        for (part, name), named in original_names(headers, layout, _vae_names(headers)).items():
            file, key = parts[part][name]
            if named.name in layout.unused_if_identity and not _is_identity(file.read(key)):
                named = replace(named, name=layout.unused_if_identity[named.name])
            own = headers[part][name]
            is_known = own.has_offset and file.has_offsets
            entry = replace(own, shape=named.shape, file=file.path, has_offset=is_known)
            self._add(entries, named, entry, _Origin(file, key))
        for name, entry in left_out_layer(headers, layout).items():
            self._add(entries, Named(name, entry.shape), entry, _Origin(None, name))
        for name in markers:
            self._add(entries, Named(name, (0,)), TensorEntry(torch.float32, (0,), 0, 0), _Origin(None, name))
        self.entries: Mapping[str, TensorEntry] = dict(sorted(entries.items(), key=lambda item: _order(item[0])))

    def _add(self, entries: dict[str, TensorEntry], named: Named, entry: TensorEntry, origin: _Origin) -> None:
        if named.name in entries:
            raise CheckpointError(f"{self.path.name}: {origin.key} and another tensor are both {named.name}.")
        entries[named.name] = entry
        self._origins[named.name] = origin

    @classmethod
    def of_folder(cls, folder: Path, families: Sequence[ModelFamily], with_optional: bool = False) -> "DiffusersLayout":
        """Open a folder; encoders that can be left out only where asked for. Raises `CheckpointError` for missing or
        damaged files, and settings at odds with them."""
        optional = {part for family in families for part in family.folder.optional_parts}
        _refuse_foreign_codes(folder)
        names = [name for name in components_in(folder) if with_optional or name not in optional]
        denoisers = list(dict.fromkeys(family.folder.denoiser for family in families))
        if not any(denoiser in names for denoiser in denoisers):
            raise CheckpointError(f"{folder.name}: has no folder {' or '.join(denoisers)}. {_known(families)}")
        with ExitStack() as stack:
            parts = {part: dict(_tensors_in(folder / part, stack)) for part in names}
            headers = {part: {name: file.entries[key] for name, (file, key) in p.items()} for part, p in parts.items()}
            layout = _layout_of(headers, families)
            if layout.denoiser not in names:
                raise CheckpointError(f"{folder.name}: {_foreign(names, families)}. {_known(families)}")
            for part, header in headers.items():
                if part in layout.checks:
                    layout.checks[part](folder, part, header)
            prediction, ends_in_noise = prediction_of(folder, layout.is_flow)
            markers = (V_KEY,) * (prediction == "v_prediction") + (ZERO_SNR_KEY,) * ends_in_noise
            metadata = {PREDICTION_KEY: prediction} if prediction else {}
            return cls(folder, parts, stack.pop_all(), families, markers, metadata)

    @classmethod
    def of_file(cls, file: TensorSource, families: Sequence[ModelFamily]) -> "DiffusersLayout":
        """View an open file, which is closed with the view."""
        parts: dict[str, dict[str, tuple[TensorSource, str]]] = {}
        for key in file.entries:
            part, _, name = key.partition(".")
            if part in COMPONENTS and name:
                parts.setdefault(part, {})[name] = (file, key)
        stack = ExitStack()
        stack.push(file)
        markers = tuple(key for key in (V_KEY, ZERO_SNR_KEY) if key in file.entries)
        return cls(file.path, parts, stack, families, markers, file.metadata)

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._stack.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor in its original shape, see `TensorSource`."""
        entry, origin = self.entries[name], self._origins[name]
        if origin.file is None:
            zeros = torch.empty(entry.shape, dtype=entry.dtype) if into is None else into
            return zeros.zero_()
        there = origin.file.entries[origin.key].shape
        tensor = origin.file.read(origin.key, None if into is None else into.reshape(there))
        return tensor.reshape(entry.shape)


def _refuse_foreign_codes(folder: Path) -> None:
    """Raises `CheckpointError` for a folder whose weights only SDNQ's own package decodes."""
    for path in (folder / QUANTIZED, *sorted(folder.glob(f"*/{QUANTIZED}")), *sorted(folder.glob("*/config.json"))):
        if path.is_file() and settings_say(path, "sdnq"):
            raise CheckpointError(
                f"{folder.name}: is quantized by SDNQ, whose weights only that package decodes. Use the folder that it "
                "was made from, or a copy in 16 bits, fp8 or GGUF."
            )


def settings_say(path: Path, method: str) -> bool:
    """Whether a JSON file names this method of quantization. One that cannot be read says nothing."""
    try:
        facts = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    facts = facts.get("quantization_config", facts) if isinstance(facts, dict) else {}
    return isinstance(facts, dict) and str(facts.get("quant_method", "")).lower() == method


def _order(name: str) -> tuple[str, int]:
    """Sorts names so that what one tensor of the original layout holds stands together: query, key, value."""
    source = Source.of(name)
    if source.rows is not None:
        return source.key, source.rows[0][0]
    match = PROJECTION.search(name)
    return (name, 0) if match is None else (f"{name[: match.start()]}.in_proj.{match[2]}", "qkv".index(match[1]))


def is_diffusers_file(header: Header, families: Sequence[ModelFamily]) -> bool:
    """Whether the names in a file are those of the diffusers layout, behind the name of their component."""
    layouts = [family.folder for family in families]
    return any(all(f"{layout.denoiser}.{sign}" in header for sign in layout.signs) for layout in layouts)


def _layout_of(parts: Parts, families: Sequence[ModelFamily]) -> FolderLayout:
    """Asked from the most special family to the most general: the last is what none of the others is."""
    return next(family.folder for family in reversed(families) if family.folder.detects(parts))


def _vae_names(parts: Parts) -> Callable[[Header], Names] | None:
    found = autoencoder_type(parts.get("vae", {}))
    return None if found is None else found[0].diffusers_names


def _foreign(parts: Sequence[str], families: Sequence[ModelFamily]) -> str:
    """What is said of a denoiser that no family knows."""
    known = {family.folder.denoiser: family.folder.title for family in reversed(families)}
    return " and ".join(f"its {part} is not that of {title}" for part, title in known.items() if part in parts)


def _known(families: Sequence[ModelFamily]) -> str:
    titles = ", ".join(family.folder.title for family in families)
    return f"Known are {titles}; other models in the diffusers layout are not."


def _tensors_in(part: Path, stack: ExitStack) -> Iterator[tuple[str, tuple[TensorSource, str]]]:
    """Every tensor of a component's files."""
    known: dict[str, str] = {}
    for path in weight_files(part):
        file = stack.enter_context(open_tensors(path))
        for name in file.entries:
            if name in known:
                raise CheckpointError(
                    f"{part.parent.name}/{part.name}: {name} is in {known[name]} and in {path.name}. "
                    "Download the folder again."
                )
            known[name] = path.name
            yield name, (file, name)


def _is_identity(weight: Tensor) -> bool:
    """Whether a projection changes nothing, as where diffusers was given a file without one."""
    return weight.ndim == 2 and torch.equal(weight.float(), torch.eye(*weight.shape))
