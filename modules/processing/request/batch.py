"""One batch of a job: its texts and seeds, and what each pass encodes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from modules.processing.request.hooks import BatchDraft
from modules.processing.request.request import GenerationRequest, seed_after
from modules.processing.request.texts import PromptText, prepare_text
from modules.settings.values import Settings


@dataclass(frozen=True)
class Batch:
    """A batch as it is made, with an entry for each image, and how its noise is drawn. `seed_resize_px` (width,
    height) is the size of the image whose composition is wanted back. `hires_prompts` and `hires_negatives` are as they
    were typed, "" for those of the first pass."""

    number: int
    prompts: tuple[PromptText, ...]
    negatives: tuple[PromptText, ...]
    seeds: tuple[int, ...]
    subseeds: tuple[int, ...]
    subseed_strength: float = 0.0
    seed_resize_px: tuple[int, int] | None = None
    hires_prompts: tuple[str, ...] = ()
    hires_negatives: tuple[str, ...] = ()

    @classmethod
    def of(cls, draft: BatchDraft, request: GenerationRequest) -> Batch:
        """The batch as hooks have left it."""
        resize = (request.seed_resize_from_width, request.seed_resize_from_height)
        return cls(
            draft.number,
            tuple(prepare_text(text, request.settings) for text in draft.prompts),
            tuple(prepare_text(text, request.settings, with_tags=False) for text in draft.negative_prompts),
            tuple(draft.seeds),
            tuple(draft.subseeds),
            request.subseed_strength,
            resize if min(resize) > 0 else None,
            tuple(draft.hires_prompts),
            tuple(draft.hires_negative_prompts),
        )

    @property
    def texts(self) -> list[str]:
        """All that is encoded for the first pass."""
        return [text.encoded for text in (*self.prompts, *self.negatives)]


def draft_of(request: GenerationRequest, number: int) -> BatchDraft:
    """A batch as the request has it. Seeds count up over the whole job; with a variation strength only the variation
    seeds do. 0 follows on `MAX_SEED`."""
    count = request.batch_size
    numbers = range(number * count, (number + 1) * count)
    hires = request.hires
    is_fixed = request.subseed_strength > 0
    return BatchDraft(
        number,
        [request.prompt] * count,
        [request.negative_prompt] * count,
        [seed_after(request.seed, 0 if is_fixed else i) for i in numbers],
        [seed_after(request.subseed, i) for i in numbers],
        [hires.prompt if hires else ""] * count,
        [hires.negative_prompt if hires else ""] * count,
    )


@dataclass(frozen=True)
class PassTexts:
    """The texts that a pass encodes: a text per image, for `model_calls` of the first pass (and `hires_model_calls` of
    the second) and an image of `size_px` (width, height). `images`: what each image is edited from, or one row for all
    of them."""

    prompts: tuple[str, ...]
    negatives: tuple[str, ...]
    model_calls: int
    size_px: tuple[int, int]
    hires_model_calls: int | None = None
    images: tuple[tuple[Image.Image, ...], ...] = ((),)


def with_own_texts(
    texts: Sequence[PromptText], own: Sequence[str], settings: Settings, with_tags: bool
) -> tuple[str, ...]:
    """The texts that a second pass encodes, one for each image: its own, or where that is empty that of the first."""
    return tuple(
        prepare_text(text, settings, with_tags).encoded if text else first.encoded
        for first, text in zip(texts, own, strict=True)
    )
