"""Axes of grids: what can be varied, how its values are written, and how one is put into a job. Extensions add
their own with `add_axis`."""

from __future__ import annotations

import csv
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from io import StringIO
from typing import Any

from modules.errors import InvalidValueError, UnknownNameError
from modules.faces.restorer_types import NAMES as RESTORER_NAMES
from modules.processing.request.parameters import Choices, Parameter, Tab
from modules.processing.request.request import PARAMETERS
from modules.processing.request.source_images import IMAGE_PARAMETERS
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.names import AUTOMATIC, split_legacy_name
from modules.scripts.job import ImageJob, Job
from modules.scripts.loading import loading_now
from modules.scripts.program import Program, one_of
from modules.settings.definitions import SETTINGS
from modules.system.registry import Registry

MAX_VALUES = 200
MAX_DIGITS = 40  # of a written number: 2^64 has 20
_NUMBER = rf"[+-]?\d{{1,{MAX_DIGITS}}}(?:\.\d{{0,{MAX_DIGITS}}})?"
_COUNT = rf"\d{{1,{MAX_DIGITS}}}"
_RANGE = re.compile(rf"\s*({_NUMBER})\s*-\s*({_NUMBER})(?:\s*\(\s*({_NUMBER})\s*\))?(?:\s*\[\s*({_COUNT})\s*\])?\s*")

Apply = Callable[[Job, Any, Sequence[Any]], None]


@dataclass(frozen=True)
class Axis:
    """`read` turns a written value into one (raises `InvalidValueError`), `cost` decides which axis is the outer loop,
    `choices` are what a user can pick from, `check` turns a value into the one that the program knows by this name, or
    says that there is none; a grid of an axis that `compares_precision` gets a comparison page."""

    label: str
    read: Callable[[str], Any]
    apply: Apply
    cost: float = 0.0
    choices: Callable[[Program], list[str]] | None = None
    is_number: bool = False
    show: Callable[[Any], str] = str
    shows_label: bool = True
    check: Callable[[Any, Program], Any] | None = None
    compares_precision: bool = False
    extension: str = ""  # whose it is; set by the program

    def values(self, text: str) -> list[Any]:
        """Read all values of a text: separated by commas or line breaks (quotes as in CSV), numbers also as ranges
        `1-5`, `1-9 (+2)`, `0-1 [5]`. Raises `InvalidValueError`."""
        words = split_words(text)
        words = [word for word in words if word or not self.is_number]
        if self.is_number:
            words = list(
                itertools.chain.from_iterable(_spread(word, self.label, self.read is _whole) for word in words)
            )
        if len(words) > MAX_VALUES:
            raise InvalidValueError(f"{self.label}: {len(words)} values; at most {MAX_VALUES} are allowed.")
        return [self.read(word) for word in words]

    def caption(self, value: Any) -> str:
        """Return what stands above a column."""
        text = self.show(value)
        return f"{self.label}: {text}" if self.shows_label else text


AXES: Registry[Axis] = Registry("axis")


def add_axis(axis: Axis) -> None:
    """Add an extension's axis. At the top level of a script's file; raises `InvalidValueError` at any other time, and
    for a label that is taken."""
    loading = loading_now("add_axis")
    axis = replace(axis, extension=loading.extension)
    if axis.label not in AXES:
        AXES.add(axis.label, axis)
        return
    owner = AXES.get(axis.label).extension
    if owner != axis.extension:
        raise InvalidValueError(f"The axis {axis.label!r} is taken by {owner or 'the program'}. Choose another name.")
    AXES.replace(axis.label, axis)  # loaded again, by a second library of this process


def split_words(text: str) -> list[str]:
    """Read comma-separated values, in any number of lines. Quotes keep a comma or a line break inside of a value;
    a quote in them is doubled, as in CSV. Raises `InvalidValueError`."""
    try:
        rows = list(csv.reader(StringIO(text, newline=None), skipinitialspace=True))
    except csv.Error as error:
        raise InvalidValueError(
            f"The values {text[:80]!r} cannot be read: {error}. Separate them by commas."
        ) from error
    return [word.strip() for row in rows for word in row]


def join_words(words: Sequence[Any]) -> str:
    """The inverse of `split_words`."""
    return ", ".join(_quoted(str(word)) for word in words)


def _quoted(word: str) -> str:
    return '"' + word.replace('"', '""') + '"' if any(sign in word for sign in ',"\r\n') else word


