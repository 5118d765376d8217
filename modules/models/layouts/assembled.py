"""A model whose parts are files of their own: a denoiser alone, text encoders, an autoencoder.

The file that is the checkpoint says, by the names of its denoiser, of which family the model is; the family's folder
layout then says what the tensors of its text encoders are called in a whole checkpoint. What is given replaces what
the checkpoint has of that part.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from modules.errors import CheckpointError
from modules.models.families.external_text_encoders import encoder_folders
from modules.models.families.family import Header, ModelFamily
from modules.models.families.registry import FAMILIES
from modules.models.layouts.diffusers_names import Named
from modules.models.layouts.foreign_names import bare_text_names, denoiser_names
from modules.models.layouts.keymaps.ldm_vae import PREFIX as VAE_PREFIX
from modules.models.layouts.renamed import Place, RenamedFile, renamed
from modules.models.reading.tensor_source import TensorSource, open_tensors
from modules.models.vae.source import SIGN as DIFFUSERS_VAE
from modules.models.vae.source import VaeSource

VAE_SIGNS = ("decoder.conv_in.weight", f"{VAE_PREFIX}.decoder.conv_in.weight", DIFFUSERS_VAE)
WIDTH = re.compile(r"(?:^|\.)(?:final_layer_norm|ln_final|final_layer_norm)\.weight$")
SUFFIXES = (".safetensors", ".gguf")


def with_whole_names(file: TensorSource) -> TensorSource:
    """A denoiser's file with the names that a whole checkpoint has; `file` itself where it is none."""
    names = denoiser_names(file.entries)
    return file if names is None else renamed(file, names)


def assembled(file: TensorSource, modules: Sequence[Path]) -> TensorSource:
    """`file` with the text encoders and the autoencoder of these files; without any, with those that are near where the
    file is a denoiser alone. `file` itself where there is nothing to add.

    Raises `CheckpointError` for a file that is neither, by name, and for one that the model has no place for.
    """
    family = _family_of(file.entries)
    if family is None:
        if modules:
            raise CheckpointError(
                f"{file.path.name}: text encoders or a VAE in files of their own were chosen for it, but it holds no "
                "denoiser of a known family. Take them out of the list of modules."
            )
        return file
    near = [] if modules or not _is_alone(file.entries) else list(_near(file.path, family))
    if not modules and not near:
        return file
    with ExitStack() as files:
        files.push(file)
        pieces: dict[str, Place] = {}
        texts: list[TensorSource] = []
        for path in (*modules, *near):
            kind = open_tensors(path)
            if any(sign in kind.entries for sign in VAE_SIGNS):
                kind.close()
                source = files.enter_context(VaeSource(path))
                pieces |= {name: Place(source, name) for name in source.entries if name.startswith(f"{VAE_PREFIX}.")}
                continue
            texts.append(files.enter_context(bare_text_names(kind)))
        pieces |= _text_pieces(file, family, texts)
        hidden = tuple(f"{prefix}." for prefix in _prefixes(pieces))
        kept = {key: Place(file, key) for key in file.entries if not key.startswith(hidden)} if hidden else {}
        return RenamedFile(file.path, {**kept, **pieces}, files.pop_all(), file.metadata)


def _family_of(header: Header) -> ModelFamily | None:
    return next((family for _, family in FAMILIES.items() if family.detects_denoiser(header)), None)


def _is_alone(header: Header) -> bool:
    """Whether nothing but a denoiser is there."""
    return all(key.startswith("model.diffusion_model.") for key in header)


def _near(checkpoint: Path, family: ModelFamily) -> Iterable[Path]:
    """The family's text encoders in the folders for them, the nearest to the checkpoint."""
    for item in family.external_encoders:
        if not item.is_part:
            continue
        for folder in encoder_folders(checkpoint):
            found = [path for suffix in SUFFIXES if (path := folder / f"{item.stem}{suffix}").is_file()]
            if found:
                yield found[0]
                break


def _text_pieces(file: TensorSource, family: ModelFamily, texts: Sequence[TensorSource]) -> dict[str, Place]:
    """The tensors of text encoders by their names in a whole checkpoint; the narrowest is the first of the family's."""
    pieces: dict[str, Place] = {}
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
            raise CheckpointError(
                f"{source.path.name}: is no VAE, and no text encoder that {file.path.name} ({family.label}) "
                f"{'still ' if taken else ''}has a place for. Take it out of the list of modules."
            )
    return pieces


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
