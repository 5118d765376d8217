"""Captions to CLIP token numbers, with the vocabulary that the open_clip_torch package carries (no download)."""

import gzip
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CLIPTokenizer

from modules.errors import CheckpointError
from modules.training.scenes.model import TOKENS

MERGES = 48894


@cache
def tokenizer() -> Any:
    """CLIP's tokenizer; the vocabulary is 256 byte symbols, the same ending a word, the merges and two specials."""
    spec = find_spec("open_clip")  # finds the folder without importing the package
    if spec is None or spec.origin is None:
        raise CheckpointError("The package open_clip_torch, which carries the vocabulary, is missing: install it.")
    packed = Path(spec.origin).parent / "bpe_simple_vocab_16e6.txt.gz"
    lines = gzip.decompress(packed.read_bytes()).decode("utf-8").split("\n")[1 : MERGES + 1]
    merges = [(first, second) for first, second in (line.split() for line in lines)]
    symbols = _byte_symbols()
    words = [*symbols, *(f"{symbol}</w>" for symbol in symbols), *(a + b for a, b in merges)]
    vocabulary = {word: number for number, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    build: Any = CLIPTokenizer  # its annotations do not know merges as pairs
    return build(vocabulary, merges, model_max_length=TOKENS)


def tokenize(captions: Sequence[str]) -> Tensor:
    """Token numbers [len(captions), 77], int64: start, words, end, padded with the end token."""
    ids = tokenizer()(list(captions), padding="max_length", truncation=True, max_length=TOKENS)["input_ids"]
    return torch.tensor(ids, dtype=torch.int64)


def _byte_symbols() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of CLIP's vocabulary."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAC + 1), *range(0xAE, 0xFF + 1)]
    rest = [byte for byte in range(256) if byte not in printable]
    return [chr(byte) for byte in printable] + [chr(256 + i) for i in range(len(rest))]
