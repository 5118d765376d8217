"""A name for a new file that no other thread or process can take, even while the file is being written."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from modules.images.filenames import counter_prefix, next_number, number_of
from modules.system.atomic_files import rename_without_replacing, sync_folder, write_and_sync

_MARK = ".saving"


@dataclass
class Claim:
    """The right to one number in a folder, held by a hidden file that becomes the image."""

    number: int
    placeholder: Path
    published: bool = False

    def publish(self, name: str, data: bytes, before: Callable[[Path], None] = lambda path: None) -> Path:
        """Write `data` and give it `name`; `before` receives the path first. Raises OSError; FileExistsError if
        someone used the name otherwise."""
        target = self.placeholder.with_name(name)
        write_and_sync(self.placeholder, data)
        before(target)
        rename_without_replacing(self.placeholder, target)
        self.published = True
        sync_folder(target.parent)
        return target


@contextmanager
def claim_number(folder: Path, basename: str = "") -> Iterator[Claim]:
    """Hold the next free number of a folder: one more than the largest in use or claimed.

    The placeholder is made in one step that fails if it exists, so two claims never have the same number. One that a
    killed program left behind costs nothing but its number. Raises OSError.
    """
    claim = _claim(folder, basename)
    try:
        yield claim
    finally:
        # The name of a published placeholder is free again: a file there is another one's claim.
        if not claim.published:
            claim.placeholder.unlink(missing_ok=True)


def _claim(folder: Path, basename: str) -> Claim:
    while True:
        number = next_number(_names(folder), basename)
        placeholder = folder / f".{counter_prefix(number, basename)}{_MARK}"
        try:
            os.close(os.open(placeholder, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        except FileExistsError:
            continue
        # Between the look and the claim another one may have saved under this number and gone.
        own = placeholder.name.removeprefix(".")
        if all(number_of(name, basename) != number for name in _names(folder) if name != own):
            return Claim(number, placeholder)
        placeholder.unlink()


def _names(folder: Path) -> list[str]:
    """File names, those of claims without their leading dot."""
    return [name.removeprefix(".") if name.endswith(_MARK) else name for name in os.listdir(folder)]  # noqa: PTH208
