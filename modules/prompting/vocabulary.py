"""CLIP's byte-pair vocabulary, read from where it lies: a package's data file or a local folder."""

import gzip
import importlib.util
import json
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from modules.errors import CheckpointError

VOCABULARY_SIZE = 49408
END_OF_WORD = "</w>"
START_TOKEN = "<|startoftext|>"
END_TOKEN = "<|endoftext|>"
_PACKAGE = "open_clip"
_PACKAGE_FILE = "bpe_simple_vocab_16e6.txt.gz"


@dataclass(frozen=True)
class Vocabulary:
    """Ids of all pieces, and the pairs to join in order of preference."""

    ids: dict[str, int]
    merges: list[tuple[str, str]]


@cache
def byte_characters() -> dict[int, str]:
    """A printable character for each byte, as GPT-2 (Radford et al. 2019) and CLIP spell bytes in their vocabularies.

    Visible Latin-1 characters stand for themselves, the others for characters from U+0100 on. In vocabulary order.
    """
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}


def read_package_vocabulary() -> Vocabulary:
    """The vocabulary that open_clip_torch carries as data; the package itself is not imported.

    Raises `CheckpointError` if the package or its file is missing.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    folders = list(spec.submodule_search_locations or ()) if spec is not None else []
    for folder in folders:
        path = Path(folder) / _PACKAGE_FILE
        if path.is_file():
            return _read_package_file(path)
    reason = f"has no file {_PACKAGE_FILE}" if folders else "is not installed"
    raise CheckpointError(
        f"CLIP's vocabulary is missing: the package open_clip_torch, which carries it, {reason}. "
        "Install it with: pip install --no-deps open_clip_torch==3.3.0, or put vocab.json and merges.txt in a folder "
        "beside the checkpoint."
    )


@lru_cache(maxsize=1)
def _read_package_file(path: Path) -> Vocabulary:
    """Read once, because every model that is loaded asks for it and it takes a fifth of a second."""
    return _from_merge_lines(gzip.decompress(path.read_bytes()).decode("utf-8").splitlines())


def read_folder_vocabulary(folder: Path) -> Vocabulary:
    """The vocabulary from `vocab.json` and `merges.txt` in a folder; raises `CheckpointError` if that can't be read."""
    try:
        ids = json.loads((folder / "vocab.json").read_text(encoding="utf-8"))
        lines = (folder / "merges.txt").read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{folder.name}: no usable tokenizer ({error}). The folder needs a readable vocab.json and merges.txt."
        ) from error
    missing = [token for token in (START_TOKEN, END_TOKEN) if token not in ids]
    if missing:
        raise CheckpointError(f"{folder.name}/vocab.json: {', '.join(missing)} missing; this is no CLIP vocabulary.")
    return Vocabulary(ids, [_pair(line) for line in lines if line and not line.startswith("#version")])


def _from_merge_lines(lines: list[str]) -> Vocabulary:
    """CLIP's file: a heading and more merges than are used. The ids follow from their order."""
    letters = list(byte_characters().values())
    special = [START_TOKEN, END_TOKEN]
    merge_count = VOCABULARY_SIZE - 2 * len(letters) - len(special)
    merges = [_pair(line) for line in lines[1 : merge_count + 1]]
    pieces = letters + [letter + END_OF_WORD for letter in letters] + [a + b for a, b in merges] + special
    return Vocabulary({piece: index for index, piece in enumerate(pieces)}, merges)


def _pair(line: str) -> tuple[str, str]:
    first, second = line.split()
    return first, second
