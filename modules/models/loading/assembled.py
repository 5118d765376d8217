"""A model whose parts are files of their own: a denoiser alone, text encoders, an autoencoder.

The file that is the checkpoint says, by the names of its denoiser, of which family the model is; the family's folder
layout then says what the tensors of its text encoders are called in a whole checkpoint. What is given replaces what
the checkpoint has of that part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from modules.errors import CheckpointError
from modules.model_folders import files_below
from modules.models.autoencoders.autoencoder import PREFIX as VAE_PREFIX
from modules.models.autoencoders.held import autoencoder_in, own_channels
from modules.models.autoencoders.registry import holds_autoencoder
from modules.models.autoencoders.source import open_vae
from modules.models.families.family import ExternalTextEncoder, ExternalVae, ModelFamily
from modules.models.files.modules_catalogue import VAE_FOLDERS, encoder_folders
from modules.models.files.pieces import without_later_pieces
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.foreign_names import denoiser_names
from modules.models.names.component import Header
from modules.models.names.diffusers_names import Named
from modules.models.names.view import Place, View, open_whole, renamed
from modules.models.text_encoders.file_names import ENCODER_TYPES, bare_text_names, encoder_in, held_encoder

WIDTH = re.compile(r"(?:^|\.)(?:final_layer_norm|ln_final|final_layer_norm)\.weight$")
SUFFIXES = (".safetensors", ".gguf")


def with_whole_names(file: TensorSource, families: Sequence[ModelFamily]) -> TensorSource:
    """A denoiser's file with the names that a whole checkpoint has; `file` itself where it is none."""
    names = denoiser_names(file.entries, families)
    return file if names is None else renamed(file, names)


def assembled(file: TensorSource, modules: Sequence[Path], families: Sequence[ModelFamily]) -> TensorSource:
    """`file` with the text encoders and the autoencoder of these files; without any, with those that are near where the
    file is a denoiser alone. `file` itself where there is nothing to add.

    Raises `CheckpointError` for a file that is neither, by name, and for one that the model has no place for.
    """
    family = next((item for item in families if item.detects_denoiser(file.entries)), None)
    if family is None:
        if modules:
            raise CheckpointError(
                f"{file.path.name}: text encoders or a VAE in files of their own were chosen for it, but it holds no "
                "denoiser of a known family. Take them out of the list of modules."
            )
        return file
    parts = _Parts(file, family)
    try:
        for path in modules:
            parts.add(path)
        if modules or is_alone(file.entries) or family.external_vae is not None:
            for path in parts.near():
                parts.add(path)
        return parts.joined()
    except BaseException:
        parts.close()
        file.close()
        raise


class _Parts:
    """The files that a checkpoint is put together from."""

    def __init__(self, file: TensorSource, family: ModelFamily) -> None:
        self._file, self._family = file, family
        self._files = ExitStack()
        self._vae: dict[str, Place] = {}
        self._texts: list[TensorSource] = []

    def close(self) -> None:
        """Close those that were added."""
        self._files.close()

    def add(self, path: Path) -> None:
        """Open a file: a VAE, or a text encoder."""
        opened = open_whole(path)
        if holds_autoencoder(opened.entries):
            opened.close()
            source = self._files.enter_context(open_vae(path))
            if self._vae:
                first = next(iter(self._vae.values())).file.path
                raise CheckpointError(
                    f"{self._file.path.name}: two VAEs were chosen for it, {first.name} and {path.name}. Take one out "
                    "of the list of modules."
                )
            self._vae = {name: Place(source, name) for name in source.entries if name.startswith(f"{VAE_PREFIX}.")}
            return
        self._texts.append(self._files.enter_context(bare_text_names(opened)))

    def near(self) -> list[Path]:
        """Files in the folders near the checkpoint with the parts that neither it nor what was added has."""
        held = [held_encoder(source.entries) for source in self._texts]
        types = {item.type for item in held if item is not None}
        found = list(_near(self._file, self._family, types)) if not (types and self._is_untyped) else []
        vae = self._family.external_vae
        if vae is not None and not self._vae and own_channels(self._file.entries) is None:
            path = _near_vae(self._file.path, vae)
            found += [path] if path is not None else []
        return found

    @property
    def _is_untyped(self) -> bool:
        """Whether the family's text encoders are looked for by name alone: then they are all chosen, or all found."""
        return any(not item.type for item in self._family.external_encoders if item.is_part)

    def joined(self) -> TensorSource:
        """The checkpoint's file with all parts."""
        texts, unfit = _text_pieces(self._file, self._family, self._texts)
        pieces = {**self._vae, **texts}
        if unfit:
            has = (*pieces, *self._file.entries)
            raise CheckpointError(" ".join([*unfit, *_missing(self._family, has)]))
        if not pieces:
            return self._file
        hidden = tuple(f"{prefix}." for prefix in _prefixes(pieces))
        kept = {key: Place(self._file, key) for key in self._file.entries if not key.startswith(hidden)}
        self._files.push(self._file)
        return View(self._file.path, {**kept, **pieces}, self._files, self._file.metadata)


