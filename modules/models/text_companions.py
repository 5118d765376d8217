"""Text encoders that lie in files of their own beside a checkpoint, as many SD3 files want it.

Their tensors appear under the names that they would have inside of the checkpoint.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from modules.models.closing import Closing
from modules.models.keymaps.mmdit import CLIP_G_PREFIX, CLIP_L_PREFIX, SIGN
from modules.models.tensor_file import TensorEntry
from modules.models.tensor_source import TensorSource, open_tensors

FOLDERS = ("text_encoder", "text_encoders", "CLIP", "clip")
SUFFIX = ".safetensors"
HIGHEST = 4  # folders above the checkpoint in which `FOLDERS` are looked for


@dataclass(frozen=True)
class Companion:
    """An encoder: the name of its file, and the beginning of its names in a whole checkpoint."""

    stem: str
    prefix: str


COMPANIONS = (Companion("clip_l", CLIP_L_PREFIX), Companion("clip_g", CLIP_G_PREFIX))


class WithCompanions(Closing):
    """A `TensorSource` over a checkpoint and the files of its text encoders. Closes them all."""

    def __init__(self, file: TensorSource, companions: Mapping[Path, str]) -> None:
        """`companions`: files, and the beginning that their names get. Raises `CheckpointError` for a damaged one."""
        self.path = file.path
        self.metadata = file.metadata
        with ExitStack() as stack:
            stack.push(file)
            self._origins: dict[str, tuple[TensorSource, str]] = {key: (file, key) for key in file.entries}
            entries: dict[str, TensorEntry] = dict(file.entries)
            self.has_offsets = file.has_offsets
            for path, prefix in companions.items():
                other = stack.enter_context(open_tensors(path))
                self.has_offsets &= other.has_offsets
                for key, entry in other.entries.items():
                    name = f"{prefix}.{key}"
                    self._origins[name] = (other, key)
                    entries[name] = replace(entry, file=path)
            self.entries: Mapping[str, TensorEntry] = entries
            self._stack = stack.pop_all()

    def close(self) -> None:
        """Close the files; tensors that were read stay valid."""
        self._stack.close()

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in its file, see `TensorSource`."""
        file, key = self._origins[name]
        return file.read(key, into)


def with_companions(file: TensorSource) -> TensorSource:
    """`file` with the text encoders that it lacks and that lie near; `file` itself where none is needed or found."""
    if SIGN not in file.entries:
        return file
    missing = [item for item in COMPANIONS if not any(key.startswith(f"{item.prefix}.") for key in file.entries)]
    found = {path: item.prefix for item in missing if (path := _find(file.path, item.stem)) is not None}
    return WithCompanions(file, found) if found else file


def _find(checkpoint: Path, stem: str) -> Path | None:
    """The file `STEM.safetensors` in a folder for text encoders, the nearest to the checkpoint."""
    return next((path for folder in _folders(checkpoint) if (path := folder / f"{stem}{SUFFIX}").is_file()), None)


def _folders(checkpoint: Path) -> Iterator[Path]:
    for parent in list(checkpoint.absolute().parents)[:HIGHEST]:
        for name in FOLDERS:
            yield parent / name
