"""The one way into a checkpoint: a file or a folder of any layout as one view with the names that our key maps have."""

from collections.abc import Callable, Sequence
from pathlib import Path

from modules.models.detection.families import is_diffusers_file, whole_names
from modules.models.families.external_text_encoders import with_external_encoders
from modules.models.families.registry import all_families
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.assembled import assembled
from modules.models.loading.diffusers_layout import as_original, opened_folder
from modules.models.loading.foreign_names import checkpoint_names, part_names
from modules.models.names.fused import unfused
from modules.models.names.view import View, open_whole, renamed

GGUF_SUFFIX = ".gguf"


def open_checkpoint(
    path: Path,
    with_optional: bool = False,
    optional_beside: bool = True,
    modules: Sequence[Path] = (),
    alone: bool = False,
    open_file: Callable[[Path], TensorSource] = open_whole,
) -> View:
    """Open a checkpoint, a file or a folder in the diffusers layout; raises `CheckpointError` for a file that is not
    what its suffix says. A text encoder that its family can do without, inside of it or (`optional_beside`) in a file
    of its own, is there only if it is asked for. `modules`: files with its text encoders and VAE, see `assembled`.
    `alone`: no file near it adds a part. `open_file` opens its tensors."""
    families = all_families()
    if path.is_dir():
        file: TensorSource = opened_folder(path, families, with_optional)
    else:
        file = with_checkpoint_names(open_file(path))
    if is_diffusers_file(file.entries):
        file = as_original(file)
    if not alone:
        file = assembled(file, modules)
    optional = [family.texts.optional for family in families if family.signs.has_denoiser(file.entries)]
    levels = tuple(encoder.level for encoder in optional if encoder is not None)
    outside = [] if alone else families
    known = [encoder for family in outside for encoder in family.texts.external if not encoder.is_part]
    whole = with_external_encoders(file, known, with_optional and optional_beside)
    return unfused(whole, families, () if with_optional else levels)


def with_checkpoint_names(file: TensorSource) -> TensorSource:
    """Return a file of tensors with the names of a checkpoint in the original or the diffusers layout."""
    is_gguf = file.path.suffix.lower() == GGUF_SUFFIX
    for names_of in (whole_names, part_names, *((checkpoint_names,) if is_gguf else ())):
        names = names_of(file.entries)
        file = renamed(file, names) if names else file
    return file
