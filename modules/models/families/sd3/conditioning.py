"""CLIP's tokens, filled up with zeros to the denoiser's width, and behind them as many of T5."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.models.families.ldm.conditioning import ClipConditioner, ClipConditioning
from modules.models.families.sd3.t5 import T5, tokenizer_of
from modules.models.text_encoders.clip_encoder import TextTowerRecipe
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.t5 import T5Encoder
from modules.models.text_encoders.tokenizers import T5Tokenizer
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

CLIP = ClipConditioning(
    (
        TextTowerRecipe("text_encoder", layer_from_end=2, final_norm=False, pooled=True),
        TextTowerRecipe("text_encoder_2", layer_from_end=2, final_norm=False, pad_id=0, pooled=True),
    ),
    joins_pooled=True,
)


class ClipAndT5:
    """The family's `Conditioning`. T5's tokenizer is read when it is first needed."""

    def __init__(self, parts: TextParts) -> None:
        self._parts = parts
        self._tokenizer: T5Tokenizer | None = None

    def __call__(self, request: TextRequest) -> "T5Conditioner":
        return T5Conditioner(CLIP.conditioner(self._parts, request), self._parts.context_width, self._t5(request))

    def _t5(self, request: TextRequest) -> Callable[[Sequence[str], int], Tensor] | None:
        module = self._parts.encoders.get(T5.component)
        if module is None:
            return None
        if self._tokenizer is None:
            parts = self._parts
            self._tokenizer = tokenizer_of(parts.checkpoint, int(module.config.vocab_size), parts.files)
        tokenizer, reads_weights = self._tokenizer, request.options.emphasis is not Emphasis.NONE

        def encode(texts: Sequence[str], tokens: int) -> Tensor:
            """Padding is seen, as by the models in training; what is beyond CLIP's tokens is cut off."""
            encoder = T5Encoder(
                module, tokenizer, self._parts.device, tokens=tokens, most=tokens, reads_weights=reads_weights
            )
            return encoder.encode(texts).tokens

        return encode


@dataclass(frozen=True, eq=False)
class T5Conditioner:
    """A `TextConditioner`. `encode` makes as many tokens [B,tokens,width] of the texts as CLIP has; zeros take their
    place without it, as the models were trained."""

    clip: ClipConditioner
    width: int
    encode: Callable[[Sequence[str], int], Tensor] | None = None

    @property
    def facts(self) -> Facts:
        """See `TextConditioner`."""
        return self.clip.facts

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        return [self._extended(by_text) for by_text in self.clip.conditioning(groups, is_negative)]

    def _extended(self, by_text: dict[str, Conditioning]) -> dict[str, Conditioning]:
        """[tokens, D] of each text to [2 tokens, width]."""
        clip = torch.stack([conditioning.crossattn for conditioning in by_text.values()])
        filled = F.pad(clip, (0, self.width - clip.shape[-1]))
        following = torch.zeros_like(filled)
        if self.encode is not None:
            following = self.encode(list(by_text), clip.shape[1]).to(filled)
        crossattn = torch.cat([filled, following], dim=1)
        return {
            text: Conditioning(crossattn[row], conditioning.vector)
            for row, (text, conditioning) in enumerate(by_text.items())
        }
