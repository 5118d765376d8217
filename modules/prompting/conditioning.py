"""Prompts to conditionings: what the denoiser is given at each step."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from modules.prompting.composition import split_composition
from modules.prompting.schedule import parse_schedule


@dataclass(frozen=True, eq=False)
class Conditioning:
    """Conditioning that the denoiser attends to: `crossattn` [tokens, D] and, in families that have one, a `vector`
    [P].

    `mask` [tokens], on the CPU, True where a token counts, says how it is padded to the length of another: with zeros
    that the mask leaves out. None: by repeating the last vector, as CLIP wants it.
    """

    crossattn: Tensor
    vector: Tensor | None = None
    mask: Tensor | None = None


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


Facts = tuple[tuple[object, ...], ...]


@dataclass(frozen=True)
class TextGroup:
    """The texts of one prompt's schedule, each once, and how many of its entries have it."""

    texts: tuple[str, ...]
    counts: tuple[int, ...]


class TextConditioner(Protocol):
    """Encoder of a model's texts: its family's, for one job."""

    @property
    def facts(self) -> Facts:
        """Facts that its encodings depend on besides the text encoders and the text options; part of the cache's
        key."""

    def conditioning(self, groups: Sequence[TextGroup], is_negative: bool) -> list[dict[str, Conditioning]]:
        """The conditionings of each group by text, all in one pass. A group is restored to one mean by emphasis."""


@dataclass(frozen=True, eq=False)
class PromptEncoder:
    """Prompts with their syntax (AND, schedules) to the conditionings of their texts."""

    conditioner: TextConditioner

    def encode_prompts(self, prompts: Sequence[str], timing: Timing) -> list[ComposedConditioning]:
        """The positive prompts of a job, all texts in one pass and equal ones once."""
        compositions = [split_composition(prompt) for prompt in prompts]
        texts = [part.text for composition in compositions for part in composition]
        scheduled = self._encode_schedules(texts, timing, is_negative=False)
        return [
            ComposedConditioning(tuple((scheduled[part.text], part.weight) for part in composition))
            for composition in compositions
        ]

    def encode_negatives(self, prompts: Sequence[str], timing: Timing) -> list[ScheduledConditioning]:
        """The negative prompts of a job."""
        scheduled = self._encode_schedules(prompts, timing, is_negative=True)
        return [scheduled[prompt] for prompt in prompts]

    def encode_empty(self) -> Conditioning:
        """The encoding of the empty text in one chunk, for `pad_conditionings`."""
        return self._encode_schedules([""], Timing(1), is_negative=False)[""].entries[0][1]

    def _encode_schedules(
        self, prompts: Sequence[str], timing: Timing, is_negative: bool
    ) -> dict[str, ScheduledConditioning]:
        schedules = {
            prompt: parse_schedule(prompt, timing.steps, timing.hires_steps, timing.old_timelines) for prompt in prompts
        }
        counts = [Counter(entry.text for entry in schedule) for schedule in schedules.values()]
        groups = [TextGroup(tuple(count), tuple(count.values())) for count in counts]
        encoded = self.conditioner.conditioning(groups, is_negative)
        return {
            prompt: ScheduledConditioning(tuple((entry.end_at_step, by_text[entry.text]) for entry in schedule))
            for (prompt, schedule), by_text in zip(schedules.items(), encoded, strict=True)
        }
