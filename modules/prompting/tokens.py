"""Text to token ids with CLIP's byte-pair encoding."""

import re
from collections.abc import Sequence
from functools import cache, cached_property

import regex  # type: ignore[import-untyped]
from tokenizers.models import BPE

from modules.prompting.cleanup import clean_text
from modules.prompting.old_emphasis import bracket_weights
from modules.prompting.vocabulary import (
    END_OF_WORD,
    END_TOKEN,
    START_TOKEN,
    Vocabulary,
    byte_characters,
    read_vocabulary,
)

# CLIP's words: its special tokens, English contractions, runs of letters, single digits, runs of anything else.
_WORD = regex.compile(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|\p{L}+|\p{N}|[^\s\p{L}\p{N}]+")
_ASCII_WORD = re.compile(r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[a-z]+|[0-9]|[^\sa-z0-9]+", re.A)
# Words and pieces of prompts remembered per tokenizer: encoding a word costs fifty times a look-up, and the texts of
# an edited prompt share most of their pieces. Longer pieces than this are encoded again.
_WORDS_REMEMBERED = 65_536
_PIECES_REMEMBERED = 4_096
_PIECE_LENGTH = 1_000


class ClipTokenizer:
    """CLIP's tokenizer for prompts of any length: no start or end token, no cut at 77, no padding.

    Slow tokenizers of the `transformers` package give the same ids; here only the byte-pair step is the `tokenizers`
    library's, so that words can be remembered.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        ids = vocabulary.ids
        self._ids = ids
        self.start_id = ids[START_TOKEN]
        self.end_id = ids[END_TOKEN]
        self.comma_id: int | None = ids.get("," + END_OF_WORD)
        self._model = BPE(
            vocab=ids, merges=vocabulary.merges, end_of_word_suffix=END_OF_WORD, unk_token=END_TOKEN, fuse_unk=False
        )
        self._byte_characters = byte_characters()
        self._special: dict[str, tuple[int, ...]] = {START_TOKEN: (self.start_id,), END_TOKEN: (self.end_id,)}
        self._words: dict[str, tuple[int, ...]] = dict(self._special)
        self._pieces: dict[str, tuple[int, ...]] = {}

    @classmethod
    def standard(cls) -> "ClipTokenizer":
        """Return one with CLIP's vocabulary, the same one for all models: to make it takes longer than to read a small
        checkpoint. `CheckpointError` if its file cannot be read."""
        return _standard_tokenizer()

    @cached_property
    def bracket_weights(self) -> dict[int, float]:
        """Return what tokens with brackets weigh under the old emphasis; made when it is first asked for."""
        return bracket_weights(self._ids)

    def encode(self, text: str) -> Sequence[int]:
        """Token ids of any text; the empty text has none."""
        known = self._pieces.get(text)
        if known is not None:
            return known
        ids = tuple(self._encode_words(text))
        if len(text) <= _PIECE_LENGTH:
            if len(self._pieces) >= _PIECES_REMEMBERED:
                self._pieces = {}
            self._pieces[text] = ids
        return ids

    def _encode_words(self, text: str) -> list[int]:
        words = self._words
        lower = clean_text(text).lower()
        ids: list[int] = []
        for word in (_ASCII_WORD if lower.isascii() else _WORD).findall(lower):
            known = words.get(word)
            ids += self._encode_word(word) if known is None else known
        return ids

    def _encode_word(self, word: str) -> tuple[int, ...]:
        spelled = "".join(self._byte_characters[byte] for byte in word.encode("utf-8"))
        ids = tuple(token.id for token in self._model.tokenize(spelled))
        if len(self._words) >= _WORDS_REMEMBERED:
            self._words = dict(self._special)
        self._words[word] = ids
        return ids


@cache
def _standard_tokenizer() -> ClipTokenizer:
    return ClipTokenizer(read_vocabulary())