def _spread(word: str, label: str, whole: bool) -> list[str]:
    """The numbers that a range means; any other word is itself. Whole numbers with a count are cut off, as in the
    reference UI: 1-10 [5] is 1, 3, 5, 7, 10."""
    match = _RANGE.fullmatch(word)
    if match is None:
        return [word]
    first, last = Fraction(match[1]), Fraction(match[2])
    if match[4]:
        count = int(match[4])
        if not 1 <= count <= MAX_VALUES:
            raise InvalidValueError(f"{label}: {word}: the count must be 1 to {MAX_VALUES}.")
        numbers = [first + (last - first) * i / max(count - 1, 1) for i in range(count)]
        return [str(int(number)) if whole else _written(number) for number in numbers]
    step = Fraction(match[3]) if match[3] else Fraction(1 if last >= first else -1)
    if step == 0 or (last - first) / step < 0:
        raise InvalidValueError(f"{label}: {word}: the step {match[3]} never reaches {match[2]}.")
    count = int((last - first) / step) + 1
    if count > MAX_VALUES:
        raise InvalidValueError(f"{label}: {word}: {count} values; at most {MAX_VALUES} are allowed.")
    return [_written(first + i * step) for i in range(count)]


def _written(number: Fraction) -> str:
    return str(number.numerator) if number.denominator == 1 else f"{float(number):.10g}"


def _whole(text: str) -> int:
    """Read a whole number, exactly; 20.0 and 1e3 are some too."""
    try:
        number = Decimal(text)
        if number.is_finite() and number.adjusted() < MAX_DIGITS and number == number.to_integral_value():
            return int(number)
    except InvalidOperation:
        pass
    raise InvalidValueError(f"{text!r} is no whole number. Write 1, 2, 3 or a range like 1-5 (+2).")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise InvalidValueError(f"{text!r} is no number. Write 0.5, 1, or a range like 0-1 [5].")
    return number


def _one_of(what: str, names: Callable[[], list[str]]) -> Callable[[str], str]:
    return lambda text: one_of(what, text, names())


def _sampler(label: str, text: str) -> str:
    """A sampler by its name here; with its schedule behind it where the name is a combined one of old versions."""
    try:
        name, schedule = split_legacy_name(text)
    except UnknownNameError:
        return one_of(label, text, list(SAMPLERS))  # lists what there is
    return name if schedule == AUTOMATIC else f"{name} {schedule}"


def _field(name: str) -> Apply:
    def apply(p: Job, value: Any, values: Sequence[Any]) -> None:
        setattr(p, name, value)

    return apply


def _field_of_img2img(label: str, name: str) -> Apply:
    def apply(p: Job, value: Any, values: Sequence[Any]) -> None:
        if not isinstance(p, ImageJob):
            raise InvalidValueError(f"{label}: this job starts from no image. Choose another axis, or use img2img.")
        setattr(p, name, value)

    return apply


def override(key: str) -> Apply:
    """Puts the value into a setting, for this image."""

    def apply(p: Job, value: Any, values: Sequence[Any]) -> None:
        p.override_settings[key] = value

    return apply


def setting_axis(label: str, key: str, cost: float = 0.0, compares_precision: bool = False) -> Axis:
    """An axis over a setting: its choices where it has some, else numbers or switches by its default."""
    setting = SETTINGS.get(key)
    made = Axis(label, _number, override(key), cost, compares_precision=compares_precision)
    if isinstance(setting.choices, tuple):
        choices = [str(choice) for choice in setting.choices]
        return replace(made, read=_one_of(label, lambda: choices), choices=lambda program: choices)
    if isinstance(setting.default, bool):
        return replace(made, read=_switch, choices=lambda program: ["True", "False"])
    return replace(made, read=_whole if isinstance(setting.default, int) else _number, is_number=True)


def _face_restorer(text: str) -> str:
    """A restorer's name, "True" for that of the settings, "False" for none."""
    return one_of("Face restore", text, [*RESTORER_NAMES, "True", "False"])


def _restore_faces(p: Job, value: str, values: Sequence[Any]) -> None:
    p.override_settings["face_restoration"] = value != "False"
    if value in RESTORER_NAMES:
        p.override_settings["face_restoration_model"] = value


def _switch(text: str) -> bool:
    if text.lower() in ("true", "yes", "1", "on"):
        return True
    if text.lower() in ("false", "no", "0", "off"):
        return False
    raise InvalidValueError(f"{text!r} is neither True nor False.")


