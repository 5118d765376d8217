"""An example: what is drawn, how it is trained, what its preview shows. A new one is a new entry in `EXAMPLES`."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from modules.registry import Registry
from modules.training.images import CaptionedImage
from modules.training.options import LoraOptions


@dataclass(frozen=True, kw_only=True)
class Example:
    """`draw` makes one image with its captions; the same random numbers give the same image."""

    draw: Callable[[Random], CaptionedImage]
    description: str
    activation: str  # what to write into the prompt
    images: int
    options: LoraOptions
    preview_prompt: str
    preview_seed: int = 1


EXAMPLES: Registry[Example] = Registry("example")


def draw_images(example: Example, count: int | None = None) -> list[CaptionedImage]:
    """The example's training images, number i from seed i."""
    return [example.draw(Random(seed)) for seed in range(example.images if count is None else count)]
