"""The steps of the timestep family: whole timesteps for DDIM and PLMS, continuous time for UniPC.

Both are handed on as sigmas, so that these samplers have the signature of all others; `DiscreteSchedule.vp_sigma_to_t`
finds the timestep again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.sampling.catalog import SamplerSpec
from modules.sampling.discrete import DiscreteSchedule


def ddim_timesteps(steps: int, trained: int = 1000) -> Tensor:
    """The "uniform" timesteps 1, 1 + trained // steps, ... in ascending order, int64, at most trained - 1.

    Where `trained` is no multiple of `steps` there are more of them than asked for.
    """
    if steps > trained:
        raise InvalidValueError(f"{steps} steps asked of a model with {trained} timesteps; choose {trained} or fewer.")
    return (torch.arange(0, trained, trained // steps) + 1).clamp(max=trained - 1)


def timestep_sigmas(spec: SamplerSpec, steps: int, model: DiscreteSchedule, skip_type: str) -> Tensor:
    """Sigmas (fp32, descending) of a whole sampling run of the timestep family."""
    timesteps = ddim_timesteps(steps, len(model.sigmas))
    if spec.name == "UniPC":
        return uni_pc_sigmas(len(timesteps), model, skip_type, start=1.0)
    return model.sigmas[timesteps].flip(0)


def tail_sigmas(spec: SamplerSpec, steps: int, t_enc: int, model: DiscreteSchedule, skip_type: str) -> Tensor:
    """Sigmas of the last `t_enc` timesteps of a sampling run, for img2img; empty where there is nothing to do.

    UniPC takes `t_enc` steps from just above its first timestep.
    """
    trained = len(model.sigmas)
    timesteps = ddim_timesteps(steps, trained)[:t_enc]
    if spec.name == "UniPC" and len(timesteps) > 0:
        start = (timesteps[-1].item() + 1) / trained
        return uni_pc_sigmas(len(timesteps), model, skip_type, start=start)
    return model.sigmas[timesteps].flip(0)


def noising_timestep(steps: int, t_enc: int, trained: int = 1000) -> int:
    """The timestep up to which img2img noises its image: one above those it then steps down."""
    timesteps = ddim_timesteps(steps, trained)
    return int(timesteps[min(t_enc, len(timesteps) - 1)].item())


def uni_pc_sigmas(steps: int, model: DiscreteSchedule, skip_type: str, start: float) -> Tensor:
    """`steps + 1` sigmas from continuous time `start` down to 1 / T (Zhao et al. 2023, arXiv:2302.04867).

    Time t in (0, 1] is timestep t * T - 1. "time_uniform" and "time_quadratic" space t and its root evenly,
    "logSNR" the log signal-to-noise ratio.
    """
    trained = len(model.sigmas)
    end = 1.0 / trained
    if skip_type == "logSNR":
        ends = model.vp_t_to_sigma(torch.tensor([start, end], dtype=torch.float64) * trained - 1)
        return torch.linspace(ends[0].log().item(), ends[1].log().item(), steps + 1, dtype=torch.float64).exp().float()
    power = 2 if skip_type == "time_quadratic" else 1
    time = torch.linspace(start ** (1 / power), end ** (1 / power), steps + 1, dtype=torch.float64) ** power
    return model.vp_t_to_sigma((time * trained - 1).clamp(0, trained - 1))
