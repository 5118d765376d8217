"""`modules.prompt_parser`: prompts taken apart. Encoding them is the program's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from compat.facades.refusal import refusing
from modules.prompting.attention import parse_attention
from modules.prompting.composition import split_composition
from modules.prompting.schedule import parse_schedule

re_AND = re.compile(r"\bAND\b")  # noqa: N816 - their names
re_break = re.compile(r"\s*\bBREAK\b\s*")


class SdConditioning(list[Any]):
    """A list of prompts with the size of the image they are for."""

    def __init__(
        self,
        prompts: Sequence[Any],
        is_negative_prompt: bool = False,
        width: int | None = None,
        height: int | None = None,
        copy_from: Any = None,
        distilled_cfg_scale: float | None = None,
    ) -> None:
        super().__init__(prompts)
        source = copy_from if copy_from is not None else prompts
        self.is_negative_prompt = is_negative_prompt or bool(getattr(source, "is_negative_prompt", False))
        self.width = width or getattr(source, "width", None)
        self.height = height or getattr(source, "height", None)


class ScheduledPromptConditioning(NamedTuple):
    """An encoded prompt and the last step that it holds for."""

    end_at_step: int
    cond: Any


class ComposableScheduledPromptConditioning:
    """Schedules of one part of a prompt, with its weight."""

    def __init__(self, schedules: Any, weight: float = 1.0) -> None:
        self.schedules = schedules
        self.weight = weight


class MulticondLearnedConditioning:
    """The parts of several prompts."""

    def __init__(self, shape: Any, batch: Any) -> None:
        self.shape = shape
        self.batch = batch


def parse_prompt_attention(text: str) -> list[list[Any]]:
    """Pieces of a prompt as [text, weight]; BREAK is ["BREAK", -1]."""
    return [[piece, weight] for piece, weight in parse_attention(text)]


def get_learned_conditioning_prompt_schedules(
    prompts: Sequence[str], base_steps: int, hires_steps: int | None = None, use_old_scheduling: bool = False
) -> list[list[list[Any]]]:
    """For each prompt the texts that it stands for, as [last step, text]."""
    return [
        [[one.end_at_step, one.text] for one in parse_schedule(prompt, base_steps, hires_steps, use_old_scheduling)]
        for prompt in prompts
    ]


def get_multicond_prompt_list(prompts: Sequence[str]) -> tuple[list[list[tuple[int, float]]], Any, dict[str, int]]:
    """Prompts taken apart at AND: for each its parts as (number, weight), all parts, and the number of each."""
    indexes: list[list[tuple[int, float]]] = []
    flat: list[str] = []
    known: dict[str, int] = {}
    for prompt in prompts:
        found = []
        for part in split_composition(prompt):
            if part.text not in known:
                known[part.text] = len(flat)
                flat.append(part.text)
            found.append((known[part.text], part.weight))
        indexes.append(found)
    return indexes, SdConditioning(flat, copy_from=prompts), known


_ENCODED = "prompts are encoded by the program; on_cfg_denoiser has them as text_cond and text_uncond."
NAMES: tuple[str, ...] = ("get_learned_conditioning", "get_multicond_learned_conditioning", "reconstruct_cond_batch")
NAMES += ("reconstruct_multicond_batch", "DictWithShape", "stack_conds")
_PARSED = "parse_prompt_attention takes a prompt apart."
REASONS = {**dict.fromkeys(NAMES, _ENCODED), "re_attention": _PARSED, "re_weight": _PARSED}
__getattr__ = refusing("prompt_parser", REASONS)
