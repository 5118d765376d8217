"""When another checkpoint finishes what the first began (Podell et al. 2023, arXiv:2307.01952, section 2.5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from modules.processing.pipeline.guidance import GuidedDenoiser, RefinerSwitch
from modules.processing.request.request import GenerationRequest
from modules.sampling.flow import NoiseLevels

TIMESTEPS = 1000


@dataclass(frozen=True)
class SwitchCondition:
    """The moment: from the share `switch_at` of the model's timesteps on, or of the pass's model calls (`by_steps`)."""

    switch_at: float
    by_steps: bool
    schedule: NoiseLevels

    def should_switch(self, model_call: int, total: int, sigma: float) -> bool:
        """Whether the refiner is to do this call of `total`, at noise level `sigma`, and the following."""
        if self.by_steps:
            return model_call / total >= self.switch_at
        timestep = int((self.schedule.sigmas - sigma).abs().argmin())
        return (TIMESTEPS - 1 - timestep) / TIMESTEPS >= self.switch_at


def refiner_switch(
    request: GenerationRequest, levels: NoiseLevels, make: Callable[[], GuidedDenoiser]
) -> RefinerSwitch:
    """The refiner of a pass; `levels` are those of the model that begins, `make` loads the refiner."""
    by_steps = request.settings.compatibility.refiner_switch_by_sample_steps
    return RefinerSwitch(SwitchCondition(request.refiner_switch_at, by_steps, levels).should_switch, make)


def refiner_fields(request: GenerationRequest) -> dict[str, object]:
    """Return the infotext fields of a refiner that took part, besides its name."""
    fields: dict[str, object] = {"Refiner switch at": request.refiner_switch_at}
    if request.settings.compatibility.refiner_switch_by_sample_steps:
        fields["Refiner switch by sampling steps"] = True
    if request.hires is not None and request.settings.stable_diffusion.hires_fix_refiner_pass != "second pass":
        fields["Hires refiner"] = request.settings.stable_diffusion.hires_fix_refiner_pass
    return fields
