"""A model whose parts are files of their own: a denoiser alone, text encoders, an autoencoder.

The file that is the checkpoint says, by the names of its denoiser, of which family the model is; the family's folder
layout then says what the tensors of its text encoders are called in a whole checkpoint. What is given replaces what
the checkpoint has of that part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import torch

from modules.errors import CheckpointError
from modules.models.autoencoders.autoencoder import PREFIX as VAE_PREFIX
from modules.models.autoencoders.registry import holds_autoencoder
from modules.models.autoencoders.source import vae_of
from modules.models.detection.parts import (
    ENCODER_TYPES,
    Part,
    held_encoder,
    held_vae,
    own_channels,
    text_names,
    without_level,
)
from modules.models.families.family import ExternalTextEncoder, ExternalVae, ModelFamily
from modules.models.families.registry import denoiser_family_of
from modules.models.files.header import ARCHITECTURE
from modules.models.files.modules_catalogue import VAE_FOLDERS, encoder_folders
from modules.models.files.pieces import without_later_pieces
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.component import Header
from modules.models.names.diffusers_names import Named
from modules.models.names.view import Draft, Place, open_whole, renamed
from modules.system.model_folders import files_below

WIDTH = re.compile(r"(?:^|\.)(?:final_layer_norm|ln_final)\.weight$")
SUFFIXES = (".safetensors", ".gguf")


def add_parts(draft: Draft, modules: Sequence[Path]) -> None:
    """Add the text encoders and the autoencoder of these files; without any, those that are near where the file is a
    denoiser alone.

    Raises `CheckpointError` for a file that is neither, by name, and for one that the model has no place for.
    """
    family = denoiser_family_of(draft.header)
    if family is not None:
        _Parts(draft, family).add_all(modules)
    elif modules:
        raise CheckpointError(
            f"{draft.path.name}: text encoders or a VAE in files of their own were chosen for it, but it holds no "
            "denoiser of a known family. Take them out of the list of modules."
        )


def add_text_encoders(draft: Draft, known: Sequence[ExternalTextEncoder], with_optional: bool) -> None:
    """Add those of the `known` text encoders that it lacks and that are near, with the names of a whole checkpoint in
    files of their own; optional ones only where they are asked for. Raises `CheckpointError` for a damaged one."""
    wanted = [item for item in known if not item.is_part and (with_optional or not item.is_optional)]
    missing = [item for item in wanted if not any(key.startswith(f"{item.prefix}.") for key in draft.places)]
    places = dict(draft.places)
    for item in missing:
        path = _named_file(draft.path, item)
        if path is not None:
            other = draft.files.enter_context(open_tensors(path))
            places |= {f"{item.prefix}.{key}": Place(other, key) for key in other.entries}
    draft.put(places)


def _named_file(checkpoint: Path, item: ExternalTextEncoder) -> Path | None:
    """Return the file `STEM.safetensors` in a folder for text encoders, the nearest to the checkpoint; with
    `any_ending` else the first `STEM*.safetensors` there."""
    for folder in encoder_folders(checkpoint):
        path = folder / f"{item.stem}{SUFFIXES[0]}"
        if path.is_file():
            return path
        others = sorted(folder.glob(f"{item.stem}*{SUFFIXES[0]}")) if item.any_ending else []
        if others:
            return others[0]
    return None


class _Parts:
    """The files that a checkpoint is put together from."""

    def __init__(self, draft: Draft, family: ModelFamily) -> None:
        self._draft, self._family = draft, family
        self._vae: dict[str, Place] = {}
        self._texts: list[TensorSource] = []

    def add_all(self, modules: Sequence[Path]) -> None:
        """Add these files, and then those that are near."""
        for path in modules:
            self._open(path)
        if modules or is_alone(self._draft.header) or self._family.latents.external is not None:
            for path in self._near():
                self._open(path)
        self._join()

    def _open(self, path: Path) -> None:
        """Open a file: a VAE, or a text encoder."""
        opened = open_whole(path)
        if not holds_autoencoder(opened.entries):
            self._texts.append(self._draft.files.enter_context(_bare_text_names(opened)))
            return
        source = self._draft.files.enter_context(vae_of(opened))
        if self._vae:
            first = next(iter(self._vae.values())).file.path
            raise CheckpointError(
                f"{self._draft.path.name}: two VAEs were chosen for it, {first.name} and {path.name}. Take one out of "
                "the list of modules."
            )
        self._vae = {name: Place(source, name) for name in source.entries if name.startswith(f"{VAE_PREFIX}.")}

    def _near(self) -> list[Path]:
        """Files in the folders near the checkpoint with the parts that neither it nor what was added has."""
        held = [held_encoder(source.entries) for source in self._texts]
        types = {item.type for item in held if item is not None}
        found = list(_near(self._draft, self._family, types)) if not (types and self._is_untyped) else []
        vae = self._family.latents.external
        if vae is not None and not self._vae and own_channels(self._draft.header) is None:
            path = _near_vae(self._draft.path, vae)
            found += [path] if path is not None else []
        return found

    @property
    def _is_untyped(self) -> bool:
        """Whether the family's text encoders are looked for by name alone: then they are all chosen, or all found."""
        return any(not item.type for item in self._family.texts.external if item.is_part)

    def _join(self) -> None:
        """Put all parts into the draft."""
        texts, unfit = _text_pieces(self._draft.path, self._family, self._texts)
        pieces = {**self._vae, **texts}
        if unfit:
            has = (*pieces, *self._draft.places)
            raise CheckpointError(" ".join([*unfit, *_missing(self._family, has)]))
        if pieces:
            hidden = tuple(f"{prefix}." for prefix in _prefixes(pieces))
            kept = {key: place for key, place in self._draft.places.items() if not key.startswith(hidden)}
            self._draft.put({**kept, **pieces})


