"""From a prompt with edits and alternations to the text that holds at each step."""

from dataclasses import dataclass

from modules.prompting.schedule_grammar import Alternate, Edit, Part, Sequence, parse_structure, walk


@dataclass(frozen=True)
class ScheduledText:
    """The text for the steps after the previous entry's `end_at_step` up to and including this one (1-based)."""

    end_at_step: int
    text: str


@dataclass(frozen=True)
class _Timeline:
    """How the number in `[from:to:when]` becomes a step of the pass at hand.

    Since version 1.6 of the reference UI a number with a point is a share of the steps and any other a step; before,
    whatever was below 1 was a share. In the hires pass shares count from 1.0 and steps go on from the first pass.
    """

    steps: int
    first_share: float
    first_step: int
    old: bool

    def step_of(self, when: str) -> int:
        """The last step of the text before the switch, at most `steps`; below 1 the switch has already happened."""
        number = float(when)
        if self.old:
            step = number * self.steps if number < 1 else number
        elif "." in when:
            step = (number - self.first_share) * self.steps
        else:
            step = number - self.first_step
        return int(max(0.0, min(float(self.steps), step)))


def parse_schedule(
    prompt: str, steps: int, hires_steps: int | None = None, old_timelines: bool = False
) -> tuple[ScheduledText, ...]:
    """Split a prompt into the texts it stands for, step by step; never fails.

    `steps` are those of the first pass. With `hires_steps` the schedule is that of the hires pass, except under the
    old timelines, which know no second pass. The entries cover every step once: `end_at_step` grows strictly and
    ends at the last step of the pass. Neighbours may have equal texts.
    """
    if hires_steps is None or old_timelines:
        timeline = _Timeline(steps, first_share=0.0, first_step=0, old=old_timelines)
    else:
        timeline = _Timeline(hires_steps, first_share=1.0, first_step=steps, old=False)
    sequence = parse_structure(prompt)
    ends = {timeline.steps}
    switches: dict[str, int] = {}
    for node in walk(sequence):
        if isinstance(node, Alternate):
            ends.update(range(1, timeline.steps + 1))
        elif node.when not in switches:
            step = switches[node.when] = timeline.step_of(node.when)
            if step >= 1:
                ends.add(step)
    return tuple(ScheduledText(end, text_at(sequence, end, switches)) for end in sorted(ends))


def text_at(sequence: Sequence, step: int, switches: dict[str, int]) -> str:
    """The text of `sequence` at a step (1-based); `switches` maps the `when` of every edit to its step."""
    pieces: list[str] = []
    pending: list[Part] = list(reversed(sequence))
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            pieces.append(part)
        elif isinstance(part, Edit):
            pending += reversed(part.before if step <= switches[part.when] else part.after)
        else:
            pending += reversed(part.options[(step - 1) % len(part.options)])
    return "".join(pieces)
