"""A model in the diffusers layout as if it were one file in the original one, so that nothing else knows of it.

Either a folder (`NAME/unet/...`, with weights in one file or several), or one file whose tensors begin with the names
of those folders (`unet.down_blocks...`). Each tensor is read where it lies when it is asked for.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from modules.errors import CheckpointError
from modules.models.autoencoders.registry import autoencoder_type
from modules.models.detection.families import FAMILIES as FAMILY_SIGNS
from modules.models.detection.families import TRANSFORMER, folder_family
from modules.models.detection.kinds import Kind, other_of, other_of_class
from modules.models.families.diffusers_config import prediction_of
from modules.models.families.family import ModelFamily
from modules.models.families.ldm.noise import PREDICTION_KEY, V_KEY, ZERO_SNR_KEY
from modules.models.families.registry import FAMILIES, all_families
from modules.models.files.diffusers_folder import COMPONENTS, classes_in, components_in, weight_files
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import open_tensors
from modules.models.names.diffusers_names import left_out_layer, original_names
from modules.models.names.diffusers_settings import settings_of
from modules.models.names.folder_layout import FolderLayout, Header, Names
from modules.models.names.folder_layout import Parts as Headers
from modules.models.names.row_map import Source
from modules.models.names.view import Draft, Place, Zeros, entry_of
from modules.system.bounded import read_json_file

QUANTIZED = "quantization_config.json"
PROJECTION = re.compile(r"\.([qkv])_proj\.(\w+)$")


Parts = dict[str, dict[str, Place]]
"""By part of the model ("unet", "vae" ...) and name within it."""


def folder_draft(folder: Path, files: ExitStack, wants: Callable[[ModelFamily], bool]) -> Draft:
    """Open a folder; encoders that can be left out only where they are wanted. Raises `CheckpointError` for missing or
    damaged files, and settings at odds with them."""
    optional = {part for family in all_families() for part in family.folder.optional_parts}
    _refuse_foreign_codes(folder)
    names = [name for name in components_in(folder) if name not in optional]
    denoisers = list(dict.fromkeys(family.part for family in FAMILY_SIGNS))
    if not any(denoiser in names for denoiser in denoisers):
        said = _other(folder, {}) or f"has no folder {' or '.join(denoisers)}"
        raise CheckpointError(f"{folder.name}: {said}. {_known()}")
    draft = Draft(folder, files)
    parts = {part: dict(_tensors_in(folder / part, files)) for part in names}
    headers, family = _headers(draft, parts), _family(draft, parts)
    is_unknown = family.signs.part not in names
    tensors = next(headers[name] for name in denoisers if name in headers)
    said = _other(folder, tensors, asks_class=is_unknown)
    if said or is_unknown:
        raise CheckpointError(f"{folder.name}: {said or _foreign(names)}. {_known()}")
    for part in family.folder.optional_parts if wants(family) else ():
        if (folder / part).is_dir():
            parts[part] = dict(_tensors_in(folder / part, files))
    layout, headers = family.folder, _headers(draft, parts)
    for part, header in headers.items():
        if part in layout.checks:
            layout.checks[part](folder, part, header)
    prediction, ends_in_noise = prediction_of(folder, is_flow=family.signs.part == TRANSFORMER)
    markers = (V_KEY,) * (prediction == "v_prediction") + (ZERO_SNR_KEY,) * ends_in_noise
    settings = settings_of(folder, f"{family.signs.part}/config.json") if layout.marks else {}
    markers += tuple(name for setting, name in layout.marks.items() if settings.get(setting))
    draft.metadata = {PREDICTION_KEY: prediction} if prediction else {}
    draft.put(_places(draft, parts, layout, markers))
    return draft


def as_original(draft: Draft) -> None:
    """Give the tensors of a file in the diffusers layout their original names."""
    parts: Parts = {}
    for key, place in draft.places.items():
        part, _, name = key.partition(".")
        if part in COMPONENTS and name:
            parts.setdefault(part, {})[name] = place
    markers = tuple(key for key in (V_KEY, ZERO_SNR_KEY) if key in draft.places)
    draft.put(_places(draft, parts, _family(draft, parts).folder, markers))


def _headers(draft: Draft, parts: Parts) -> dict[str, dict[str, TensorEntry]]:
    return {part: {name: entry_of(place, draft.path) for name, place in each.items()} for part, each in parts.items()}


def _family(draft: Draft, parts: Parts) -> ModelFamily:
    return FAMILIES.get(folder_family(_headers(draft, parts)).name)


def _places(draft: Draft, parts: Parts, layout: FolderLayout, markers: Iterable[str]) -> dict[str, Place]:
    """Return the places by original names. `markers` are names of empty tensors that an original file would have (see
    `ldm.noise`)."""
    headers = _headers(draft, parts)
    places: dict[str, Place] = {}
    for (part, name), named in original_names(headers, layout, _vae_names(headers)).items():
        place = parts[part][name]
        if named.name in layout.unused_if_identity and not _is_identity(place.file.read(place.key)):
            named = replace(named, name=layout.unused_if_identity[named.name])
        if named.name in places:
            raise CheckpointError(f"{draft.path.name}: {place.key} and another tensor are both {named.name}.")
        places[named.name] = replace(place, shape=named.shape)
    left_out = left_out_layer(headers, layout)
    zeros = Zeros(draft.path, {**left_out, **{name: TensorEntry(torch.float32, (0,), 0, 0) for name in markers}})
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


def _vae_names(parts: Headers) -> Callable[[Header], Names] | None:
    found = autoencoder_type(parts.get("vae", {}))
    return None if found is None else found[0].diffusers_names


def _other(folder: Path, denoiser: Header, *, asks_class: bool = True) -> str:
    """Say what else a folder holds, by the tensors of its denoiser or by what diffusers calls its classes; "" for a
    model that neither knows."""
    found = other_of(denoiser, Kind.DENOISER)
    classes = classes_in(folder) if found is None and asks_class else ()
    found = next(filter(None, map(other_of_class, classes)), found)
    return "" if found is None else f"is {found.sentence}"


def _foreign(parts: Sequence[str]) -> str:
    """Say of a denoiser that no family knows what it is not."""
    known = {family.signs.part: family.folder.title for family in reversed(all_families())}
    return " and ".join(f"its {part} is not that of {title}" for part, title in known.items() if part in parts)


def _known() -> str:
    titles = ", ".join(family.folder.title for family in all_families())
    return f"Known are {titles}; other models in the diffusers layout are not."


def _tensors_in(part: Path, files: ExitStack) -> Iterator[tuple[str, Place]]:
    """Every tensor of a component's files."""
    known: dict[str, str] = {}
    for path in weight_files(part):
        file = files.enter_context(open_tensors(path))
        for name in file.entries:
            if name in known:
                raise CheckpointError(
                    f"{part.parent.name}/{part.name}: {name} is in {known[name]} and in {path.name}. "
                    "Download the folder again."
                )
            known[name] = path.name
            yield name, Place(file, name)


def _is_identity(weight: Tensor) -> bool:
    """Whether a projection changes nothing, as where diffusers was given a file without one."""
    return weight.ndim == 2 and torch.equal(weight.float(), torch.eye(*weight.shape))
