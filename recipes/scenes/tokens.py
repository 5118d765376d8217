"""Captions to CLIP token numbers."""

from collections.abc import Sequence
from functools import cache

from torch import Tensor

from modules.prompting.tokens import ClipTokenizer
from modules.training.images import token_ids


@cache
def tokenizer() -> ClipTokenizer:
    """CLIP's tokenizer, built once."""
    return ClipTokenizer.standard()


def tokenize(captions: Sequence[str]) -> Tensor:
    """Token numbers [len(captions), 77], int64: start, words, end, padded with the end token."""
    return token_ids(tokenizer(), captions)
