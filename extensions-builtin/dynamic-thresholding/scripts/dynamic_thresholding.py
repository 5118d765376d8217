"""Dynamic thresholding: high CFG scales without burnt colors.

The guided prediction keeps its composition but gets the range of values that a lower CFG scale, the mimic scale, would
give (the idea is that of Saharia et al. 2022, arXiv:2205.11487, section 2.3, with a range from guidance). Arguments and
fields of infotexts are those of the extension "Dynamic Thresholding (CFG Scale Fix)" and of Forge's built-in.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import Guided, ModelUse

TITLE = "Dynamic Thresholding (CFG Scale Fix)"
FORGE = "DynamicThresholding (CFG-Fix) Integrated"
CONSTANT = "Constant"
QUARTER = 1.5707  # of a turn, in the digits that the curves have
TURN = 6.28318
MAX_QUANTILE = 2**24  # elements that torch.quantile takes


@dataclass(frozen=True)
class Curve:
    """Part of a scale above its minimum holds at `share` (0 to 1) of the steps; `value` is the scheduler value."""

    at: Callable[[float, float], float]
    has_value: bool = False


def _repeated_line(share: float, value: float) -> float:
    place = (share * value) % 1.0
    return abs(0.5 - place) * 2


CURVES = {
    CONSTANT: Curve(lambda share, value: 1.0),
    "Linear Down": Curve(lambda share, value: 1.0 - share),
    "Cosine Down": Curve(lambda share, value: math.cos(share * QUARTER)),
    "Half Cosine Down": Curve(lambda share, value: math.cos(share)),
    "Linear Up": Curve(lambda share, value: share),
    "Cosine Up": Curve(lambda share, value: 1.0 - math.cos(share * QUARTER)),
    "Half Cosine Up": Curve(lambda share, value: 1.0 - math.cos(share)),
    "Power Up": Curve(lambda share, value: share**value, has_value=True),
    "Power Down": Curve(lambda share, value: 1.0 - share**value, has_value=True),
    "Linear Repeating": Curve(_repeated_line, has_value=True),
    "Cosine Repeating": Curve(lambda share, value: math.cos(share * TURN * value) * 0.5 + 0.5, has_value=True),
    "Sawtooth": Curve(lambda share, value: (share * value) % 1.0, has_value=True),
}
MODES = tuple(CURVES)
ROWS = (
    switch("dynthres"),
    Field(
        name="mimic_scale",
        label="Mimic CFG scale",
        default=7.0,
        elem_id="dynthres_mimic_scale",
        low=0.0,
        high=100.0,
        slider_high=30.0,
        step=0.5,
        infotext="Mimic scale",
        hint="The CFG scale whose range of values the image gets",
    ),
    Field(
        name="percentile",
        label="Top percentile of latents to clamp",
        default=100.0,
        elem_id="dynthres_threshold_percentile",
        low=0.0,
        high=100.0,
        slider_low=90.0,
        step=0.05,
        infotext="Threshold percentile",
    ),
    Field(
        name="mimic_mode",
        label="Mimic scale scheduler",
        default=CONSTANT,
        elem_id="dynthres_mimic_mode",
        choices=MODES,
        infotext="Mimic mode",
    ),
    Field(
        name="mimic_min",
        label="Minimum value of the mimic scale scheduler",
        default=0.0,
        elem_id="dynthres_mimic_scale_min",
        low=0.0,
        high=100.0,
        slider_high=30.0,
        step=0.5,
        infotext="Mimic scale minimum",
    ),
    Field(
        name="cfg_mode",
        label="CFG scale scheduler",
        default=CONSTANT,
        elem_id="dynthres_cfg_mode",
        choices=MODES,
        infotext="CFG mode",
    ),
    Field(
        name="cfg_min",
        label="Minimum value of the CFG scale scheduler",
        default=0.0,
        elem_id="dynthres_cfg_scale_min",
        low=0.0,
        high=100.0,
        slider_high=30.0,
        step=0.5,
        infotext="CFG scale minimum",
    ),
    Field(
        name="value",
        label="Scheduler value",
        default=4.0,
        elem_id="dynthres_sched_val",
        low=0.0,
        high=100.0,
        slider_high=40.0,
        step=0.5,
        infotext="Scheduler value",
        hint="For Power, Repeating and Sawtooth",
    ),
    Field(
        name="separate",
        label="Separate feature channels",
        default=True,
        elem_id="dynthres_separate_feature_channels",
        infotext="Separate Feature Channels",
    ),
    Field(
        name="startpoint",
        label="Scaling startpoint",
        default="MEAN",
        elem_id="dynthres_scaling_startpoint",
        choices=("MEAN", "ZERO"),
        infotext="Scaling Startpoint",
    ),
    Field(
        name="measure",
        label="Variability measure",
        default="AD",
        elem_id="dynthres_variability_measure",
        choices=("AD", "STD"),
        infotext="Variability Measure",
    ),
    portion("phi", "Interpolate phi", 1.0, "dynthres_interpolate_phi", infotext="Interpolate Phi"),
)
SEPARATE = {"enable": True, "disable": False}


class DynamicThresholding(FieldScript):
    """The script."""

    rows = ROWS
    infotext_switch = "Dynamic thresholding enabled"
    other_titles = (FORGE,)

    def title(self) -> str:
        return TITLE

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """Forge says "enable" or "disable" of the feature channels, and 1 for all percent."""
        given = list(args)
        is_number = len(given) > 2 and isinstance(given[2], int | float) and not isinstance(given[2], bool)
        if title.lower() == FORGE.lower() and is_number:
            given[2] *= 100
        if len(given) > 8 and isinstance(given[8], str):
            if given[8] not in SEPARATE:
                raise InvalidValueError(f"{title}: separate feature channels is {given[8]!r}; write enable or disable.")
            given[8] = SEPARATE[given[8]]
        return self.checked(given, title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        wanted = {"mimic_scale", "separate", "startpoint", "measure", "phi", "percentile"}
        curves = [CURVES[values[name]] for name in ("mimic_mode", "cfg_mode")]
        for name, minimum in (("mimic_mode", "mimic_min"), ("cfg_mode", "cfg_min")):
            wanted |= {name, minimum} if values[name] != CONSTANT else set()
        wanted |= {"value"} if any(curve.has_value for curve in curves) else set()
        p.extra_generation_params[self.infotext_switch] = True
        p.extra_generation_params |= {row.infotext: values[row.name] for row in self.rows if row.name in wanted}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            use.guide(TITLE, partial(thresholded, options=values, steps=p.steps))


def scale_at(scale: float, minimum: float, mode: str, value: float, step: int, steps: int) -> float:
    """A scale at a step, counted from 0."""
    share = step / max(steps - 1, 1)
    return (scale - minimum) * CURVES[mode].at(share, value) + minimum


def thresholded(guided: Guided, options: dict[str, Any], steps: int) -> Tensor:
    """The guided prediction [B,C,h,w] in the range of the mimic scale."""
    at = partial(scale_at, value=options["value"], step=guided.step, steps=steps)
    mimic_scale = at(options["mimic_scale"], options["mimic_min"], options["mimic_mode"])
    cfg_scale = at(guided.cfg_scale, options["cfg_min"], options["cfg_mode"])
    relative = guided.cond - guided.uncond
    mimic = (guided.uncond + relative * mimic_scale).flatten(2)
    guided_flat = (guided.uncond + relative * cfg_scale).flatten(2)
    mean = guided_flat.mean(dim=2, keepdim=True)
    centered, mimic_centered = guided_flat - mean, mimic - mimic.mean(dim=2, keepdim=True)
    is_separate = options["separate"]
    if options["measure"] == "STD":
        wanted, present = _deviation(mimic_centered, is_separate), _deviation(centered, is_separate)
    else:
        wanted = _quantile(mimic_centered.abs(), 1.0, is_separate)
        present = _quantile(centered.abs(), options["percentile"] / 100, is_separate)
    if options["startpoint"] == "ZERO":
        result = guided_flat * (wanted / present)
    elif options["measure"] == "STD":
        result = centered / present * wanted + mean
    else:
        limit = wanted.maximum(present)
        result = centered.clamp(-limit, limit) / limit * wanted + mean
    phi = options["phi"]
    found: Tensor = (result * phi + guided_flat * (1 - phi)).reshape(guided.cond.shape)
    return found


def _deviation(values: Tensor, is_separate: bool) -> Tensor:
    return values.std(dim=2, keepdim=True) if is_separate else values.std()


def _quantile(values: Tensor, share: float, is_separate: bool) -> Tensor:
    import torch

    if share >= 1.0:
        return values.amax(dim=2, keepdim=True) if is_separate else values.amax()
    if is_separate:
        return torch.quantile(values.float(), share, dim=2, keepdim=True).to(values)
    flat = values.float().flatten()
    return torch.quantile(flat[:: -(-flat.numel() // MAX_QUANTILE)], share).to(values)


DynamicThresholding().add_axes("mimic_scale", "percentile", "mimic_mode", "mimic_min", "cfg_mode", "cfg_min", "value")
