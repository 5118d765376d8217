"""Detail Daemon: the model receives less noise than there is, so that it leaves more detail.

How much less follows a curve over the steps. Arguments and the curve's parameters are those of the extension of this
name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from modules.scripts.fields import Field, FieldScript, portion, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from modules.processing.request.model_use import ModelUse

TITLE = "Detail Daemon"
COND, UNCOND, BOTH = "cond", "uncond", "both"
PART = 0.1  # of the amount counts


def _amount(name: str, label: str, default: float) -> Field:
    key = f"DD_{name}"
    return Field(
        name=name, label=label, default=default, elem_id=f"detail_daemon_{name}", low=-5.0, high=5.0, slider_low=-1.0,
        slider_high=1.0, step=0.01, infotext=key,
    )  # fmt: skip


class DetailDaemon(FieldScript):
    """The script."""

    rows = (
        switch("detail_daemon"),
        Field(
            name="mode", label="Mode", default=UNCOND, elem_id="detail_daemon_mode",
            choices=(COND, UNCOND, BOTH), infotext="DD_mode",
        ),
        portion("start", "Start", 0.2, "detail_daemon_start", infotext="DD_start"),
        portion("end", "End", 0.8, "detail_daemon_end", infotext="DD_end"),
        portion("bias", "Bias", 0.5, "detail_daemon_bias", infotext="DD_bias"),
        _amount("amount", "Amount", 0.1),
        Field(
            name="exponent", label="Exponent", default=1.0, elem_id="detail_daemon_exponent", low=0.0,
            high=10.0, step=0.05, infotext="DD_exponent",
        ),
        _amount("start_offset", "Start offset", 0.0),
        _amount("end_offset", "End offset", 0.0),
        portion("fade", "Fade", 0.0, "detail_daemon_fade", infotext="DD_fade"),
        Field(
            name="smooth", label="Smooth", default=True, elem_id="detail_daemon_smooth", infotext="DD_smooth"
        ),
    )  # fmt: skip
    infotext_switch = "DD_enabled"

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"DD_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        curve = curve_of(values, max(use.facts.steps, 1))

        def change(inputs: Any) -> None:
            step = min(inputs.step // use.facts.calls_per_step, len(curve) - 1)
            by, count = float(curve[step]) * PART, len(inputs.text_cond)
            sigma = inputs.sigma.clone()
            if values["mode"] == BOTH:
                sigma = sigma * (1 - by * use.facts.cfg_scale)
            elif values["mode"] == COND:
                sigma[:count] *= 1 - by
            else:
                sigma[count:] *= 1 + by
            inputs.sigma = sigma.clamp_min(0)

        use.before_call.append(change)


def curve_of(values: Mapping[str, Any], steps: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """How much each of the steps is changed: from the start offset up to the amount, and down to the end offset."""
    start, end = min(values["start"], values["end"]), values["end"]
    middle = start + values["bias"] * (end - start)
    first, peak, last = (round(part * (steps - 1)) for part in (start, middle, end))

    def shaped(line: np.ndarray[Any, np.dtype[np.float64]], offset: float) -> np.ndarray[Any, np.dtype[np.float64]]:
        curve = 0.5 * (1 - np.cos(line * np.pi)) if values["smooth"] else line
        found: np.ndarray[Any, np.dtype[np.float64]] = (
            curve ** values["exponent"] * (values["amount"] - offset) + offset
        )
        return found

    found = np.zeros(steps)
    found[:first], found[last + 1 :] = values["start_offset"], values["end_offset"]
    found[first : peak + 1] = shaped(np.linspace(0, 1, peak - first + 1), values["start_offset"])
    found[peak : last + 1] = shaped(np.linspace(1, 0, last - peak + 1), values["end_offset"])
    found *= 1 - values["fade"]
    return found


DetailDaemon().add_axes("mode", "start", "end", "bias", "amount", "exponent", "fade")
