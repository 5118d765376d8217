"""`modules.sd_samplers_timesteps`: the samplers over timesteps, by name."""

from __future__ import annotations

from typing import Any

from compat.facades.refusal import named, refusing
from compat.facades.sd_samplers import all_samplers
from compat.facades.sd_samplers_common import REASONS
from modules.sampling.catalog import SAMPLERS, Family

_STEPS = "script_callbacks.on_cfg_denoiser and its like see and change each step of any sampler."
samplers_data_timesteps = [one for one in all_samplers if SAMPLERS.get(one.name).family is Family.TIMESTEP]
CompVisSampler: Any = named("CompVisSampler", _STEPS)
CFGDenoiserTimesteps: Any = named("CFGDenoiserTimesteps", _STEPS)
samplers_timesteps = [(one.name, one.name, one.aliases, one.options) for one in samplers_data_timesteps]
__getattr__ = refusing(
    "sd_samplers_timesteps",
    {**REASONS, **dict.fromkeys(("CompVisTimestepsDenoiser", "CompVisTimestepsVDenoiser"), _STEPS)},
)
