"""Text encoders in files of their own next to a checkpoint, where a family has checkpoints that want it.

Their tensors appear under the names that they would have inside of the checkpoint.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from modules.models.families.family import ExternalTextEncoder
from modules.models.files.modules_catalogue import encoder_folders
from modules.models.files.tensor_source import TensorSource, open_tensors
from modules.models.names.view import Place, View

SUFFIX = ".safetensors"


def with_external_encoders(
    file: TensorSource, known: Sequence[ExternalTextEncoder], with_optional: bool = False
) -> TensorSource:
    """`file` with those of the `known` text encoders that it lacks and that are near, optional ones only where they are
    asked for; `file` itself where none is needed or found. Raises `CheckpointError` for a damaged one."""
    wanted = [item for item in known if item.wanted_by in file.entries and (with_optional or not item.is_optional)]
    missing = [item for item in wanted if not any(key.startswith(f"{item.prefix}.") for key in file.entries)]
    found = {path: item.prefix for item in missing if (path := _find(file.path, item)) is not None}
    if not found:
        return file
    with ExitStack() as files:
        files.push(file)
        places = {key: Place(file, key) for key in file.entries}
        for path, prefix in found.items():
            other = files.enter_context(open_tensors(path))
            places |= {f"{prefix}.{key}": Place(other, key) for key in other.entries}
        return View(file.path, places, files.pop_all(), file.metadata)


def _find(checkpoint: Path, item: ExternalTextEncoder) -> Path | None:
    """The file `STEM.safetensors` in a folder for text encoders, the nearest to the checkpoint; with `any_ending` else
    the first `STEM*.safetensors` there."""
    for folder in encoder_folders(checkpoint):
        path = folder / f"{item.stem}{SUFFIX}"
        if path.is_file():
            return path
        others = sorted(folder.glob(f"{item.stem}*{SUFFIX}")) if item.any_ending else []
        if others:
            return others[0]
    return None
