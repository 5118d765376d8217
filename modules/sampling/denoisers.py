"""Wrappers that make a `Denoise` (variance exploding, predicts x0) from a model as it was trained.

The model sees `x / sqrt(sigma^2 + 1)` (variance preserving) and a timestep [B] fp32, and predicts noise (eps) or
velocity (v); flow models are in `flow`. Guidance is another wrapper, made by processing around or inside these.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TypeAlias

import torch
from torch import Tensor

from modules.sampling.catalog import Family, SamplerSpec
from modules.sampling.discrete import DiscreteSchedule, LcmSchedule
from modules.sampling.flow import FlowSchedule, NoiseLevels, flow_denoise, trained_timesteps
from modules.sampling.types import Denoise

# (x [B, C, H, W] variance preserving, t [B] fp32) -> eps or v [B, C, H, W]
Denoiser: TypeAlias = Callable[[Tensor, Tensor], Tensor]
TimeMap: TypeAlias = Callable[[Tensor], Tensor]


class Prediction(Enum):
    """Prediction that the model was trained for."""

    EPS = "eps"
    V = "v"
    FLOW = "flow"
    EDM_V = "edm_v"
    EDM = "edm"


def eps_denoise(denoiser: Denoiser, schedule: DiscreteSchedule, time_map: TimeMap | None = None) -> Denoise:
    """Denoise from a noise-predicting model: `x - sigma * eps(x / sqrt(sigma^2 + 1), t)`.

    `time_map` turns sigma [B] into t [B]; the default is the schedule's own, linear in log sigma.
    """
    to_t = time_map or schedule.sigma_to_t

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        s = _append_dims(sigma, x)
        return torch.addcmul(x, denoiser(x / (s**2 + 1).sqrt(), _on(x, to_t(sigma))), s, value=-1)

    return denoise


def v_denoise(denoiser: Denoiser, schedule: DiscreteSchedule, time_map: TimeMap | None = None) -> Denoise:
    """Denoise from a velocity-predicting model (Salimans and Ho 2022, arXiv:2202.00512):
    `x / (sigma^2 + 1) - sigma / sqrt(sigma^2 + 1) * v(x / sqrt(sigma^2 + 1), t)`."""
    to_t = time_map or schedule.sigma_to_t

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        s = _append_dims(sigma, x)
        scale = (s**2 + 1).sqrt()
        return x / scale**2 - s / scale * denoiser(x / scale, _on(x, to_t(sigma)))

    return denoise


def edm_time(sigma: Tensor) -> Tensor:
    """The time that models in the preconditioning of Karras et al. 2022 (arXiv:2206.00364, table 1) receive."""
    return sigma.log() / 4


def edm_denoise(denoiser: Denoiser, sigma_data: float = 0.5) -> Denoise:
    """Denoise from a model in the preconditioning of Karras et al. 2022 (arXiv:2206.00364, equation 7):
    `c_skip x + c_out F(x / sqrt(sigma^2 + sigma_data^2), ln(sigma) / 4)`."""

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        s = _append_dims(sigma, x)
        scale = (s**2 + sigma_data**2).sqrt()
        output = denoiser(x / scale, _on(x, edm_time(sigma)))
        return x * (sigma_data / scale) ** 2 + output * (s * sigma_data / scale)

    return denoise


def lcm_denoise(inner: Denoise, schedule: LcmSchedule) -> Denoise:
    """Put the boundary condition of consistency models around a Denoise (Luo et al. 2023, arXiv:2310.04378, eq. 9).

    `c_out * inner + c_skip * x` with sigma_data 0.5 and timesteps scaled by 10; linear, so it may go around guidance
    as well as under it.
    """
    sigma_data = 0.5

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        scaled_t = _append_dims(schedule.sigma_to_t(sigma), x) * 10.0
        norm = scaled_t**2 + sigma_data**2
        return scaled_t / norm.sqrt() * inner(x, sigma) + sigma_data**2 / norm * x

    return denoise


def denoise_for(
    spec: SamplerSpec, denoiser: Denoiser, schedule: NoiseLevels, prediction: Prediction = Prediction.EPS
) -> Denoise:
    """The `Denoise` that a sampler of this kind wants, without guidance: it picks the map from sigma to timestep.

    Timestep samplers get whole timesteps, LCM its 50 known ones with the boundary condition, others fractional ones.
    """
    if prediction is Prediction.FLOW:
        assert isinstance(schedule, FlowSchedule), "a flow model needs the noise levels of one"
        return flow_denoise(denoiser)
    schedule = trained_timesteps(spec, schedule)
    if prediction is Prediction.EDM:
        return edm_denoise(denoiser)
    if prediction is Prediction.EDM_V:
        return v_denoise(denoiser, schedule, edm_time)
    wrap = v_denoise if prediction is Prediction.V else eps_denoise
    if spec.family is Family.TIMESTEP:
        return wrap(denoiser, schedule, schedule.vp_sigma_to_t)
    if spec.family is Family.LCM:
        lcm = LcmSchedule(schedule)
        return lcm_denoise(wrap(denoiser, schedule, lcm.sigma_to_t), lcm)
    return wrap(denoiser, schedule)


def _on(x: Tensor, values: Tensor) -> Tensor:
    """Values [B] on the device of `x`, without waiting for it."""
    return values.to(x.device, non_blocking=True)


def _append_dims(sigma: Tensor, like: Tensor) -> Tensor:
    """Sigma [B] as [B, 1, 1, 1] in the dtype and on the device of `like`, so that the product keeps them."""
    return sigma.to(like.device, like.dtype, non_blocking=True).reshape(-1, *[1] * (like.ndim - 1))
