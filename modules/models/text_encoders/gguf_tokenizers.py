"""Tokenizers that GGUF files of text encoders hold in their metadata: byte pairs of Qwen, and T5's pieces with scores.

Only the header is read. A file without a tokenizer, or with one of another kind, leaves the choice to its caller, and
so does one that cannot be built, with a line in the log. Imports no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from modules.models.files.header import GgufReader
from modules.models.text_encoders.tokenizers import QWEN_PAD, LlmTokenizer, T5Tokenizer, byte_pairs, unigram

log = logging.getLogger(__name__)

OwnTokenizer = LlmTokenizer | T5Tokenizer

LEVEL = "tokenizer.ggml."
LISTS = tuple(f"{LEVEL}{name}" for name in ("tokens", "scores", "token_type", "merges", "precompiled_charsmap"))
TABLE = "token_embd.weight"
CONTROL, DEFINED, UNUSED = 3, 4, 5
"""Types of tokens: control and user-defined ones are one unit wherever they stand, unused ones fill up the table."""
BYTE_PAIRS, UNIGRAM = "gpt2", "t5"
WORDS = "qwen2"
"""The name of the rule by which Qwen's words are separated."""
PADDING = "<|endoftext|>"
"""What image models were trained to see behind a text; some files name another token for padding."""


def llm_tokenizer(files: Sequence[Path]) -> LlmTokenizer:
    """The tokenizer of a language model that came from one of these files: its own where the file holds it, else the
    program's. Raises `CheckpointError` where the program's cannot be read."""
    found = (held for held in map(_held, files) if isinstance(held, LlmTokenizer))
    return next(found, None) or LlmTokenizer.standard()


def own_t5(files: Sequence[Path]) -> T5Tokenizer | None:
    """The tokenizer inside a GGUF file of T5 among these; None without one."""
    return next((held for held in map(_held, files) if isinstance(held, T5Tokenizer)), None)


def _held(path: Path) -> OwnTokenizer | None:
    if path.suffix.lower() != ".gguf" or not path.is_file():
        return None
    stat = path.stat()
    return _read(path, stat.st_size, stat.st_mtime_ns)


@lru_cache(maxsize=2)
def _read(path: Path, size_bytes: int, mtime_ns: int) -> OwnTokenizer | None:
    del mtime_ns  # of the file as it was when it was read
    with path.open("rb") as file:
        header = GgufReader(file.read, size_bytes, path.name, LISTS).read()
    build = BUILDERS.get(header.metadata.get(f"{LEVEL}model", ""))
    if build is None:
        return None
    lists = {name.removeprefix(LEVEL): values for name, values in header.lists.items()}
    table = next((tensor for tensor in header.tensors if tensor.name == TABLE), None)
    try:
        if table is not None and (used := _used(lists.get("token_type", []))) > table.shape[0]:
            raise ValueError(f"it has {used} tokens, and the text encoder {table.shape[0]}")
        return build(header.metadata, lists)
    except Exception as error:  # the library has no class of its own for what it cannot build
        log.warning("%s: its tokenizer cannot be used (%s), so the program's own is.", path.name, error)
        return None


def _byte_pairs(metadata: Mapping[str, str], lists: Mapping[str, list[object]]) -> OwnTokenizer | None:
    if metadata.get(f"{LEVEL}pre") != WORDS:
        return None
    tokens, types = _tokens(lists)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    merges = []
    for merge in lists.get("merges", []):
        first, _, second = str(merge).partition(" ")
        merges.append((first, second))
    pad = _id(metadata, "padding", QWEN_PAD)
    tokenizer = byte_pairs(vocabulary, merges, _single(tokens, types))
    return LlmTokenizer(tokenizer, vocabulary.get(PADDING, pad))


def _unigram(metadata: Mapping[str, str], lists: Mapping[str, list[object]]) -> OwnTokenizer:
    tokens, types = _tokens(lists)
    scores = [float(str(score)) for score in lists.get("scores", [])]
    charsmap = bytes(int(str(value)) & 0xFF for value in lists.get("precompiled_charsmap", []))
    tokenizer = unigram(
        list(zip(tokens, scores, strict=True)),
        _id(metadata, "unknown", 2),
        _single(tokens, types),
        charsmap,
        metadata.get(f"{LEVEL}add_space_prefix") != "False",
    )
    return T5Tokenizer(tokenizer, _id(metadata, "eos", 1), _id(metadata, "padding", 0))


BUILDERS: Mapping[str, Callable[[Mapping[str, str], Mapping[str, list[object]]], OwnTokenizer | None]] = {
    BYTE_PAIRS: _byte_pairs,
    UNIGRAM: _unigram,
}
"""By what a file calls the kind of its tokenizer."""


def _tokens(lists: Mapping[str, list[object]]) -> tuple[list[str], list[int]]:
    """Tokens and their types, which a file may leave out."""
    tokens = [str(token) for token in lists.get("tokens", [])]
    types = [int(str(kind)) for kind in lists.get("token_type", [])] or [1] * len(tokens)
    if not tokens or len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens and {len(types)} types of tokens")
    return tokens, types


def _single(tokens: Sequence[str], types: Sequence[int]) -> list[str]:
    return [token for token, kind in zip(tokens, types, strict=True) if kind in (CONTROL, DEFINED)]


def _used(types: Sequence[object]) -> int:
    """How many tokens there are by their types, without the unused ones at the end."""
    used = len(types)
    while used and types[used - 1] == UNUSED:
        used -= 1
    return used


def _id(metadata: Mapping[str, str], name: str, usual: int) -> int:
    value = metadata.get(f"{LEVEL}{name}_token_id", "")
    return int(value) if value.isdigit() else usual