def is_alone(header: Header) -> bool:
    """Whether nothing but a denoiser is there."""
    return all(key.startswith("model.diffusion_model.") for key in header)


def _near(file: TensorSource, family: ModelFamily, chosen: Collection[str]) -> Iterator[Path]:
    """The family's text encoders in the folders for them, the nearest to the checkpoint; not those of the types that
    were `chosen`, and not those that the checkpoint has."""
    for item in family.external_encoders:
        if not item.is_part or item.type in chosen or any(key.startswith(f"{item.prefix}.") for key in file.entries):
            continue
        if not item.type and not is_alone(file.entries):
            continue
        folders = list(encoder_folders(file.path))
        fitting = (path for folder in folders for path in _fitting(folder, item, file.entries))
        found = next(fitting, None) or next(filter(None, (_damaged(folder, item) for folder in folders)), None)
        if found is not None:
            yield found


def _near_vae(checkpoint: Path, vae: ExternalVae) -> Path | None:
    """The file with this VAE in the folders for them: one that is named so, else the only one."""
    for folder in encoder_folders(checkpoint, VAE_FOLDERS):
        fitting = [
            path
            for path in _files_below(folder)
            if (held := autoencoder_in(path)) is not None and (held.type, held.channels) == (vae.type, vae.channels)
        ]
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
    width = item.width(header) if item.width is not None else None
    for path in sorted(_files_below(folder), key=lambda path: not path.name.lower().startswith(item.stem)):
        held = encoder_in(path)
        if held is not None and held.type == item.type and (width is None or held.width == width):
            yield path


def _missing(family: ModelFamily, names: Sequence[str]) -> list[str]:
    """What to do about each part of the family that is not among these tensors of a checkpoint and its files."""
    encoders = [item for item in family.external_encoders if item.title and not item.is_optional]
    hints = [item.hint for item in encoders if not any(name.startswith(f"{item.prefix}.") for name in names)]
    vae = family.external_vae
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
    file: TensorSource, family: ModelFamily, texts: Sequence[TensorSource]
) -> tuple[dict[str, Place], list[str]]:
    """The tensors of text encoders by their names in a whole checkpoint, the narrowest as the first of the family's;
    and what is to be said of files that have no place there."""
    pieces: dict[str, Place] = {}
    unfit: list[str] = []
    left = list(family.folder.text_parts)
    if texts and family.folder.left_out_layer is not None:
        raise CheckpointError(
            f"{file.path.name}: the text encoder of {family.label} is not read from a file of its own, as such files "
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
                f"{source.path.name}: is no VAE, and no text encoder that {file.path.name} ({family.label}) "
                f"{'still ' if taken else ''}has a place for{_described(source)}. Take it out of the list of modules."
            )
    return pieces, unfit


def _described(source: TensorSource) -> str:
    """Which text encoder a file holds, where that is known."""
    held = held_encoder(source.entries)
    return "" if held is None else f": it is {ENCODER_TYPES[held.type]}, {held.width} wide"


def _named(family: ModelFamily, part: str, header: Header) -> Mapping[str, Named]:
    """What the tensors of a text encoder are called as this part, without those that have no place in the model."""
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
