"""When another checkpoint finishes what the first began (Podell et al. 2023, arXiv:2307.01952, section 2.5)."""

from __future__ import annotations

from dataclasses import dataclass

from modules.processing.request import GenerationRequest
from modules.sampling.flow import NoiseLevels

TIMESTEPS = 1000


@dataclass(frozen=True)
class SwitchCondition:
    """The moment: from the share `switch_at` of the model's timesteps on, or of the pass's model calls (`by_steps`)."""

    switch_at: float
    by_steps: bool
    schedule: NoiseLevels

    def should_switch(self, model_call: int, total: int, sigma: float) -> bool:
        """Whether the refiner is to do this evaluation of `total`, at noise level `sigma`, and the following."""
        if self.by_steps:
            return model_call / total >= self.switch_at
        timestep = int((self.schedule.sigmas - sigma).abs().argmin())
        return (TIMESTEPS - 1 - timestep) / TIMESTEPS >= self.switch_at


def refines(request: GenerationRequest, is_hires: bool) -> bool:
    """Whether the refiner takes part in this pass: of hires fix, in the passes that the setting names."""
    if not request.refiner_checkpoint:
        return False
    if request.hires is None:
        return True
    passes = request.settings.text("hires_fix_refiner_pass")
    return passes == "both passes" or (passes == "second pass") == is_hires


def refiner_fields(request: GenerationRequest, title: str) -> dict[str, object]:
    """What the infotext says of a refiner that took part."""
    fields: dict[str, object] = {"Refiner": title, "Refiner switch at": request.refiner_switch_at}
    if request.settings.flag("refiner_switch_by_sample_steps"):
        fields["Refiner switch by sampling steps"] = True
    if request.hires is not None and request.settings.text("hires_fix_refiner_pass") != "second pass":
        fields["Hires refiner"] = request.settings.text("hires_fix_refiner_pass")
    return fields
