"""Prompts to conditionings: what the denoiser is given at each step."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.prompting.composition import split_composition
from modules.prompting.encode import Encoded, TextOptions, TextTower, encode_groups
from modules.prompting.schedule import ScheduledText, parse_schedule


@dataclass(frozen=True, eq=False)
class Conditioning:
    """What the denoiser attends to: `crossattn` [tokens, D] and, for SDXL, a `vector` [P]."""

    crossattn: Tensor
    vector: Tensor | None = None


@dataclass(frozen=True, eq=False)
class ScheduledConditioning:
    """Conditionings with the last step (1-based) each of them holds for, in order of steps."""

    entries: tuple[tuple[int, Conditioning], ...]

    def at(self, step: int) -> Conditioning:
        """The conditioning for a step, 1-based; steps beyond the schedule get the last one."""
        for end_at_step, conditioning in self.entries:
            if step <= end_at_step:
                return conditioning
        return self.entries[-1][1]


@dataclass(frozen=True, eq=False)
class ComposedConditioning:
    """The parts of a prompt joined by AND, with their weights."""

    parts: tuple[tuple[ScheduledConditioning, float], ...]

    def at(self, step: int) -> tuple[tuple[Conditioning, float], ...]:
        """Each part's conditioning and weight at a step, 1-based."""
        return tuple((part.at(step), weight) for part, weight in self.parts)


@dataclass(frozen=True)
class Timing:
    """The steps a prompt is spread over; see `parse_schedule`."""

    steps: int
    hires_steps: int | None = None
    old_timelines: bool = False


@dataclass(frozen=True)
class ExtraTokens:
    """What follows the tokens of the towers: as many of `width` features, made by `encode` (texts, tokens) as [B,
    tokens, width]; zeros without it."""

    width: int
    encode: Callable[[Sequence[str], int], Tensor] | None = None

    def append_to(self, crossattn: Tensor, texts: Sequence[str]) -> Tensor:
        """[B,T,D] to [B,2T,width]."""
        filled = F.pad(crossattn, (0, self.width - crossattn.shape[-1]))
        tokens = crossattn.shape[1]
        following = torch.zeros_like(filled) if self.encode is None else self.encode(texts, tokens).to(filled)
        return torch.cat([filled, following], dim=1)


@dataclass(frozen=True, eq=False)
class PromptEncoder:
    """All that stands between a text and its conditioning.

    `towers`: the model's text encoders; their encodings lie side by side on the feature axis, and the last pooled
    output (with `joins_pooled` all of them) begins the vector, which `vector_suffix` [V] (SDXL: the embedded sizes)
    ends. With `zero_empty_negative` a negative prompt without any text becomes zeros in place of an encoding, as SDXL
    was trained.

    With `follower` (SD3) the features are filled up with zeros to its width, and its tokens follow.
    """

    towers: tuple[TextTower, ...]
    options: TextOptions = field(default_factory=TextOptions)
    vector_suffix: Tensor | None = None
    zero_empty_negative: bool = False
    joins_pooled: bool = False
    extra_tokens: ExtraTokens | None = None

    def encode_prompt(self, prompt: str, timing: Timing) -> ComposedConditioning:
        """One positive prompt."""
        return self.encode_prompts([prompt], timing)[0]

    def encode_negative(self, prompt: str, timing: Timing) -> ScheduledConditioning:
        """One negative prompt, in which AND is a word like any other."""
        return self.encode_negatives([prompt], timing)[0]

    def encode_prompts(self, prompts: Sequence[str], timing: Timing) -> list[ComposedConditioning]:
        """The positive prompts of a job, all texts in one pass and equal ones once."""
        compositions = [split_composition(prompt) for prompt in prompts]
        texts = [part.text for composition in compositions for part in composition]
        scheduled = self._encode_schedules(texts, timing, zero_empty=False)
        return [
            ComposedConditioning(tuple((scheduled[part.text], part.weight) for part in composition))
            for composition in compositions
        ]

    def encode_negatives(self, prompts: Sequence[str], timing: Timing) -> list[ScheduledConditioning]:
        """The negative prompts of a job."""
        scheduled = self._encode_schedules(prompts, timing, zero_empty=self.zero_empty_negative)
        return [scheduled[prompt] for prompt in prompts]

    def encode_empty(self) -> Conditioning:
        """The encoding of the empty text in one chunk, for `pad_conditionings`."""
        return self._encode_schedules([""], Timing(1), zero_empty=False)[""].entries[0][1]

    def _encode_schedules(
        self, prompts: Sequence[str], timing: Timing, zero_empty: bool
    ) -> dict[str, ScheduledConditioning]:
        schedules = {
            prompt: parse_schedule(prompt, timing.steps, timing.hires_steps, timing.old_timelines) for prompt in prompts
        }
        counts = [Counter(entry.text for entry in schedule) for schedule in schedules.values()]
        groups = [list(count) for count in counts]
        repeats = [list(count.values()) for count in counts]
        by_tower = [encode_groups(tower, groups, self.options, repeats) for tower in self.towers]
        result: dict[str, ScheduledConditioning] = {}
        for index, (prompt, schedule) in enumerate(schedules.items()):
            all_empty = zero_empty and not any(groups[index])
            conditionings = self._join([encoded[index] for encoded in by_tower], groups[index], all_empty)
            result[prompt] = _schedule(schedule, conditionings)
        return result

    def _join(self, encoded: list[Encoded], texts: list[str], as_zeros: bool) -> dict[str, Conditioning]:
        """The towers' encodings of each text as one conditioning."""
        crossattn = torch.cat([part.hidden for part in encoded], dim=-1)
        pooled = [part.pooled for part in encoded if part.pooled is not None]
        vector = (torch.cat(pooled, dim=-1) if self.joins_pooled else pooled[-1]) if pooled else None
        if self.extra_tokens is not None:
            crossattn = self.extra_tokens.append_to(crossattn, texts)
        if as_zeros:
            crossattn = torch.zeros_like(crossattn)
            vector = None if vector is None else torch.zeros_like(vector)
        if vector is not None and self.vector_suffix is not None:
            suffix = self.vector_suffix.to(vector).expand(len(texts), -1)
            vector = torch.cat([vector, suffix], dim=-1)
        return {
            text: Conditioning(crossattn[row], None if vector is None else vector[row])
            for row, text in enumerate(texts)
        }


def _schedule(texts: tuple[ScheduledText, ...], conditionings: dict[str, Conditioning]) -> ScheduledConditioning:
    return ScheduledConditioning(tuple((entry.end_at_step, conditionings[entry.text]) for entry in texts))


def encode_prompt(encoder: PromptEncoder, prompt: str, timing: Timing) -> ComposedConditioning:
    """`PromptEncoder.encode_prompt` as a function."""
    return encoder.encode_prompt(prompt, timing)


def encode_negative(encoder: PromptEncoder, prompt: str, timing: Timing) -> ScheduledConditioning:
    """`PromptEncoder.encode_negative` as a function."""
    return encoder.encode_negative(prompt, timing)
