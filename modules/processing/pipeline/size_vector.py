"""Image sizes as numbers that SDXL is given (Podell et al. 2023, arXiv:2307.01952, section 2.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from modules.models.families.family import SizeVector
from modules.settings.values import Settings

NUMBER_WIDTH = 256  # values in the embedding of one number
MAX_PERIOD = 10_000.0


@dataclass(frozen=True)
class SizeFacts:
    """The image that is to be made, and what the settings for SDXL say; zeros for models without a size vector."""

    width_px: int = 0
    height_px: int = 0
    crop_left_px: int = 0
    crop_top_px: int = 0
    low_score: float = 0.0
    high_score: float = 0.0

    @classmethod
    def of(cls, kind: SizeVector, size_px: tuple[int, int], settings: Settings) -> SizeFacts:
        """What a family with this kind of vector depends on."""
        if kind is SizeVector.NONE:
            return cls()
        scored = kind is SizeVector.AESTHETIC
        return cls(
            *size_px,
            settings.whole("sdxl_crop_left"),
            settings.whole("sdxl_crop_top"),
            settings.number("sdxl_refiner_low_aesthetic_score") if scored else 0.0,
            settings.number("sdxl_refiner_high_aesthetic_score") if scored else 0.0,
        )


def size_vector(kind: SizeVector, facts: SizeFacts, is_negative: bool) -> Tensor | None:
    """The end of the vector, [V] float32: the embedded numbers side by side. Negative prompts get the low score."""
    size = (facts.height_px, facts.width_px)
    crop = (facts.crop_top_px, facts.crop_left_px)
    if kind is SizeVector.NONE:
        return None
    if kind is SizeVector.SIZES:
        return sinusoidal((*size, *crop, *size))
    return sinusoidal((*size, *crop, facts.low_score if is_negative else facts.high_score))


def sinusoidal(numbers: tuple[float, ...]) -> Tensor:
    """Each number as cosines, then sines, of 128 frequencies from 1 down to nearly 1/10000; joined, float32."""
    half = NUMBER_WIDTH // 2
    frequencies = torch.exp(-torch.log(torch.tensor(MAX_PERIOD)) * torch.arange(half, dtype=torch.float32) / half)
    angles = torch.tensor(numbers, dtype=torch.float32)[:, None] * frequencies
    return torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1).flatten()
