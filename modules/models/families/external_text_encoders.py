"""Text encoders in files of their own next to a checkpoint, where a family has checkpoints that want it.

Their tensors appear under the names that they would have inside of the checkpoint.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from modules.models.families.family import ExternalTextEncoder
from modules.models.files.modules_catalogue import encoder_folders
from modules.models.files.tensor_file import Closing, TensorEntry
from modules.models.files.tensor_source import TensorSource, open_tensors

SUFFIX = ".safetensors"


class WithExternalEncoders(Closing):
    """A `TensorSource` over a checkpoint and the files of its text encoders. Closes them all."""

    def __init__(self, file: TensorSource, external_encoders: Mapping[Path, str]) -> None:
        """`companions`: files, and the beginning that their names get. Raises `CheckpointError` for a damaged one."""
        self.path = file.path
        self.metadata = file.metadata
        with ExitStack() as stack:
            stack.push(file)
            self._origins: dict[str, tuple[TensorSource, str]] = {key: (file, key) for key in file.entries}
            entries = {key: _known(entry, file) for key, entry in file.entries.items()}
            self.has_offsets = True  # of those entries that do not say that they have none
            for path, prefix in external_encoders.items():
                other = stack.enter_context(open_tensors(path))
                for key, entry in other.entries.items():
                    name = f"{prefix}.{key}"
                    self._origins[name] = (other, key)
                    entries[name] = replace(_known(entry, other), file=path)
            self.entries: Mapping[str, TensorEntry] = entries
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._stack.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in its file, see `TensorSource`."""
        file, key = self._origins[name]
        return file.read(key, into)


def _known(entry: TensorEntry, file: TensorSource) -> TensorEntry:
    return entry if file.has_offsets else replace(entry, has_offset=False)


def with_external_encoders(
    file: TensorSource, known: Sequence[ExternalTextEncoder], with_optional: bool = False
) -> TensorSource:
    """`file` with those of the `known` text encoders that it lacks and that are near, optional ones only where they are
    asked for; `file` itself where none is needed or found."""
    wanted = [item for item in known if item.wanted_by in file.entries and (with_optional or not item.is_optional)]
    missing = [item for item in wanted if not any(key.startswith(f"{item.prefix}.") for key in file.entries)]
    found = {path: item.prefix for item in missing if (path := _find(file.path, item)) is not None}
    return WithExternalEncoders(file, found) if found else file


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
