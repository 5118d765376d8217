"""`a AND b :0.5`: prompts that are denoised side by side and summed around the unconditional.

Liu et al. 2022, "Compositional Visual Generation with Composable Diffusion Models" (arXiv:2206.01714).
"""

import re
from dataclasses import dataclass

from modules.errors import InvalidValueError

MAX_PARTS = 64
"""Each part is one more model call in every step."""

_AND = re.compile(r"\bAND\b")
_WEIGHT = re.compile(r"\s*([-+]?(?:\d+\.?|\d*\.\d+))")


@dataclass(frozen=True)
class WeightedText:
    """One part of a composed prompt; negative weights push away from it."""

    text: str
    weight: float = 1.0


def split_composition(prompt: str) -> tuple[WeightedText, ...]:
    """The parts between the upper-case words AND, at least one; a part may end with `:weight`.

    Space before the weight and at a part's end is dropped, space at its start is kept, as in the recordings.
    """
    return tuple(_weighted(part) for part in _AND.split(prompt))


def check_part_count(prompt: str) -> None:
    """Raise InvalidValueError for a prompt of more than `MAX_PARTS` parts."""
    count = len(_AND.findall(prompt)) + 1
    if count > MAX_PARTS:
        raise InvalidValueError(
            f"The prompt has {count} parts joined by AND; allowed are {MAX_PARTS}. Write the word in lower case where "
            "it joins no prompts."
        )


def _weighted(part: str) -> WeightedText:
    text = part.rstrip()
    before, colon, number = text.rpartition(":")
    weight = _WEIGHT.fullmatch(number) if colon else None
    if weight is None:
        return WeightedText(text)
    return WeightedText(before.rstrip(), float(weight.group(1)))
