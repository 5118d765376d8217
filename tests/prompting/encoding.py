"""One text or prompt at a time, for tests."""

from collections.abc import Sequence

from modules.prompting.conditioning import ComposedConditioning, PromptEncoder, ScheduledConditioning, Timing
from modules.prompting.encode import Encoded, TextOptions, TextTower, encode_groups


def encode_group(
    tower: TextTower, texts: Sequence[str], options: TextOptions, counts: Sequence[int] | None = None
) -> Encoded:
    """The texts of one prompt's schedule."""
    return encode_groups(tower, [texts], options, None if counts is None else [counts])[0]


def encode_prompt(encoder: PromptEncoder, prompt: str, timing: Timing) -> ComposedConditioning:
    """One positive prompt."""
    return encoder.encode_prompts([prompt], timing)[0]


def encode_negative(encoder: PromptEncoder, prompt: str, timing: Timing) -> ScheduledConditioning:
    """One negative prompt."""
    return encoder.encode_negatives([prompt], timing)[0]
