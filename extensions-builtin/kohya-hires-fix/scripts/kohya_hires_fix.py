"""Kohya Hires.fix: large images in one pass, whose first steps work on smaller features, so that nothing is doubled.

The features are made smaller in front of an input block of the UNet and larger again in front of the output block that
takes the skip of the block before (Kohya, "Deep Shrink", 2023). Arguments and fields of infotexts are those of the
extension "Kohya Hires.fix"; those of Forge's built-in "Kohya HRFix Integrated" come after them as a second script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.scripts.fields import Field, FieldScript, portion, switch
from modules.scripts.unet_blocks import Size, UnetBlocks, after, before

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import ModelUse

TITLE, FORGE = "Kohya Hires.fix", "Kohya HRFix Integrated"
STATE = "kohya_hires_fix"  # at a job: what its batches and passes hand on
SCALERS = ("bicubic", "bilinear", "nearest", "nearest-exact")
METHODS = ("bicubic", "nearest-exact", "bilinear", "area", "bislerp")


class KohyaHiresFix(FieldScript):
    """Two places, each for a part of the steps from the first one on."""

    rows = (
        switch("dshf"),
        Field(
            name="one", label="Only in the first pass", default=True, elem_id="dshf_one", infotext="DSHF_one"
        ),
        Field(
            name="d1", label="Block 1", default=3, elem_id="dshf_d1", low=1, high=10, step=1, infotext="DSHF_d1"
        ),
        Field(
            name="d2", label="Block 2", default=4, elem_id="dshf_d2", low=1, high=10, step=1, infotext="DSHF_d2"
        ),
        portion("s1", "Stop at 1", 0.15, "dshf_s1", infotext="DSHF_s1"),
        portion("s2", "Stop at 2", 0.3, "dshf_s2", infotext="DSHF_s2"),
        Field(
            name="scaler", label="Layer scaler", default="bicubic", elem_id="dshf_scaler", choices=SCALERS,
            infotext="DSHF_scaler",
        ),
        Field(
            name="down", label="Downsampling scale", default=0.5, elem_id="dshf_down", low=0.1, high=1.0, step=0.05,
            infotext="DSHF_down",
        ),
        Field(
            name="up", label="Upsampling scale", default=2.0, elem_id="dshf_up", low=1.0, high=4.0, step=0.1,
            infotext="DSHF_up",
        ),
        Field(
            name="smooth", label="Smooth scaling change", default=True, elem_id="dshf_smooth", infotext="DSHF_smooth"
        ),
        Field(
            name="early", label="Early upsampling", default=False, elem_id="dshf_early", infotext="DSHF_early"
        ),
    )  # fmt: skip

    def title(self) -> str:
        return TITLE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if hasattr(p, STATE):
            delattr(p, STATE)  # of the job that this one was copied from
        if values is not None:
            p.extra_generation_params |= {row.infotext: values[row.name] for row in self.rows if row.infotext}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        blocks = UnetBlocks.of(use.model.unet, use)
        if blocks is None:
            use.notice(f"{TITLE} has no effect on {use.model.family.label}: its denoiser is no UNet.")
            return
        if not hasattr(p, STATE):
            setattr(p, STATE, State(limit=max(p.steps - 1, 0) if use.facts.is_hires and values["one"] else 0))
        shrinking = Shrinking(values, use, getattr(p, STATE))
        count = min(len(blocks.inputs), len(blocks.outputs))
        for place in sorted({values["d1"] - 1, values["d2"] - 1}):
            if place >= count:
                use.notice(f"{TITLE}: {use.model.family.label} has {count} blocks; block {place + 1} was left out.")
                continue
            later = place if values["early"] else len(blocks.outputs) - 1 - place
            use.hook(blocks.inputs[place].first, before(partial(shrinking.smaller, place)))
            use.hook(blocks.outputs[later].first, before(partial(shrinking.larger, place)))
        blocks.match_skips(use.model.unet, use)
        blocks.fit_residuals(use.model.unet, use, shrinking.size)

    def before_process_batch(self, p: Any, *args: Any, **facts: Any) -> None:
        """Begin each batch at its first step again."""
        if hasattr(p, STATE):
            getattr(p, STATE).limit = 0


@dataclass
class State:
    """Scales of the features at each place that works, downwards and upwards. Below the step `limit` of a pass nothing
    begins or ends: it is where the first pass had no place left that works."""

    scales: dict[int, tuple[float, float]] = field(default_factory=dict)
    limit: int = 0


class Shrinking:
    """Which place works in a call of the model, and how much smaller its features are."""

    def __init__(self, values: dict[str, Any], use: ModelUse, state: State) -> None:
        self._values = values
        self._use = use
        self._state = state
        self._calls = 0  # of this pass that the state follows
        self._places = ((values["s1"], values["d1"] - 1), (values["s2"], values["d2"] - 1))

    def _scales(self, place: int) -> tuple[float, float] | None:
        """Return both scales of `place`, None where it does not work in this call."""
        for call in range(self._calls, self._use.call.step + 1):  # also those whose answers were kept
            self._follow(self._use.reported_at(call))
        self._calls = max(self._calls, self._use.call.step + 1)
        return self._state.scales.get(place)

    def _follow(self, step: int) -> None:
        """Bring the state to a step. The first of the two places whose part of the steps is not over works; with a
        smooth change its features begin at their scale and grow to their size."""
        state, steps = self._state, self._use.facts.steps
        if step < state.limit:
            return
        down, up = float(self._values["down"]), float(self._values["up"])
        are_apart = self._places[0][1] != self._places[1][1]
        for part, place in self._places:
            if step < steps * part:
                if place not in state.scales:
                    state.scales[place] = (down, up)
                elif self._values["smooth"]:
                    share = step / (steps * part)
                    now = min((1 - down) * share + down, 1.0)
                    state.scales[place] = (now, up * (down / now))
                return
            if are_apart or part == self._places[1][0]:
                state.scales.pop(place, None)
        state.limit = step if self._values["one"] else 0

    def smaller(self, place: int, x: Tensor) -> Tensor:
        """Scale the features [N,C,h,w] of an input block that works now down."""
        scales = self._scales(place)
        return x if scales is None else resized(x, scales[0], self._values["scaler"])

    def size(self, place: int, size: Size) -> Size:
        """Return the size that an input block's features of this size are scaled to."""
        scales = self._scales(place)
        height, width = size
        return size if scales is None else (math.floor(height * scales[0]), math.floor(width * scales[0]))

    def larger(self, place: int, x: Tensor) -> Tensor:
        """Scale them up again. What then is not of the size of the next skip is brought to it afterwards."""
        scales = self._scales(place)
        return x if scales is None else resized(x, scales[1], self._values["scaler"])


