"""The tokenizer of Mistral's language models, "tekken": byte pairs by rank. Imports no torch.

It does not come with the program: files of the text encoder hold it as a tensor, and folders as `tekken.json` or in the
form of the `tokenizers` library.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from modules.errors import CheckpointError
from modules.models.detection.parts import TEKKEN_TOKENS
from modules.models.files.header import LENGTH_BYTES, parsed, read_raw
from modules.models.text_encoders.tokenizers import LlmTokenizer, byte_pairs
from modules.system.bounded import read_json

TENSOR, FILE = "tekken_model", "tekken.json"
OTHER_FILE = "tokenizer.json"
FOLDER = "tokenizer"
"""In a folder in the diffusers layout."""
BEGIN, PAD = 1, 11
SINGLE = {"[INST]": 3, "[/INST]": 4, "[SYSTEM_PROMPT]": 17, "[/SYSTEM_PROMPT]": 18}
"""Tokens of templates, which texts hold as words."""
BYTES = 256


def tekken_tokenizer(files: Sequence[Path]) -> LlmTokenizer:
    """The tokenizer of a model of these files, its folder or the files of its text encoders: that of the folder, inside
    a file or next to one. Raises `CheckpointError` where there is none, or one that cannot be read."""
    for path in files:
        places = (path / FOLDER / FILE, path / FOLDER / OTHER_FILE) if path.is_dir() else (path, path.parent / FILE)
        for place in filter(Path.is_file, places):
            stat = place.stat()
            found = _read(place, stat.st_size, stat.st_mtime_ns)
            if found is not None:
                return found
    named = ", ".join(path.name for path in files) or "its files"
    raise CheckpointError(
        f"The tokenizer of Mistral's language model is missing: it is not inside of {named}, and not next to them "
        f"as {FILE}. Use a text encoder with a tensor {TENSOR} (as those of ComfyUI have), or put {FILE} of the model "
        "next to it."
    )


@lru_cache(maxsize=4)
def _read(path: Path, size_bytes: int, mtime_ns: int) -> LlmTokenizer | None:
    """The tokenizer in a file; None for one that holds none."""
    del mtime_ns  # of the file as it was when it was read
    if path.suffix == ".safetensors":
        raw = _tensor(path, size_bytes)
    else:
        raw = path.read_bytes() if path.name in (FILE, OTHER_FILE) else None
    if raw is None:
        return None
    try:
        is_other = path.name == OTHER_FILE
        tokenizer = Tokenizer.from_str(raw.decode("utf-8")) if is_other else _of_ranks(read_json(raw))
    except Exception as error:  # the library has no class of its own for what it cannot build
        raise CheckpointError(
            f"{path.name}: its tokenizer cannot be read ({error}). Put {FILE} of the model next to the text encoder."
        ) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return LlmTokenizer(tokenizer, PAD, (BEGIN,))


def _tensor(path: Path, size_bytes: int) -> bytes | None:
    """The bytes of the tensor of a safetensors file that holds a tokenizer; None without one."""
    with path.open("rb") as file:
        raw = read_raw(file.read, size_bytes, path.name)
        entries, _ = parsed(raw, path.name)
        name = next((name for name in entries if name.rpartition(".")[2] == TENSOR), None)
        if name is None:
            return None
        begin, end = entries[name]["data_offsets"]
        file.seek(LENGTH_BYTES + len(raw) + begin)
        return file.read(end - begin)


def _of_ranks(facts: Any) -> Tokenizer:
    """Build the tokenizer of a `tekken.json`: a token's number is its rank behind those of the special ones, and two
    tokens become one where their bytes are those of a third, the ones of the lowest rank first."""
    config = facts["config"]
    special, count = int(config["default_num_special_tokens"]), int(config["default_vocab_size"])
    if count != TEKKEN_TOKENS:
        raise ValueError(f"it has {count} tokens, and those of Mistral 3 have {TEKKEN_TOKENS}")
    ranks = {base64.b64decode(one["token_bytes"]): int(one["rank"]) for one in facts["vocab"]}
    ranks = {token: rank for token, rank in ranks.items() if rank < count - special}
    letters = _letters()
    spelt = {token: "".join(letters[byte] for byte in token) for token in ranks}
    vocabulary = {spelt[token]: rank + special for token, rank in ranks.items()}
    merges = [(spelt[first], spelt[second]) for first, second in _merges(ranks)]
    tokenizer = byte_pairs({**vocabulary, **SINGLE}, merges, tuple(SINGLE), str(config["pattern"]))
    assert tokenizer.get_vocab_size() <= count, "tokens stand twice"
    return tokenizer


def _merges(ranks: dict[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """The pairs of tokens that are a third together, by its rank and then by their own."""
    for token in sorted(ranks, key=ranks.__getitem__):
        splits = ((token[:place], token[place:]) for place in range(1, len(token)))
        known = [pair for pair in splits if pair[0] in ranks and pair[1] in ranks]
        yield from sorted(known, key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))


def _letters() -> list[str]:
    """The letter that stands for each byte in vocabularies of byte pairs."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("\xa1"), ord("\xac") + 1), *range(ord("\xae"), BYTES)]
    others = iter(range(BYTES, 2 * BYTES))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(BYTES)]
