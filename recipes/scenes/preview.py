"""Draws prompts with the weights in training, without the product's engine: to look and to score on the way."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from recipes.scenes.model import SceneModel
from recipes.scenes.tokens import tokenize


def karras_sigmas(alphas_cumprod: Tensor, steps: int, rho: float = 7.0) -> Tensor:
    """Karras et al. 2022 (arXiv:2206.00364), equation 5, over the schedule's range: [steps + 1], the last is 0."""
    all_sigmas = ((1 - alphas_cumprod) / alphas_cumprod).sqrt()
    low, high = float(all_sigmas[0]) ** (1 / rho), float(all_sigmas[-1]) ** (1 / rho)
    ramp = torch.linspace(0, 1, steps)
    return torch.cat([(high + ramp * (low - high)) ** rho, torch.zeros(1)])


@torch.no_grad()
def sample_latents(
    model: SceneModel, prompts: Sequence[str], seeds: Sequence[int], *, steps: int = 20, cfg_scale: float = 6.0
) -> Tensor:
    """Latents [n, 4, 16, 16] for `prompts`, unscaled (ready for the VAE), by DPM++ 2M on Karras' sigmas.

    DPM++ 2M: Lu et al. 2022 (arXiv:2211.01095), in the form with x0 prediction.
    """
    texts = [*prompts, *[""] * len(prompts)]
    context = model.text(tokenize(texts)).last_hidden_state
    sigmas = karras_sigmas(model.alphas_cumprod, steps)
    log_sigmas = ((1 - model.alphas_cumprod) / model.alphas_cumprod).sqrt().log()
    noise = [torch.randn((4, 16, 16), generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    x = torch.stack(noise) * sigmas[0]
    previous: Tensor | None = None
    for i in range(steps):
        sigma, following = sigmas[i], sigmas[i + 1]
        denoised = _denoise(model, x, sigma, context, log_sigmas, cfg_scale)
        estimate = denoised
        if previous is not None and following > 0:
            ratio = (sigmas[i - 1] / sigma).log() / (sigma / following).log()
            estimate = denoised + (denoised - previous) / (2 * ratio)
        x = estimate + (following / sigma) * (x - estimate)
        previous = denoised
    return x / model.scale_factor


def _denoise(
    model: SceneModel, x: Tensor, sigma: Tensor, context: Tensor, log_sigmas: Tensor, cfg_scale: float
) -> Tensor:
    timestep = (log_sigmas - sigma.log()).abs().argmin()
    scaled = x / (sigma.square() + 1).sqrt()
    eps = model.unet(torch.cat([scaled, scaled]), timestep, encoder_hidden_states=context).sample
    with_prompt, without = eps.chunk(2)
    denoised: Tensor = x - sigma * (without + cfg_scale * (with_prompt - without))
    return denoised


@torch.no_grad()
def decode(vae: Any, latents: Tensor) -> Tensor:
    """Images [n, 3, 128, 128] uint8 from unscaled latents [n, 4, 16, 16]."""
    images = torch.cat([vae.decode(part).sample for part in torch.split(latents, 16)])
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
