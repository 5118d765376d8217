"""CLIP text encoders side by side, and embedded sizes behind their pooled output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor

from modules.models.families.family import BuildEncoder, ExternalTextEncoder, Texts
from modules.models.text_encoders.clip_encoder import TextTowerRecipe
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.prompting.conditioning import Conditioning, Facts, TextGroup
from modules.prompting.encode import Encoded, TextOptions, TextTower, encode_groups
from modules.settings.values import Settings

NUMBER_WIDTH = 256  # values in the embedding of one number
MAX_PERIOD = 10_000.0


class SizeVector(StrEnum):
    """The values after the pooled text in the vector that is added to the time embedding (Podell et al. 2023,
    arXiv:2307.01952, section 2.2): sinusoidal embeddings of these numbers."""

    NONE = "nothing"
    SIZES = "original size, crop, target size"
    AESTHETIC = "original size, crop, aesthetic score"


@dataclass(frozen=True)
class SizeFacts:
    """The image that is to be made, and what the settings say of its crop and scores; zeros without a size vector."""

    width_px: int = 0
    height_px: int = 0
    crop_left_px: int = 0
    crop_top_px: int = 0
    low_score: float = 0.0
    high_score: float = 0.0

    @classmethod
    def of(cls, vector: SizeVector, size_px: tuple[int, int], settings: Settings) -> SizeFacts:
        """Return the facts that a family with this vector depends on."""
        if vector is SizeVector.NONE:
            return cls()
        scored = vector is SizeVector.AESTHETIC
        return cls(
            *size_px,
            settings.sdxl.sdxl_crop_left,
            settings.sdxl.sdxl_crop_top,
            settings.sdxl.sdxl_refiner_low_aesthetic_score if scored else 0.0,
            settings.sdxl.sdxl_refiner_high_aesthetic_score if scored else 0.0,
        )


@dataclass(frozen=True)
class ClipConditioning:
    """The towers' outputs are side by side on the feature axis.

    `zero_empty_negative`: a negative prompt without text becomes zeros instead of an encoding. `joins_pooled`: the
    vector begins with the pooled outputs of all towers, and not of the last alone.
    """

    towers: tuple[TextTowerRecipe, ...]
    sizes: SizeVector = SizeVector.NONE
    zero_empty_negative: bool = False
    joins_pooled: bool = False

    @property
    def components(self) -> tuple[str, ...]:
        """The text encoders."""
        return tuple(tower.component for tower in self.towers)

    def texts(self, encoders: BuildEncoder, external: tuple[ExternalTextEncoder, ...] = ()) -> Texts:
        """Return how a family with these text encoders reads prompts."""
        return Texts(
            encoders=(encoders,),
            conditioning=lambda parts: partial(self.conditioner, parts),
            reads_weights=True,
            reads_breaks=True,
            embedding_components=self.components,
            external=external,
        )

    def conditioner(self, parts: TextParts, request: TextRequest) -> ClipConditioner:
        """For one job."""
        sizes = SizeFacts.of(self.sizes, request.size_px, request.settings)
        skips = (
            any(tower.skips_by_options for tower in self.towers) and request.settings.stable_diffusion.sdxl_clip_l_skip
        )
        return ClipConditioner(
            tuple(tower.tower(parts, request) for tower in self.towers),
            request.options,
            size_vector(self.sizes, sizes, is_negative=False),
            size_vector(self.sizes, sizes, is_negative=True),
            self.zero_empty_negative,
            self.joins_pooled,
            facts=(("sizes", *vars(sizes).values()), ("clip skip by options", skips)),
        )


@dataclass(frozen=True, eq=False)
class ClipConditioner:
    """A `TextConditioner`. The last pooled output (with `joins_pooled` all of them) begins the vector, which
    `vector_suffix`, for negative prompts `negative_suffix`, [V] ends."""

    towers: tuple[TextTower, ...]
    options: TextOptions
    vector_suffix: Tensor | None = None
    negative_suffix: Tensor | None = None
    zero_empty_negative: bool = False
    joins_pooled: bool = False
    facts: Facts = ()

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """See `TextConditioner`."""
        texts = [list(group.texts) for group in groups]
        counts = [group.counts for group in groups]
        by_tower = [encode_groups(tower, texts, self.options, counts) for tower in self.towers]
        return [
            self._join([encoded[index] for encoded in by_tower], group, is_negative)
            for index, group in enumerate(texts)
        ]

    def _join(self, encoded: list[Encoded], texts: list[str], is_negative: bool) -> dict[str, Conditioning]:
        """The towers' encodings of each text as one conditioning."""
        crossattn = torch.cat([part.hidden for part in encoded], dim=-1)
        pooled = [part.pooled for part in encoded if part.pooled is not None]
        vector = torch.cat(pooled if self.joins_pooled else pooled[-1:], dim=-1) if pooled else None
        if is_negative and self.zero_empty_negative and not any(texts):
            crossattn = torch.zeros_like(crossattn)
            vector = None if vector is None else torch.zeros_like(vector)
        suffix = self.negative_suffix if is_negative else self.vector_suffix
        if vector is not None and suffix is not None:
            vector = torch.cat([vector, suffix.to(vector).expand(len(texts), -1)], dim=-1)
        return {
            text: Conditioning(crossattn[row], None if vector is None else vector[row])
            for row, text in enumerate(texts)
        }


def size_vector(vector: SizeVector, facts: SizeFacts, is_negative: bool) -> Tensor | None:
    """The end of the vector, [V] float32: the embedded numbers side by side. Negative prompts get the low score."""
    size = (facts.height_px, facts.width_px)
    crop = (facts.crop_top_px, facts.crop_left_px)
    if vector is SizeVector.NONE:
        return None
    if vector is SizeVector.SIZES:
        return sinusoidal((*size, *crop, *size))
    return sinusoidal((*size, *crop, facts.low_score if is_negative else facts.high_score))


def sinusoidal(numbers: tuple[float, ...]) -> Tensor:
    """Each number as cosines, then sines, of 128 frequencies from 1 down to nearly 1/10000; joined, float32."""
    half = NUMBER_WIDTH // 2
    frequencies = torch.exp(-torch.log(torch.tensor(MAX_PERIOD)) * torch.arange(half, dtype=torch.float32) / half)
    angles = torch.tensor(numbers, dtype=torch.float32)[:, None] * frequencies
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1).flatten()
