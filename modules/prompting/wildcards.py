"""Wildcard files: lists of texts by name, one of which stands in a prompt for `__name__`.

`colors.txt` has a text in each line; empty lines and those that begin with # are passed over. `clothes/hats.txt` is
`__clothes/hats__`. A `.yaml` file holds lists below keys: `{artists: {dutch: [...]}}` is `__artists/dutch__`, also
under the name of its file. `*` in a name stands for any part of it: all lists that fit are put together.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError, UnknownNameError
from modules.system.bounded import ContentError, read_yaml
from modules.system.decoding import decode_text
from modules.system.model_folders import Listing

log = logging.getLogger(__name__)

SUFFIXES = (".txt", ".yaml", ".yml")
MAX_FILE_BYTES = 64 * 2**20
MAX_DEPTH = 32  # of keys in a YAML file


class WildcardBook:
    """The wildcards of some folders as one look found them; texts are read when they are asked for."""

    def __init__(self, folders: Iterable[Path] = ()) -> None:
        self.folders = tuple(folders)
        self._files: dict[str, Path] = {}  # by name: files of lines
        self._lists: dict[str, tuple[str, ...]] = {}  # by name: read
        listing = Listing.of(self.folders)
        for entry in listing.with_suffix(SUFFIXES):
            path = Path(entry.path)
            place = listing.place_of(path)
            name = Path(place[1] if place else path.name).with_suffix("").as_posix()
            if path.suffix.lower() == ".txt":
                self._files.setdefault(name, path)
            else:
                self._add_tree(path, name)

    @property
    def names(self) -> list[str]:
        """All names, in their order."""
        return sorted({*self._files, *self._lists}, key=str.lower)

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts of a wildcard, or of all that a name with `*` means. Raises `UnknownNameError` where there is none,
        `InvalidValueError` for one without texts."""
        fitting = self.matching(name)
        if not fitting:
            raise UnknownNameError(_missing(name, self.names, self.folders))
        texts = tuple(text for one in fitting for text in self._texts_of(one))
        if not texts:
            raise InvalidValueError(f"The wildcard __{name}__ has no texts; write one per line into its file.")
        return texts

    def matching(self, name: str) -> list[str]:
        """The names that a name means, in any case; several only with `*` in it."""
        wanted = name.lower().strip("/")
        if "*" not in wanted:
            return [known for known in self.names if known.lower() == wanted][:1]
        return [known for known in self.names if fnmatchcase(known.lower(), wanted)]

    def _texts_of(self, name: str) -> tuple[str, ...]:
        if name not in self._lists:
            self._lists[name] = tuple(_lines(self._files[name]))
        return self._lists[name]

    def _add_tree(self, path: Path, name: str) -> None:
        try:
            tree = read_yaml(_read(path), max_depth=MAX_DEPTH)
        except ContentError as error:
            log.warning("%s was left out: %s", path, error)
            return
        folder = name.rpartition("/")[0]
        for keys, texts in _leaves(tree):
            for start in (folder, name):
                full = "/".join(part for part in (start, *keys) if part)
                if full:
                    self._lists.setdefault(full, texts)


def _missing(name: str, known: Sequence[str], folders: Sequence[Path]) -> str:
    near = get_close_matches(name, known, n=3, cutoff=0.5)
    hint = f" The nearest here: {', '.join(f'__{one}__' for one in near)}." if near else ""
    place = f" into {folders[0]}" if folders else ""
    return (
        f"There is no wildcard __{name}__.{hint} Put {name}.txt{place}, one text per line, or escape it: \\__{name}__."
    )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            log.warning("%s is larger than %d MB and was left out.", path, MAX_FILE_BYTES >> 20)
            return ""
        return decode_text(path.read_bytes())
    except OSError as error:
        log.warning("%s cannot be read and was left out: %s", path, error)
        return ""


def _lines(path: Path) -> Iterator[str]:
    for line in _read(path).splitlines():
        text = line.strip()
        if text and not text.startswith("#"):
            yield text


def _leaves(tree: Any, keys: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    if isinstance(tree, Mapping):
        for key, below in tree.items():
            yield from _leaves(below, (*keys, re.sub(r"\s+", " ", str(key)).strip("/ ")))
    elif isinstance(tree, list):
        texts = tuple(item.strip() for item in tree if isinstance(item, str))
        yield keys, tuple(text for text in texts if text)
        for item in tree:
            if isinstance(item, Mapping):
                yield from _leaves(item, keys)
    elif isinstance(tree, str):
        yield keys, (tree.strip(),)
