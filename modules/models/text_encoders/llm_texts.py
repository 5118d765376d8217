"""Texts to conditionings where a language model is the only text encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from PIL import Image

from modules.models.text_encoders.counting import plain_text
from modules.models.text_encoders.encoding import Encoding, TextParts, TextRequest
from modules.models.text_encoders.gguf_tokenizers import llm_tokenizer
from modules.models.text_encoders.llm import HiddenStates, LlmEncoder, Template
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import Sight, for_editing
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.emphasis import Emphasis

DESCRIBED = (
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial "
    "relationships of the objects and background:<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
)
"""The template of Qwen-Image and of models after it."""
DESCRIBED_SYSTEM_TOKENS = 34
"""Of that template in front of a text: the language model reads them, the denoiser is not given them."""

SEEN = "<|vision_start|><|image_pad|><|vision_end|>"
"""The place of an image in a text."""


@dataclass(frozen=True)
class ImageWords:
    """Words for each image in front of a text, with `{}` for its number, and what is between them. `shown`: the image
    as it is seen. `are_left_out`: whether the denoiser is given the words alone, and the images as latents."""

    words: str
    shown: Callable[[Image.Image], Image.Image] = for_editing
    between: str = ""
    are_left_out: bool = False

    def before(self, count: int) -> str:
        """Return the words of so many images."""
        return self.between.join(self.words.format(number) for number in range(1, count + 1))


@dataclass(frozen=True)
class LlmRecipe:
    """How a family uses a language model: which hidden states, the template around a text, how many tokens are read at
    most; with `padded_to` the denoiser is given so many tokens, padding included, and no mask. `keeps_end` and
    `dropped`: see `Template`. `tokenizer`: that of a model with these files. `empty`: what stands for a text without
    words. With a `window` the denoiser is given multiples of so many tokens, padding included. `images`: how those of a
    request are seen, of whose text alone `most` is then said. `pads_left`: see `Template`."""

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
    images: ImageWords | None = None
    pads_left: bool = False

    def conditioner(self, parts: TextParts, request: TextRequest) -> LlmConditioner:
        """For one job."""
        model = parts.encoders[self.component]
        encoder = LlmEncoder(
            model,
            self.tokenizer((*parts.files, parts.checkpoint)),
            parts.device,
            self.states,
            template=Template(self.template, self.keeps_end, self.dropped, self.pads_left),
            tokens=self.padded_to or 1,
            most=self.padded_to or self.most,
            window=self.window,
        )
        conditioner = LlmConditioner(encoder, request.options.emphasis, bool(self.padded_to), empty=self.empty)
        if self.images is None:
            return conditioner
        shown = [self.images.shown(image) for image in request.images]
        hashes = tuple(hashlib.sha256(f"{each.size}".encode() + each.tobytes()).hexdigest() for each in shown)
        before = self.images.before(len(shown))
        see, are_left_out = partial(parts.see, shown), self.images.are_left_out
        facts = (("images", before, *hashes),)
        return replace(conditioner, images=before, sights=see, leaves_out_images=are_left_out, facts=facts)


@dataclass(frozen=True, eq=False)
class LlmConditioner:
    """A `TextConditioner`. Brackets and weights are read and left out, unless they are text; BREAK is a space. `images`
    are the words in front of each text where `sights` are seen with it; `leaves_out_images`: see `ImageWords`."""

    encoder: LlmEncoder
    emphasis: Emphasis
    keeps_padding: bool = False
    facts: Facts = ()
    empty: str = ""
    images: str = ""
    sights: Callable[[], list[Sight]] | None = None
    leaves_out_images: bool = False

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        texts = list(dict.fromkeys(text for group in groups for text in group.texts))
        plain = [plain_text(text, self.emphasis) or self.empty for text in texts]
        if self.sights is not None:
            rows = self.encoder.encode_seeing(plain, self.images, self.sights(), self.leaves_out_images)
            seen = dict(zip(texts, (Encoding(row[None], None).masked(0) for row in rows), strict=True))
            return [{text: seen[text] for text in group.texts} for group in groups]
        encoding = self.encoder.encode(plain)
        found = {
            text: Conditioning(encoding.tokens[row]) if self.keeps_padding else encoding.masked(row)
            for row, text in enumerate(texts)
        }
        return [{text: found[text] for text in group.texts} for group in groups]
