"""Texts to conditionings where a language model is the only text encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.models.text_encoders.counting import plain_text
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer
from modules.models.text_encoders.llm import HiddenStates, LlmEncoder, Template
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

DESCRIBED = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""The template of Qwen-Image and of models after it."""
DESCRIBED_SYSTEM_TOKENS = 34
"""Of that template in front of a text: the language model reads them, the denoiser is not given them."""


@dataclass(frozen=True)
class LlmRecipe:
    """How a family uses a language model: which hidden states, the template around a text, how many tokens are read at
    most; with `padded_to` the denoiser is given so many tokens, padding included, and no mask. `keeps_end` and
    `dropped`: see `Template`. `tokenizer`: that of a model with these files. `empty`: what stands for a text without
    words. With a `window` the denoiser is given multiples of so many tokens, padding included."""

    states: HiddenStates
    template: str = "{}"
    most: int | None = None
    padded_to: int = 0
    component: str = "text_encoder"
    keeps_end: bool = False
    dropped: int = 0
    tokenizer: Callable[[Sequence[Path]], LlmTokenizer] = llm_tokenizer
    empty: str = ""
    window: int = 0

    def conditioner(self, parts: TextParts, request: TextRequest) -> LlmConditioner:
        """For one job."""
        model = parts.encoders[self.component]
        encoder = LlmEncoder(
            model,
            self.tokenizer((*parts.files, parts.checkpoint)),
            parts.device,
            self.states,
            template=Template(self.template, self.keeps_end, self.dropped),
            tokens=self.padded_to or 1,
            most=self.padded_to or self.most,
            window=self.window,
        )
        return LlmConditioner(encoder, request.options.emphasis, bool(self.padded_to), empty=self.empty)


@dataclass(frozen=True, eq=False)
class LlmConditioner:
    """A `TextConditioner`. Brackets and weights are read and left out, unless they are text; BREAK is a space."""

    encoder: LlmEncoder
    emphasis: Emphasis
    keeps_padding: bool = False
    facts: Facts = ()
    empty: str = ""

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        texts = list(dict.fromkeys(text for group in groups for text in group.texts))
        encoding = self.encoder.encode([plain_text(text, self.emphasis) or self.empty for text in texts])
        found = {
            text: Conditioning(encoding.tokens[row]) if self.keeps_padding else encoding.masked(row)
            for row, text in enumerate(texts)
        }
        return [{text: found[text] for text in group.texts} for group in groups]
