"""Captions to CLIP token numbers."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from modules.prompting.tokens import ClipTokenizer

TOKENS = 77  # of a caption, with start and end


@cache
def tokenizer() -> ClipTokenizer:
    """CLIP's tokenizer, built once."""
    return ClipTokenizer.standard()


def tokenize(captions: Sequence[str]) -> Tensor:
    """Token numbers [len(captions), 77], int64: start, words as far as they fit, end, padded with the end token."""
    rows = []
    for caption in captions:
        words = list(tokenizer().encode(caption))[: TOKENS - 2]
        rows.append([tokenizer().start_id, *words, *[tokenizer().end_id] * (TOKENS - 1 - len(words))])
    return torch.tensor(rows, dtype=torch.int64)