def _bare_text_names(file: TensorSource) -> TensorSource:
    """Return a text encoder's file with transformers' names, see `text_names`."""
    names = text_names(file.entries, file.metadata.get(ARCHITECTURE, ""))
    return renamed(file, names) if names else file


def part_in(path: Path) -> Part | None:
    """Return the text encoder or the VAE that a file holds; None for one that holds neither, or cannot be read."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return _part_in(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=256)
def _part_in(path: Path, size_bytes: int, mtime_ns: int) -> Part | None:
    del size_bytes, mtime_ns  # of the file as it was when it was looked at
    try:
        with open_whole(path) as file:
            inner = without_level(file.entries)
            vae = held_vae(inner) if len(inner) == len(file.entries) else None
            return vae or held_encoder(_bare_text_names(file).entries)
    except CheckpointError:  # a damaged file among others: loading it by name says what is wrong
        return None


def is_alone(header: Header) -> bool:
    """Whether nothing but a denoiser is there."""
    return all(key.startswith("model.diffusion_model.") for key in header)


def _near(draft: Draft, family: ModelFamily, chosen: Collection[str]) -> Iterator[Path]:
    """The family's text encoders in the folders for them, the nearest to the checkpoint; not those of the types that
    were `chosen`, and not those that the checkpoint has."""
    for item in family.texts.external:
        if not item.is_part or item.type in chosen or any(key.startswith(f"{item.prefix}.") for key in draft.header):
            continue
        if not item.type and not is_alone(draft.header):
            continue
        folders = list(encoder_folders(draft.path))
        fitting = (path for folder in folders for path in _fitting(folder, item, draft.header))
        found = next(fitting, None) or next(filter(None, (_damaged(folder, item) for folder in folders)), None)
        if found is not None:
            yield found


def _near_vae(checkpoint: Path, vae: ExternalVae) -> Path | None:
    """The file with this VAE in the folders for them: one that is named so, else the only one."""
    for folder in encoder_folders(checkpoint, VAE_FOLDERS):
        fitting = [path for path in _files_below(folder) if part_in(path) == Part(vae.need.type, vae.need.width)]
        named = [path for path in fitting if path.name.lower().startswith(vae.stems)]
        if named or len(fitting) == 1:
            return (named or fitting)[0]
    return None


def _files_below(folder: Path) -> list[Path]:
    """Files with parts of models in a folder, by name."""
    paths = [path for path in files_below(folder) if path.suffix.lower() in SUFFIXES and path.is_file()]
    return sorted(without_later_pieces(paths), key=lambda path: path.name.lower())


def _fitting(folder: Path, item: ExternalTextEncoder, header: Header) -> Iterable[Path]:
    """The files in a folder that hold this text encoder: the one that has its name, then those that begin with it, then
    others of its type and width."""
    yield from (path for suffix in SUFFIXES if (path := folder / f"{item.stem}{suffix}").is_file())
    if not item.type:
        return
    width = item.width(header)
    for path in sorted(_files_below(folder), key=lambda path: not path.name.lower().startswith(item.stem)):
        held = part_in(path)
        if held is not None and held.type == item.type and (width is None or held.width == width):
            yield path


def _missing(family: ModelFamily, names: Sequence[str]) -> list[str]:
    """Return what to do about each part of the family that is not among these tensors of a checkpoint and its files."""
    encoders = [item for item in family.texts.external if item.title and not item.is_optional]
    hints = [item.hint for item in encoders if not any(name.startswith(f"{item.prefix}.") for name in names)]
    vae = family.latents.external
    if vae is not None and not any(name.startswith(f"{VAE_PREFIX}.") for name in names):
        hints.append(vae.hint)
    return hints


def _damaged(folder: Path, item: ExternalTextEncoder) -> Path | None:
    """A file that is called like this text encoder and cannot be read: opening it says why."""
    for path in _files_below(folder):
        if path.name.lower().startswith(item.stem):
            try:
                open_whole(path).close()
            except CheckpointError:
                return path
    return None


def _text_pieces(
    checkpoint: Path, family: ModelFamily, texts: Sequence[TensorSource]
) -> tuple[dict[str, Place], list[str]]:
    """The tensors of text encoders by their names in a whole checkpoint, the narrowest as the first of the family's;
    and what is to be said of files that have no place there."""
    pieces: dict[str, Place] = {}
    unfit: list[str] = []
    left = list(family.folder.text_parts)
    if texts and family.folder.left_out_layer is not None:
        raise CheckpointError(
            f"{checkpoint.name}: the text encoder of {family.label} is not read from a file of its own, as such files "
            "lack its last layer or have it without saying so. Use a whole checkpoint."
        )
    for source in sorted(texts, key=_width):
        for part in left:
            if family.folder.is_text_part(part, source.entries):
                named = _named(family, part, source.entries)
                left.remove(part)
                pieces |= {there.name: Place(source, name, there.shape) for name, there in named.items()}
                break
        else:
            taken = len(left) < len(family.folder.text_parts)
            unfit.append(
                f"{source.path.name}: is no VAE, and no text encoder that {checkpoint.name} ({family.label}) "
                f"{'still ' if taken else ''}has a place for{_described(source)}. Take it out of the list of modules."
            )
    return pieces, unfit


def _described(source: TensorSource) -> str:
    """Which text encoder a file holds, where that is known."""
    held = held_encoder(source.entries)
    return "" if held is None else f": it is {ENCODER_TYPES[held.type]}, {held.width} wide"


def _named(family: ModelFamily, part: str, header: Header) -> Mapping[str, Named]:
    """Return the names of the tensors of a text encoder as this part, without those that have no place in the model."""
    keymap, ours = family.folder.names[part](header)
    found: dict[str, Named] = {}
    for name, entry in header.items():
        original = keymap.to_original(ours[name])
        if original is not None:
            shell = keymap.tensor_to_original(ours[name], torch.empty(entry.shape, device="meta"))
            found[name] = Named(original, tuple(shell.shape))
    return found


def _width(source: TensorSource) -> int:
    return next((entry.shape[0] for key, entry in source.entries.items() if WIDTH.search(key) and entry.shape), 0)


def _prefixes(pieces: Mapping[str, Place]) -> set[str]:
    """The common beginnings of what each file brings."""
    by_file: dict[int, list[str]] = {}
    for name, place in pieces.items():
        by_file.setdefault(id(place.file), []).append(name)
    return {".".join(os.path.commonpath([n.replace(".", "/") for n in names]).split("/")) for names in by_file.values()}
