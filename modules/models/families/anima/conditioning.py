"""Texts twice: as states of a language model, and as ids of T5's tokenizer, which an adapter turns into the tokens that
the denoiser attends to. Weights of a prompt multiply what becomes of T5's tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from modules.models.families.anima.denoiser import ADAPTER_COMPONENT, TOKENS
from modules.models.text_encoders.counting import plain_text
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer
from modules.models.text_encoders.llm import HiddenStates, LlmEncoder
from modules.models.text_encoders.t5 import t5_tokenizer
from modules.models.text_encoders.tokenizers import T5Tokenizer
from modules.prompting.attention import is_break, parse_attention
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

STATES = HiddenStates((-1,))
ENCODER, ADAPTER = "text_encoder", ADAPTER_COMPONENT
WEIGHING = (Emphasis.ORIGINAL, Emphasis.NO_NORM)
"""The kinds of emphasis under which weights count; the adapter's tokens have no mean that would be restored."""


class AdaptedTexts:
    """The family's `Conditioning`. The tokenizer is read when it is first needed."""

    def __init__(self, parts: TextParts) -> None:
        self._parts = parts
        self._tokenizer: T5Tokenizer | None = None

    def __call__(self, request: TextRequest) -> AdaptedConditioner:
        parts, adapter = self._parts, self._parts.encoders[ADAPTER]
        if self._tokenizer is None:
            self._tokenizer = t5_tokenizer(parts.checkpoint, int(adapter.config.target_vocab_size))
        model = parts.encoders[ENCODER]
        tokenizer = llm_tokenizer(parts.files)
        encoder = LlmEncoder(model, tokenizer, parts.device, STATES, most=TOKENS)
        return AdaptedConditioner(encoder, adapter, self._tokenizer, parts.device, request.options.emphasis)


@dataclass(frozen=True, eq=False)
class AdaptedConditioner:
    """A `TextConditioner`: tokens [512,width] of each text, zeros behind its last one. BREAK is a space."""

    encoder: LlmEncoder
    adapter: Any
    tokenizer: T5Tokenizer
    device: torch.device
    emphasis: Emphasis
    facts: Facts = ()

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        texts = list(dict.fromkeys(text for group in groups for text in group.texts))
        plain = [plain_text(text, self.emphasis) for text in texts]
        states = self.encoder.encode([text for text in plain if text] or [" "])
        found: dict[str, Conditioning] = {}
        row = 0
        for text, words in zip(texts, plain, strict=True):
            if words:
                source, row = states.real_tokens(row), row + 1
            else:  # no token of the language model: nothing is attended to
                source = torch.zeros_like(states.tokens[0, :1])
            found[text] = Conditioning(self._adapted(source, text))
        return [{text: found[text] for text in group.texts} for group in groups]

    @torch.no_grad()
    def _adapted(self, source: Tensor, text: str) -> Tensor:
        """`source` [n,width] are the language model's states."""
        ids, weights = self.tokenizer.weighted_ids(self._pieces(text))
        tokens: Tensor = self.adapter(source[None], torch.tensor([ids[:TOKENS]], device=self.device))[0]
        if any(weight != 1.0 for weight in weights):
            factors = torch.tensor(weights[:TOKENS], device=tokens.device, dtype=tokens.dtype)
            tokens[: len(factors)] *= factors[:, None]
        return tokens

    def _pieces(self, text: str) -> list[tuple[str, float]]:
        if self.emphasis not in WEIGHING:
            return [(plain_text(text, self.emphasis), 1.0)]
        return [(" ", 1.0) if is_break(piece) else piece for piece in parse_attention(text)]
