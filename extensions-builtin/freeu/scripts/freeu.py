"""FreeU: stronger backbone features and weaker skips in a UNet's decoder (Si et al. 2023, arXiv:2309.11497).

Arguments and fields of infotexts are those of the extension "FreeU" (a dictionary with stages, or one value after the
other) and of Forge's built-in "FreeU Integrated".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.scripts.fields import Field, FieldScript, portion, switch, truths
from modules.scripts.unet_blocks import UnetBlocks, before
from modules.system.bounded import read_json

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import ModelUse

TITLE = "FreeU"
FORGE = "FreeU Integrated (SD 1.x, SD 2.x, SDXL)"
VERSIONS = {"1": "1", "2": "2", "Version 1": "1", "Version 2": "2"}
FIRST_VERSION = "1"
"""The version of arguments and infotexts of the extension that name none."""
SCHEDULE = ("start_ratio", "stop_ratio")
EACH_PASS = "each_pass"
FIRST_CALLS = "freeu_calls"  # at a job: how often its first pass has called the model
STAGES = 3
STAGE_ARGUMENTS = 6


@dataclass(frozen=True)
class Stage:
    """Change where the features have a certain width: the part of the backbone's channels from `backbone_offset`
    on, `backbone_width` of them, is multiplied; of the skip the frequencies below `skip_cutoff`, and those above."""

    backbone_factor: float = 1.0
    skip_factor: float = 1.0
    backbone_offset: float = 0.0
    backbone_width: float = 0.5
    skip_cutoff: float = 0.0
    skip_high_end_factor: float = 1.0

    @classmethod
    def of(cls, given: Any, title: str) -> Stage:
        """From JSON; raises `InvalidValueError`."""
        known = [field.name for field in fields(cls)]
        if not isinstance(given, Mapping) or set(given) - set(known):
            raise InvalidValueError(f"{title}: a stage is {given!r}; allowed is an object of {', '.join(known)}.")
        given = {name: _number(value) for name, value in given.items()}
        for name, value in given.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise InvalidValueError(f"{title}: {name} is {value!r}; allowed is a number.")
        return cls(**{name: float(value) for name, value in given.items()})

    @property
    def differences(self) -> dict[str, float]:
        """Return what is not as it is by default."""
        usual = asdict(Stage())
        return {name: value for name, value in asdict(self).items() if value != usual[name]}


def _number(value: Any) -> Any:
    """Return a text as the number that it says, else the value."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _factor(name: str, label: str, default: float) -> Field:
    return Field(name=name, label=label, default=default, elem_id=f"freeu_{name}", low=-1.0, high=2.0, step=0.01)


@dataclass(frozen=True)
class Schedule:
    """The part of the sampling in which the change holds. `start` and `stop` are portions of the steps of a pass, or
    whole numbers of steps, counted by calls of the model from the beginning of the image on, as the extension does.
    With `is_of_each_pass` they are portions of every pass by its own steps, as in Forge."""

    start: float | int
    stop: float | int
    smooth: float
    is_of_each_pass: bool

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Schedule:
        """Read the rows, and what the stages say instead of them. Raises `InvalidValueError`."""
        given = options_of(values["stages"])
        start, stop = (given.get(key, float(values[row])) for key, row in zip(SCHEDULE, ("start", "stop"), strict=True))
        return cls(start, stop, float(values["smooth"]), bool(given.get(EACH_PASS)))

    @property
    def text(self) -> str:
        """The text for infotexts, of which the reference UI reads the first three parts."""
        parts = [str(self.start), str(self.stop), str(self.smooth)]
        return ", ".join([*parts, EACH_PASS] if self.is_of_each_pass else parts)

    def strength(self, calls: int, reported: int, steps: int) -> float:
        """Return how much of the change holds, 0 to 1, after so many calls for this image, and at the step that the
        sampler has reported of the pass's `steps`."""
        if self.is_of_each_pass:
            return float(self.start <= reported / max(steps - 1, 1) <= self.stop)
        start, stop = (int(at * steps) if isinstance(at, float) else at for at in (self.start, self.stop))
        is_between = float(start <= calls < stop)
        if start == stop:
            ramp = 0.0
        elif calls < start:
            ramp = calls / start
        else:
            ramp = 1 + (calls - start) / (start - stop)
        return (1 - self.smooth) * is_between + self.smooth * min(max(ramp, 0.0), 1.0)


