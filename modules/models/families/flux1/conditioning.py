"""T5's tokens, and CLIP's pooled output as the vector that is added to the time embedding."""

from collections.abc import Sequence
from dataclasses import dataclass

from modules.models.families.ldm.conditioning import ClipConditioner, ClipConditioning
from modules.models.text_encoders.clip_encoder import TextTowerRecipe
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.t5 import T5Encoder, t5_tokenizer
from modules.models.text_encoders.tokenizers import T5Tokenizer
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

CLIP, T5 = "text_encoder", "text_encoder_2"
POOLED = ClipConditioning((TextTowerRecipe(CLIP, layer_from_end=1, pooled=True),))
OWN_TOKENIZER = "tokenizer_2/tokenizer.json"  # in a folder of diffusers


class ClipAndT5:
    """The family's `Conditioning`: a text is filled up to `tokens` tokens of T5, whose padding every layer sees."""

    def __init__(self, parts: TextParts, tokens: int) -> None:
        self._parts, self._tokens = parts, tokens
        self._tokenizer: T5Tokenizer | None = None

    def __call__(self, request: TextRequest) -> "PooledAndTokens":
        module = self._parts.encoders[T5]
        if self._tokenizer is None:
            vocabulary = int(module.config.vocab_size)
            parts = self._parts
            self._tokenizer = t5_tokenizer(parts.checkpoint, vocabulary, OWN_TOKENIZER, files=parts.files)
        encoder = T5Encoder(module, self._tokenizer, self._parts.device, tokens=self._tokens)
        reads_weights = request.options.emphasis is not Emphasis.NONE
        clip = POOLED.conditioner(self._parts, request)
        return PooledAndTokens(clip, encoder, self._tokenizer, self._tokens, reads_weights)


@dataclass(frozen=True, eq=False)
class PooledAndTokens:
    """A `TextConditioner`. What is beyond `tokens` is cut off before the end token. Prompt weights act on CLIP alone,
    whose vector says little: brackets are read and left out for T5 (`reads_weights`), or text."""

    clip: ClipConditioner
    encoder: T5Encoder
    tokenizer: T5Tokenizer
    tokens: int
    reads_weights: bool
    facts: Facts = ()

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        pooled = self.clip.conditioning(groups, is_negative)
        texts = list(dict.fromkeys(text for group in groups for text in group.texts))
        rows = [self._ids(text) for text in texts]
        tokens = dict(zip(texts, self.encoder.encode_ids(rows).tokens, strict=True))
        return [
            {text: Conditioning(tokens[text], conditioning.vector) for text, conditioning in by_text.items()}
            for by_text in pooled
        ]

    def _ids(self, text: str) -> list[int]:
        ids = self.tokenizer.text_ids(text, self.reads_weights)
        return ids if len(ids) <= self.tokens else [*ids[: self.tokens - 1], self.tokenizer.end_id]