class KohyaHRFixIntegrated(FieldScript):
    """Forge's form of it: one place, between two portions of the steps, by a factor."""

    rows = (
        switch("kohya_hrfix"),
        Field(name="block", label="Block number", default=3, elem_id="kohya_hrfix_block", low=1, high=32, step=1),
        Field(
            name="factor", label="Downscale factor", default=2.0, elem_id="kohya_hrfix_factor", low=0.1, high=9.0,
            step=0.001,
        ),
        portion("start", "Start", 0.0, "kohya_hrfix_start"),
        portion("end", "End", 0.35, "kohya_hrfix_end"),
        Field(name="after", label="Downscale after skip", default=True, elem_id="kohya_hrfix_after"),
        Field(
            name="down", label="Downscale method", default="bicubic", elem_id="kohya_hrfix_down", choices=METHODS
        ),
        Field(name="up", label="Upscale method", default="bicubic", elem_id="kohya_hrfix_up", choices=METHODS),
    )  # fmt: skip
    infotext_switch = "kohya_hrfix_enabled"

    def title(self) -> str:
        return FORGE

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            p.extra_generation_params |= {f"kohya_hrfix_{name}": value for name, value in values.items()}

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        blocks = UnetBlocks.of(use.model.unet, use)
        if blocks is None or values["block"] >= len(blocks.inputs):
            why = "its denoiser is no UNet" if blocks is None else f"it has {len(blocks.inputs) - 1} blocks"
            use.notice(f"{FORGE} has no effect on {use.model.family.label}: {why}.")
            return
        number = values["block"]
        is_later = values["after"] and number + 1 < len(blocks.inputs)
        levels = use.model.unet.up_blocks
        ends = [(getattr(level, "attentions", None) or level.resnets)[-1] for level in levels]  # upsamplers fit these

        def shrunk(place: int, size: Size) -> Size:
            if place != number + is_later or not values["start"] <= use.call.progress < values["end"]:
                return size
            height, width = (max(round(side / values["factor"]), 1) for side in size)
            return height, width

        def smaller(x: Tensor) -> Tensor:
            height, width = x.shape[-2:]
            size = shrunk(number + is_later, (height, width))
            return x if size == (height, width) else resized(x, size, values["down"])

        def fitted(output: int, x: Tensor) -> Tensor:
            wanted = blocks.skip_of(output)[1:] if output < len(blocks.outputs) else x.shape[-2:]
            return x if tuple(x.shape[-2:]) == tuple(wanted) else resized(x, wanted, values["up"])

        if is_later:
            use.hook(blocks.inputs[number + 1].first, before(smaller))
        else:
            use.hook(blocks.inputs[number].last, after(smaller))
        inside = (output for output, block in enumerate(blocks.outputs) if block.last not in ends)
        for output in inside:
            use.hook(blocks.outputs[output].last, after(partial(fitted, output + 1)))
        mid = getattr(use.model.unet, "mid_block", None)
        if mid is not None:
            use.hook(mid, after(partial(fitted, 0)))
        blocks.fit_upsamplers(use.model.unet, use)
        blocks.fit_residuals(use.model.unet, use, shrunk)


def resized(x: Tensor, by: float | Sequence[int], method: str) -> Tensor:
    """A map [N,C,h,w] by a factor, or in a size (height, width)."""
    from torch.nn.functional import interpolate

    mode = "bilinear" if method == "bislerp" else method
    if isinstance(by, float):
        return interpolate(x, scale_factor=by, mode=mode)
    return interpolate(x, size=tuple(by), mode=mode)


KohyaHiresFix().add_axes("d1", "d2", "s1", "s2", "scaler", "down", "up")
KohyaHRFixIntegrated().add_axes("block", "factor", "start", "end")
