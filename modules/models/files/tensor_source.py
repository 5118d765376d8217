"""The interface of a file of tensors, whichever form it has, and the choice of its reader."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Protocol

from torch import Tensor

from modules.errors import CheckpointError
from modules.models.files.coded_file import with_coded
from modules.models.files.gguf_file import GgufFile
from modules.models.files.pickle_file import PickleFile
from modules.models.files.tensor_file import TensorEntry, TensorFile


class TensorSource(Protocol):
    """An open file of named tensors; a context manager. `TensorFile` and `PickleFile` are two."""

    @property
    def path(self) -> Path: ...

    @property
    def entries(self) -> Mapping[str, TensorEntry]: ...

    @property
    def metadata(self) -> Mapping[str, str]: ...

    @property
    def has_offsets(self) -> bool:
        """Whether `TensorEntry.begin` says where in the file the tensor's bytes are contiguous, where the entry does
        not say that it has none."""

    def read(self, name: str, into: Tensor | None = None) -> Tensor:
        """The tensor as it lies in the file, on the CPU, in memory of its own; in `into` where that is given, has its
        shape and dtype, and the file can be read straight into memory."""

    def close(self) -> None: ...

    def __enter__(self) -> "TensorSource": ...

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def has_offset(file: TensorSource, name: str) -> bool:
    """Whether the tensor's bytes are contiguous from `TensorEntry.begin` on."""
    return file.has_offsets and file.entries[name].has_offset


READERS: Mapping[str, Callable[[Path], TensorSource]] = {
    ".safetensors": TensorFile,
    ".ckpt": PickleFile,
    ".pt": PickleFile,
    ".pth": PickleFile,
    ".bin": PickleFile,
    ".gguf": GgufFile,
}
"""By suffix, in lower case; files of any other suffix are read as safetensors, which tells what is wrong with them."""


TEXT_BYTES = 128
_PAGE = (
    "a web page: what was downloaded said something else than the file. Often one has to log in or to accept a licence "
    "there first."
)
TEXTS: Mapping[bytes, str] = {
    b"<!doctype": _PAGE,
    b"<html": _PAGE,
    b"version https://git-lfs": "the pointer that git keeps in place of a large file. Get the file: git lfs pull.",
}
"""Beginnings of files, in lower case, and what such a file is."""


def open_tensors(path: Path) -> TensorSource:
    """Open a file for reading, with weights decoded that are in codes for which we have no storage format.

    Raises `CheckpointError` for a file that is not what its suffix says."""
    _refuse_text(path)
    file = READERS.get(path.suffix.lower(), TensorFile)(path)
    if not isinstance(file, TensorFile):
        return file
    try:
        return with_coded(file)
    except BaseException:
        file.close()
        raise


def _refuse_text(path: Path) -> None:
    """Raises `CheckpointError` for what downloads leave in the place of a model. What cannot be read is left to its
    reader."""
    try:
        with path.open("rb") as file:
            head = file.read(TEXT_BYTES).lstrip().lower()
    except OSError:
        return
    for beginning, what in TEXTS.items():
        if head.startswith(beginning):
            raise CheckpointError(f"{path.name}: is no model, but {what}")
