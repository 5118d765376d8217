"""`modules.sd_samplers_kdiffusion`: the samplers over sigmas, by name."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import named, refusing
from compat.facades.sd_samplers import all_samplers
from compat.facades.sd_samplers_common import REASONS
from compat.step_sampler import KDiffusionSampler as KDiffusionSampler
from modules.sampling.catalog import SAMPLERS, Family

_STEPS = (
    "script_callbacks.on_cfg_denoiser, on_cfg_denoised and on_cfg_after_cfg see and change each step of any sampler."
)
samplers_data_k_diffusion = [one for one in all_samplers if SAMPLERS.get(one.name).family is not Family.TIMESTEP]
samplers_k_diffusion = [(one.name, one.name, one.aliases, one.options) for one in samplers_data_k_diffusion]
sampler_extra_params: dict[str, list[str]] = {
    one.name: sorted(SAMPLERS.get(one.name).takes) for one in samplers_data_k_diffusion if SAMPLERS.get(one.name).takes
}
k_diffusion_samplers_map = {one.name: one for one in samplers_data_k_diffusion}
CFGDenoiserKDiffusion: Any = named("CFGDenoiserKDiffusion", _STEPS)
CFGDenoiser: Any = named("CFGDenoiser", _STEPS)
k_diffusion_scheduler: dict[str, Any] = {}
__getattr__ = refusing("sd_samplers_kdiffusion", {**REASONS, "k_diffusion": _STEPS})