class FreeU(FieldScript):
    """The script. The row "stages" has what the others cannot say, as JSON; it is used instead of them: a list of
    stages, or the dictionary of calling programs."""

    rows = (
        switch("freeu"),
        _factor("b1", "Backbone 1", 1.01),
        _factor("b2", "Backbone 2", 1.02),
        _factor("s1", "Skip 1", 0.99),
        _factor("s2", "Skip 2", 0.95),
        portion("start", "Start", 0.0, "freeu_start"),
        portion("stop", "End", 1.0, "freeu_end"),
        portion("smooth", "Transition smoothness", 0.0, "freeu_smooth"),
        Field(
            name="version", label="Version", default="2", elem_id="freeu_version", choices=("1", "2"),
            infotext="FreeU Version",
        ),
        Field(
            name="stages", label="Stages as JSON", default="", elem_id="freeu_stages", infotext="FreeU Stages",
            hint="Replaces the factors above: a list of up to three stages",
        ),
    )  # fmt: skip
    infotext_switch = "FreeU Stages"
    other_titles = (FORGE,)

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Callable[[Mapping[str, Any]], Any] | None:
        def of_schedule(parsed: Mapping[str, Any]) -> Any:
            parts = [part.strip() for part in str(parsed.get("FreeU Schedule", "")).split(",")]
            if row.name == "version":
                return parsed.get("FreeU Version", FIRST_VERSION if "FreeU Stages" in parsed else None)
            if len(parts) < 3:
                return parsed.get("FreeU Stages") if row.name == "stages" else None
            steps = {key: int(part) for key, part in zip(SCHEDULE, parts, strict=False) if part.isdigit()}
            more = steps | ({EACH_PASS: True} if EACH_PASS in parts else {})
            if row.name == "stages":
                stages = parsed.get("FreeU Stages", "")
                return f'{{"stage_infos": {stages}, {json.dumps(more)[1:]}' if stages and more else stages
            part = parts[("start", "stop", "smooth").index(row.name)]
            return None if part.isdigit() else float(part)

        return of_schedule if row.name in ("start", "stop", "smooth", "version", "stages") else None

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """A dictionary, perhaps behind the switch; 23 values of the extension, or 22 of versions that had no version;
        seven of Forge's; or this script's own ten."""
        args = truths(args)
        if len(args) == 2 and isinstance(args[0], bool) and isinstance(args[1], Mapping):
            args = [{**args[1], "enable": args[0]}]
        if title.lower() == FORGE.lower():
            if len(args) > 7:
                raise InvalidValueError(f"{title} takes 7 arguments, {len(args)} were given.")
            return self.checked([*args, *[None] * (9 - len(args)), json.dumps({EACH_PASS: True})], title)
        if args and isinstance(args[0], Mapping):
            if len(args) > 1:
                raise InvalidValueError(f"{title} takes one object, {len(args)} arguments were given.")
            return self.checked(_of_mapping(args[0], title), title)
        if len(args) > 4 and (len(args) > len(self.rows) or args[4] in VERSIONS):
            return self.checked(_of_positions(args, title), title)
        return self.checked(args, title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        stages = [stage.differences for stage in stages_of(values)]
        while stages and not stages[-1]:
            stages.pop()
        p.extra_generation_params["FreeU Stages"] = json.dumps(stages)
        p.extra_generation_params["FreeU Schedule"] = Schedule.of(values).text
        p.extra_generation_params["FreeU Version"] = values["version"]

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        blocks = UnetBlocks.of(use.model.unet, use)
        if blocks is None:
            use.notice(f"FreeU has no effect on {use.model.family.label}: its denoiser is no UNet.")
            return
        base = int(use.model.unet.conv_in.out_channels)
        by_width = {base * times: stage for times, stage in zip((4, 2, 1), stages_of(values), strict=True)}
        schedule, facts = Schedule.of(values), use.facts
        later_calls = facts.calls_per_step - 1  # that the last step does without
        earlier = getattr(p, FIRST_CALLS, p.steps * facts.calls_per_step - later_calls) if facts.is_hires else 0

        def strength() -> float:
            calls = use.call.step + earlier
            if not facts.is_hires:
                setattr(p, FIRST_CALLS, calls + 1)
            return schedule.strength(calls, use.reported_step, facts.steps)

        for number, block in enumerate(blocks.outputs):
            change = partial(
                _changed, blocks=blocks, output=number, by_width=by_width, version=values["version"], strength=strength
            )
            use.hook(block.first, before(change))


def stages_of(values: Mapping[str, Any]) -> list[Stage]:
    """The three stages. Raises `InvalidValueError`."""
    given = options_of(values["stages"]).get("stage_infos")
    if given is None:
        found = [Stage(values["b1"], values["s1"]), Stage(values["b2"], values["s2"])]
    else:
        if not isinstance(given, list) or len(given) > STAGES:
            raise InvalidValueError(f"FreeU: the stages are {given!r}; allowed is a list of at most {STAGES} objects.")
        found = [Stage.of(each, TITLE) for each in given]
    return [*found, *[Stage()] * (STAGES - len(found))]


def options_of(text: str) -> Mapping[str, Any]:
    """Read the row "stages". Raises `InvalidValueError`."""
    if not text.strip():
        return {}
    try:
        given = read_json(text)
    except ValueError as error:
        raise InvalidValueError(f"FreeU: the stages are no JSON ({error}). Write a list of objects.") from error
    if not isinstance(given, Mapping):
        return {"stage_infos": given}
    numbers = [given[key] for key in SCHEDULE if key in given]
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers):
        raise InvalidValueError(f"FreeU: {' and '.join(SCHEDULE)} are {numbers}; allowed are numbers.")
    return given


