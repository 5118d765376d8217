"""CLIP's byte-pair vocabulary, from the data file next to this module."""

import gzip
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from modules.errors import CheckpointError

VOCABULARY_SIZE = 49408
END_OF_WORD = "</w>"
START_TOKEN = "<|startoftext|>"
END_TOKEN = "<|endoftext|>"
FILE = Path(__file__).parent / "data" / "bpe_simple_vocab_16e6.txt.gz"


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


def read_vocabulary() -> Vocabulary:
    """The vocabulary that comes with the program. Raises `CheckpointError` if its file is missing or damaged."""
    try:
        return _from_merge_lines(gzip.decompress(FILE.read_bytes()).decode("utf-8").splitlines())
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise CheckpointError(
            f"CLIP's vocabulary cannot be read from modules/prompting/data/{FILE.name} ({error}). It is part of the "
            "program: restore the file, or get the program again."
        ) from error


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
