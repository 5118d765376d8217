"""An example: what is drawn, how it is trained, what its preview shows. A new one is a new entry in `EXAMPLES`."""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from modules.registry import Registry
from modules.training.options import LoraOptions
from modules.training.pictures import CaptionedPicture


@dataclass(frozen=True, kw_only=True)
class Example:
    """`draw` makes one picture with its captions; the same random numbers give the same picture."""

    draw: Callable[[Random], CaptionedPicture]
    description: str
    activation: str  # what to write into the prompt
    pictures: int
    options: LoraOptions
    preview_prompt: str
    preview_seed: int = 1


EXAMPLES: Registry[Example] = Registry("example")


def draw_pictures(example: Example, count: int | None = None) -> list[CaptionedPicture]:
    """The example's training pictures, number i from seed i."""
    return [example.draw(Random(seed)) for seed in range(example.pictures if count is None else count)]