def _of_mapping(given: Mapping[str, Any], title: str) -> list[Any]:
    known = ("enable", *SCHEDULE, "transition_smoothness", "version", "stage_infos")
    if set(given) - set(known):
        raise InvalidValueError(f"{title}: {sorted(set(given) - set(known))} is not known; known: {', '.join(known)}.")
    stages = given.get("stage_infos", [])
    if not isinstance(stages, list):
        raise InvalidValueError(f"{title}: stage_infos is {stages!r}; allowed is a list of objects.")
    read: Any = [stage.differences for stage in _grouped(stages, title)]
    given = {**given, **{key: _number(given[key]) for key in SCHEDULE if key in given}}
    steps = {key: given[key] for key in SCHEDULE if isinstance(given.get(key), int)}
    schedule = [None if name in steps else given.get(name) for name in known[1:4]]
    if steps:
        read = {"stage_infos": read, **steps}
    return [given.get("enable", True), *[None] * 4, *schedule, _version(given.get("version"), title), json.dumps(read)]


def _grouped(stages: Sequence[Any], title: str) -> list[Stage]:
    """Read the first stages of a list of objects, or of numbers one after the other."""
    found: list[Stage] = []
    rest = list(stages)
    while rest and len(found) < STAGES:
        count = 1 if isinstance(rest[0], Mapping) else STAGE_ARGUMENTS
        found.append(Stage.of(rest[0] if count == 1 else _named(rest[:count]), title))
        del rest[:count]
    return found


def _named(numbers: Sequence[Any]) -> dict[str, Any]:
    """Return the numbers of a stage by their names."""
    return dict(zip((field.name for field in fields(Stage)), numbers, strict=False))


