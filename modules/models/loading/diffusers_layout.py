"""A model in the diffusers layout as if it were one file in the original one, so that nothing else knows of it.

Either a folder (`NAME/unet/...`, with weights in one file or several), or one file whose tensors begin with the names
of those folders (`unet.down_blocks...`). Each tensor is read where it lies when it is asked for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from modules.bounded import read_json_file
from modules.errors import CheckpointError
from modules.models.autoencoders.registry import autoencoder_type
from modules.models.families.diffusers_config import prediction_of
from modules.models.families.family import ModelFamily
from modules.models.families.ldm.parts import PREDICTION_KEY, V_KEY, ZERO_SNR_KEY
from modules.models.files.diffusers_folder import COMPONENTS, components_in, weight_files
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.diffusers_names import left_out_layer, original_names
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.folder_layout import Parts as Headers
from modules.models.names.row_map import Source
from modules.models.names.view import Place, View, Zeros

QUANTIZED = "quantization_config.json"
PROJECTION = re.compile(r"\.([qkv])_proj\.(\w+)$")


Parts = Mapping[str, Mapping[str, tuple[TensorSource, str]]]
"""By part of the model ("unet", "vae" ...) and name within it: the file with this tensor, and its name there."""


def opened_folder(folder: Path, families: Sequence[ModelFamily], with_optional: bool = False) -> View:
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
        headers = _headers(parts)
        layout = _layout_of(headers, families)
        if layout.denoiser not in names:
            raise CheckpointError(f"{folder.name}: {_foreign(names, families)}. {_known(families)}")
        for part, header in headers.items():
            if part in layout.checks:
                layout.checks[part](folder, part, header)
        prediction, ends_in_noise = prediction_of(folder, layout.is_flow)
        markers = (V_KEY,) * (prediction == "v_prediction") + (ZERO_SNR_KEY,) * ends_in_noise
        places = _places(folder, parts, layout, markers)
        return View(folder, places, stack.pop_all(), {PREDICTION_KEY: prediction} if prediction else None)


def as_original(file: TensorSource, families: Sequence[ModelFamily]) -> View:
    """An open file, which is closed with the view."""
    parts: dict[str, dict[str, tuple[TensorSource, str]]] = {}
    for key in file.entries:
        part, _, name = key.partition(".")
        if part in COMPONENTS and name:
            parts.setdefault(part, {})[name] = (file, key)
    markers = tuple(key for key in (V_KEY, ZERO_SNR_KEY) if key in file.entries)
    places = _places(file.path, parts, _layout_of(_headers(parts), families), markers)
    stack = ExitStack()
    stack.push(file)
    return View(file.path, places, stack, file.metadata)


def _headers(parts: Parts) -> dict[str, dict[str, TensorEntry]]:
    return {part: {name: file.entries[key] for name, (file, key) in tensors.items()} for part, tensors in parts.items()}


def _places(path: Path, parts: Parts, layout: FolderLayout, markers: Iterable[str]) -> dict[str, Place]:
    """By original names. `markers` are names of empty tensors that an original file would have (see `ldm.parts`)."""
    headers = _headers(parts)
    places: dict[str, Place] = {}
    for (part, name), named in original_names(headers, layout, _vae_names(headers)).items():
        file, key = parts[part][name]
        if named.name in layout.unused_if_identity and not _is_identity(file.read(key)):
            named = replace(named, name=layout.unused_if_identity[named.name])
        if named.name in places:
            raise CheckpointError(f"{path.name}: {key} and another tensor are both {named.name}.")
        places[named.name] = Place(file, key, named.shape)
    left_out = left_out_layer(headers, layout)
    zeros = Zeros(path, {**left_out, **{name: TensorEntry(torch.float32, (0,), 0, 0) for name in markers}})
    places |= {name: Place(zeros, name) for name in zeros.entries}
    return dict(sorted(places.items(), key=lambda item: _order(item[0])))


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
        facts = read_json_file(path)
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


def _layout_of(parts: Headers, families: Sequence[ModelFamily]) -> FolderLayout:
    """Asked from the most special family to the most general: the last is what none of the others is."""
    return next(family.folder for family in reversed(families) if family.folder.detects(parts))


def _vae_names(parts: Headers) -> Callable[[Header], Names] | None:
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