def _replace_in_prompts(p: Job, value: str, values: Sequence[str]) -> None:
    """Prompt S/R: the first value is searched for, each value takes its place in turn."""
    searched = values[0]
    if searched not in p.prompt and searched not in p.negative_prompt:
        raise InvalidValueError(f"Prompt S/R: {searched!r} stands in neither prompt. The first value is searched for.")
    p.prompt = p.prompt.replace(searched, value)
    p.negative_prompt = p.negative_prompt.replace(searched, value)


def _reorder(p: Job, value: tuple[str, ...], values: Sequence[tuple[str, ...]]) -> None:
    """Prompt order: the words stand in the prompt in some order; they get another one."""
    missing = [word for word in value if word not in p.prompt]
    if missing:
        raise InvalidValueError(f"Prompt order: {missing[0]!r} does not stand in the prompt.")
    places = sorted((p.prompt.find(word), word) for word in value)
    parts, end = [], 0
    for (place, word), new in zip(places, value, strict=True):
        parts += [p.prompt[end:place], new]
        end = place + len(word)
    p.prompt = "".join(parts) + p.prompt[end:]


def _size(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"\s*(\d+)\s*[x×]\s*(\d+)\s*", text)
    if match is None:
        raise InvalidValueError(f"Size: {text!r} is no size. Write 512x768.")
    return int(match[1]), int(match[2])


def _resize(p: Job, value: tuple[int, int], values: Sequence[Any]) -> None:
    p.width, p.height = value


def _add_styles(p: Job, value: tuple[str, ...], values: Sequence[Any]) -> None:
    p.apply_styles(value)


def _known_styles(value: str, program: Program) -> tuple[str, ...]:
    """The styles of a value: one by its whole name, or several with commas between them (the value in quotes); none:
    the prompt unchanged."""
    known = list(program.styles().styles)
    names = [value] if value in known else [name for part in value.split(",") if (name := part.strip())]
    return tuple(one_of("Styles", name, known) for name in names if name in known or name.lower() != "none")


class PromptOrder(Axis):
    """All orders of the given words."""

    def values(self, text: str) -> list[Any]:
        words = super().values(text)
        if len(words) > 5:
            raise InvalidValueError("Prompt order: at most 5 words; their orders are counted by the factorial.")
        return list(itertools.permutations(words))


def parameter_axis(row: Parameter) -> Axis:
    """The axis over a parameter: its names where it has a list of them, else numbers, switches or texts."""
    assert row.axis is not None, f"{row.key} has no axis"
    label = row.axis.label
    apply = _field(row.api) if Tab.TXT2IMG in row.tabs else _field_of_img2img(label, row.api)
    axis = Axis(label, str, apply, shows_label=row.axis.shows_label)
    match row.choices:
        case Choices.SAMPLERS:
            samplers = list(SAMPLERS)
            return replace(axis, read=lambda text: _sampler(label, text), choices=lambda program: samplers)
        case Choices.SCHEDULES:
            schedules = [spec.label for _, spec in SCHEDULES.items()]
            return replace(axis, read=_one_of(label, lambda: schedules), choices=lambda program: schedules)
        case Choices.CHECKPOINTS:
            return _checkpoint_axis(axis, row.nothing)
        case Choices.UPSCALERS:
            return replace(
                axis,
                choices=lambda program: program.upscalers(),
                check=_known(label, lambda program: program.upscalers()),
            )
    if row.type is bool:
        return replace(axis, read=_switch, choices=lambda program: ["True", "False"])
    if row.type in (int, float):
        return replace(axis, read=_whole if row.type is int else _number, is_number=True)
    return axis


def _checkpoint_axis(axis: Axis, nothing: str = "") -> Axis:
    """Loading costs the most: it is the outer loop. `nothing` is the word for no checkpoint; empty: one is needed."""
    first = [nothing] if nothing else []
    return replace(
        axis,
        cost=1.0,
        choices=lambda program: [*first, *program.checkpoints()],
        check=lambda name, program: None if nothing and name == nothing else program.checkpoint(name),
    )


def _known(label: str, names: Callable[[Program], list[str]]) -> Callable[[Any, Program], Any]:
    def check(value: str, program: Program) -> str:
        known = names(program)
        return one_of(label, value, known) if known else value

    return check