def _of_positions(args: Sequence[Any], title: str) -> list[Any]:
    if args[4] not in VERSIONS and (len(args) - 4) % STAGE_ARGUMENTS == 0:
        args = [*args[:4], None, *args[4:]]
    stages = list(args[5:])
    if len(stages) % STAGE_ARGUMENTS or len(stages) > STAGES * STAGE_ARGUMENTS:
        raise InvalidValueError(
            f"{title} takes 5 arguments and {STAGE_ARGUMENTS} for each of up to {STAGES} stages, not {len(args)}."
        )
    read = [stage.differences for stage in _grouped(stages, title)]
    return [args[0], *[None] * 4, *args[1:4], _version(args[4], title), json.dumps(read)]


def _version(given: Any, title: str) -> str:
    if given is None:
        return FIRST_VERSION
    if str(given) not in VERSIONS:
        raise InvalidValueError(f"{title}: the version is {given!r}; allowed is 1 or 2.")
    return VERSIONS[str(given)]


def _changed(
    x: Tensor,
    blocks: UnetBlocks,
    output: int,
    by_width: Mapping[int, Stage],
    version: str,
    strength: Callable[[], float],
) -> Tensor:
    """The backbone's features and the skip [N,C,h,w], one behind the other, as the stage of their width wants them."""
    import torch

    width = x.shape[1] - blocks.skip_of(output)[0]
    stage, part = by_width.get(width), strength()
    if stage is None or part <= 0:
        return x
    backbone, skip = x[:, :width], x[:, width:]

    def partly(factor: float) -> float:
        return 1 + (factor - 1) * part

    backbone = stronger(backbone, stage, partly(stage.backbone_factor), version)
    skip = filtered(skip, stage.skip_cutoff, partly(stage.skip_factor), partly(stage.skip_high_end_factor))
    return torch.cat([backbone, skip], dim=1)


def stronger(x: Tensor, stage: Stage, factor: float, version: str) -> Tensor:
    """Some channels times a factor; in version 2 the factor follows the mean over channels, where that is large."""
    import torch

    if factor == 1:
        return x
    scale: Any = factor
    if version == "2":
        mean = x.mean(1, keepdim=True)
        low, high = mean.amin((2, 3), keepdim=True), mean.amax((2, 3), keepdim=True)
        spread = (high - low).clamp(min=torch.finfo(mean.dtype).tiny)  # features of one cell have none
        scale = 1 + (factor - 1) * (mean - low) / spread
    count = x.shape[1]
    first, last, is_inverted = region(stage.backbone_width, stage.backbone_offset, count)
    place = torch.arange(count, device=x.device)
    chosen = ((first <= place) & (place <= last)) != is_inverted
    return torch.where(chosen[:, None, None], x * scale, x)


def region(width: float, offset: float, count: int) -> tuple[int, int, bool]:
    """First and last of `count` channels, and whether it is the others that are meant: a region that goes beyond the
    last channel goes on at the first."""
    if width < 0:
        offset, width = offset + width, -width
    width, offset = min(width, 1.0), offset % 1.0
    if width + offset <= 1:
        return round(offset * count), round((width + offset) * count), False
    return round((width + offset - 1) * count), round(offset * count), True


def filtered(x: Tensor, cutoff: float, factor: float, high_factor: float) -> Tensor:
    """A map [N,C,h,w] with its frequencies below `cutoff` (of half the size, at least one cell) and above it scaled."""
    import torch

    if factor == 1 and high_factor == 1:
        return x
    spectrum = torch.fft.fftshift(torch.fft.fftn(x.float(), dim=(-2, -1)), dim=(-2, -1))
    height, width = x.shape[-2:]
    row, column = height // 2, width // 2
    rows, columns = (max(1, math.floor(half * cutoff)) for half in (row, column))
    mask = torch.full((height, width), float(high_factor), device=x.device)
    mask[row - rows : row + rows, column - columns : column + columns] = factor
    back = torch.fft.ifftshift(spectrum * mask, dim=(-2, -1))
    found: Tensor = torch.fft.ifftn(back, dim=(-2, -1)).real.to(x.dtype)
    return found


FreeU().add_axes("b1", "b2", "s1", "s2", "start", "stop", "version")
