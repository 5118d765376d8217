"""T5's tokens for Chroma: the text, and the first token of padding, which the models were trained to see."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.t5 import T5Encoder, t5_tokenizer
from modules.models.text_encoders.tokenizers import T5Tokenizer
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

T5 = "text_encoder"
OWN_TOKENIZER = "tokenizer/tokenizer.json"  # in a folder of diffusers
MOST_TOKENS = 512
SEEN_PADDING = 1


class T5Texts:
    """The family's `Conditioning`."""

    def __init__(self, parts: TextParts) -> None:
        self._parts = parts
        self._tokenizer: T5Tokenizer | None = None

    def __call__(self, request: TextRequest) -> "T5Conditioner":
        module = self._parts.encoders[T5]
        if self._tokenizer is None:
            parts, known = self._parts, int(module.config.vocab_size)
            self._tokenizer = t5_tokenizer(parts.checkpoint, known, OWN_TOKENIZER, files=parts.files)
        return T5Conditioner(self._parts, self._tokenizer, request.options.emphasis is not Emphasis.NONE)


@dataclass(frozen=True, eq=False)
class T5Conditioner:
    """A `TextConditioner`. Brackets and weights are read and left out (`reads_weights`), or text; what is beyond 512
    tokens is cut off before the end token."""

    parts: TextParts
    tokenizer: T5Tokenizer
    reads_weights: bool
    facts: Facts = ()

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        texts = list(dict.fromkeys(text for group in groups for text in group.texts))
        rows = [self._ids(text) for text in texts]
        longest = min(max(map(len, rows)) + SEEN_PADDING, MOST_TOKENS)
        encoder = T5Encoder(self.parts.encoders[T5], self.tokenizer, self.parts.device, tokens=longest, is_masked=True)
        tokens = encoder.encode_ids(rows).tokens
        found = {}
        for text, row, encoded in zip(texts, rows, tokens, strict=True):
            seen = encoded[: len(row) + SEEN_PADDING]
            found[text] = Conditioning(seen, None, torch.ones(len(seen), dtype=torch.bool))
        return [{text: found[text] for text in group.texts} for group in groups]

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer.text_ids(text, self.reads_weights)
        return ids if len(ids) <= MOST_TOKENS else [*ids[: MOST_TOKENS - 1], self.tokenizer.end_id]