MENU = (
    *("Nothing", "Seed", "Var. seed", "Var. strength", "Steps", "Hires steps", "CFG Scale", "Prompt S/R"),
    *("Prompt order", "Sampler", "Hires sampler", "Checkpoint name", "Refiner checkpoint", "Refiner switch at"),
    *("Negative Guidance minimum sigma", "Sigma Churn", "Sigma min", "Sigma max", "Sigma noise", "Schedule type"),
    *("Schedule min sigma", "Schedule max sigma", "Schedule rho", "Beta schedule alpha", "Beta schedule beta", "Eta"),
    *("Clip skip", "Denoising", "Extra noise", "Hires upscaler", "VAE", "Styles", "UniPC Order"),
    *("Token merging ratio", "Token merging ratio high-res", "Always discard next-to-last sigma"),
    *("SGM noise multiplier", "RNG source", "Emphasis", "FP8 mode", "FP8 format", "FP8 skip", "FP8 text encoder"),
    *("Compute dtype", "Compute mode", "Cross attention optimization", "VAE type for encode", "VAE type for decode"),
    *("Size", "Image CFG Scale", "Initial noise multiplier", "Cond. Image Mask Weight", "Face restore"),
)
"""The order of the list, because callers of the API choose an axis by its number. New ones come behind."""


def _register() -> None:
    of_parameters = [parameter_axis(row) for row in (*PARAMETERS, *IMAGE_PARAMETERS) if row.axis is not None]
    of_settings = [
        setting_axis("Negative Guidance minimum sigma", "s_min_uncond"),
        setting_axis("Sigma Churn", "s_churn"),
        setting_axis("Sigma min", "s_tmin"),
        setting_axis("Sigma max", "s_tmax"),
        setting_axis("Sigma noise", "s_noise"),
        setting_axis("Schedule min sigma", "sigma_min"),
        setting_axis("Schedule max sigma", "sigma_max"),
        setting_axis("Schedule rho", "rho"),
        setting_axis("Beta schedule alpha", "beta_dist_alpha"),
        setting_axis("Beta schedule beta", "beta_dist_beta"),
        setting_axis("Eta", "eta_ancestral"),
        setting_axis("Cond. Image Mask Weight", "inpainting_mask_weight"),
        setting_axis("Clip skip", "CLIP_stop_at_last_layers"),
        setting_axis("Extra noise", "img2img_extra_noise"),
        setting_axis("UniPC Order", "uni_pc_order", cost=0.5),
        setting_axis("Token merging ratio", "token_merging_ratio"),
        setting_axis("Token merging ratio high-res", "token_merging_ratio_hr"),
        setting_axis("Forecast steps", "forecast_strength"),
        setting_axis("Step cache", "step_cache_threshold"),
        setting_axis("Always discard next-to-last sigma", "always_discard_next_to_last_sigma"),
        setting_axis("SGM noise multiplier", "sgm_noise_multiplier"),
        setting_axis("RNG source", "randn_source"),
        setting_axis("Emphasis", "emphasis"),
        setting_axis("FP8 mode", "fp8_storage", cost=0.9, compares_precision=True),
        setting_axis("FP8 format", "fp8_format", cost=0.9, compares_precision=True),
        setting_axis("FP8 text encoder", "fp8_text_encoder", cost=0.9, compares_precision=True),
        setting_axis("Compute dtype", "compute_dtype", cost=0.9, compares_precision=True),
        setting_axis("Compute mode", "compute_mode", cost=0.9, compares_precision=True),
        setting_axis("Cross attention optimization", "cross_attention_optimization"),
        setting_axis("VAE type for encode", "sd_vae_encode_method"),
        setting_axis("VAE type for decode", "sd_vae_decode_method"),
    ]
    others = [
        Axis("Face restore", _face_restorer, _restore_faces, choices=lambda program: [*RESTORER_NAMES, "False"]),
        Axis("Nothing", str, lambda p, value, values: None),
        Axis("Prompt S/R", str, _replace_in_prompts, shows_label=False),
        PromptOrder("Prompt order", str, _reorder, show=", ".join, shows_label=False),
        _checkpoint_axis(Axis("Checkpoint name", str, override("sd_model_checkpoint"), shows_label=False)),
        Axis(
            "VAE",
            str,
            override("sd_vae"),
            cost=0.7,
            choices=lambda program: program.vaes(),
            shows_label=False,
            check=_known("VAE", lambda program: program.vaes()),
        ),
        Axis(
            "Styles",
            str,
            _add_styles,
            choices=lambda program: list(program.styles().styles),
            show=lambda names: ", ".join(names) or "None",
            check=_known_styles,
        ),
        Axis("FP8 skip", str, override("fp8_skip"), cost=0.9, compares_precision=True),
        Axis("Size", _size, _resize, show=lambda size: f"{size[0]}x{size[1]}"),
    ]
    found = {axis.label: axis for axis in (*of_parameters, *of_settings, *others)}
    for label in (*MENU, *(label for label in found if label not in MENU)):
        AXES.add(label, found[label])


_register()
