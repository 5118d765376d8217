"""Captions to CLIP token numbers."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from modules.prompting.tokens import ClipTokenizer
from recipes.scenes.model import TOKENS


@cache
def tokenizer() -> ClipTokenizer:
    """CLIP's tokenizer, built once."""
    return ClipTokenizer.standard()


def tokenize(captions: Sequence[str]) -> Tensor:
    """Token numbers [len(captions), 77], int64: start, words, end, padded with the end token."""
    clip = tokenizer()
    rows = []
    for caption in captions:
        words = list(clip.encode(caption))[: TOKENS - 2]
        rows.append([clip.start_id, *words, *[clip.end_id] * (TOKENS - 1 - len(words))])
    return torch.tensor(rows, dtype=torch.int64)
