"""The common interface of text encoders: their parts, their requests and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from modules.prompting.conditioning import Conditioning
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.encode import TextOptions
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings

if TYPE_CHECKING:
    import torch
    from PIL import Image
    from torch import Tensor

    from modules.models.text_encoders.vision import Sight


@dataclass(frozen=True, eq=False)
class Encoding:
    """Texts as a text encoder gives them: `tokens` [B,T,D]; `mask` [B,T] on the CPU, True where a token is of the text
    and not padding, which follows it (None: every token counts); `pooled` [B,P], one vector per text, where the encoder
    makes one."""

    tokens: Tensor
    mask: Tensor | None = None
    pooled: Tensor | None = None

    def real_tokens(self, row: int) -> Tensor:
        """The tokens [n,D] of one text without padding."""
        return self.tokens[row] if self.mask is None else self.tokens[row, : int(self.mask[row].sum())]

    def masked(self, row: int) -> Conditioning:
        """One text as a conditioning of its real tokens alone, to be padded with zeros that a mask leaves out."""
        tokens = self.real_tokens(row)
        return Conditioning(
            tokens,
            None if self.pooled is None else self.pooled[row],
            _all_true(tokens.shape[0]),
        )


class TextEncoder(Protocol):
    """A text encoder with its tokenizer, ready for texts."""

    def encode(self, texts: Sequence[str]) -> Encoding:
        """The texts in one pass."""

    def count(self, text: str) -> int:
        """Tokens of a text, without those that frame every text."""


@dataclass(frozen=True, eq=False)
class TextParts:
    """The parts with which the texts of one loaded model are encoded: its text encoders by component, the tokenizer of
    CLIP, the device that computes, the path of the checkpoint, the width of the tokens that the denoiser takes, the
    files next to the checkpoint that parts came from, and what shows images to a language model that sees."""

    encoders: Mapping[str, Any]
    tokenizer: ClipTokenizer
    device: torch.device
    checkpoint: Path
    context_width: int
    files: tuple[Path, ...] = ()
    see: Callable[[Sequence[Image.Image]], list[Sight]] = lambda images: []


@dataclass(frozen=True, eq=False)
class TextRequest:
    """The request of a job to the text encoders: embeddings by the width of an encoder, the options, all settings, and
    the size of the image (width, height). With `has_gradients` CLIP's encodings can be trained through. `images`: what
    the model edits, for language models that see; `shown_as`: the name that they have in `ModelInputs.extra`."""

    embeddings: Mapping[int, EmbeddingTable]
    options: TextOptions
    settings: Settings
    size_px: tuple[int, int]
    has_gradients: bool = False
    images: tuple[Image.Image, ...] = ()
    shown_as: str = ""


def _all_true(tokens: int) -> Tensor:
    import torch

    return torch.ones(tokens, dtype=torch.bool)
