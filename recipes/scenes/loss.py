"""The loss of diffusion training: noise, timesteps, their weights, and the learning rate over the run. What is drawn
at random lies where the generator does.

With the usual schedule of betas and classifier-free guidance, the colors of large areas are decided in the first
steps, at the highest noise. There the plain eps loss is `SNR` times the error in the image, so a wrong background
hardly counts.
`weight_limit` above 1 weights as velocity prediction does, 1 / alpha_bar (Salimans and Ho 2022, arXiv:2202.00512), up
to that limit; min-SNR bounds the weight at the other end (Hang et al. 2023, arXiv:2303.09556).
"""

from math import cos, pi

import torch
from torch import Tensor

GUIDED_TIMESTEPS = 400  # below, an image's noisy latent shows nearly all that the prompt says


def loss_weights(alphas_cumprod: Tensor, weight_limit: float = 50.0, min_snr: float = 5.0) -> Tensor:
    """The eps loss weight of every timestep: min(1 / alpha_bar, limit) * min(1, min_snr / SNR); shape as given."""
    snr = alphas_cumprod / (1 - alphas_cumprod)
    return (1 / alphas_cumprod).clamp(max=weight_limit) * (min_snr / snr).clamp(max=1.0)


def draw_timesteps(count: int, high_noise_share: float, generator: torch.Generator, timesteps: int = 1000) -> Tensor:
    """`count` timesteps, int64: a share from the upper half, the rest from all."""
    chosen, place = (torch.rand(count, generator=generator, device=generator.device) for _ in range(2))
    low = torch.where(chosen < high_noise_share, timesteps // 2, 0)
    return low + (place * (timesteps - low)).long()


def draw_guided_timesteps(count: int, generator: torch.Generator) -> Tensor:
    """`count` timesteps, int64, at which the error under guidance counts."""
    return (torch.rand(count, generator=generator, device=generator.device) * GUIDED_TIMESTEPS).long()


def guided_weights(timesteps: Tensor) -> Tensor:
    """How much the error under guidance counts: wholly at low noise, less and less in the last fifth of the range."""
    return (5 * (1 - timesteps / GUIDED_TIMESTEPS)).clamp(0, 1)


def guided_error(with_prompt: Tensor, without: Tensor, guidance: Tensor) -> Tensor:
    """The error of a guided prediction, from the errors [n, 4, h, w] of its two halves; `guidance` [n].

    At low noise the noisy image itself shows what the prompt says, so the best prediction is the same with and without
    it, and guidance should change nothing. Yet it multiplies what the two predictions differ by: at CFG 6 the weights
    of the first training, whose squared error was 0.005 at timestep 100, predicted with one of 0.056. Shapes turned
    into lumps by that.
    """
    return without + guidance.view(-1, 1, 1, 1) * (with_prompt - without)


def draw_noise(shape: torch.Size, offset_noise: float, generator: torch.Generator) -> Tensor:
    """Unit normal noise [n, 4, h, w], with an offset per channel on half of the images.

    Without it the mean of a noisy latent betrays the image's mean even at the last timestep (its signal is not
    zero there), and the model learns to read the background off it instead of from the prompt; in sampling there is
    nothing to read.
    """
    device = generator.device
    noise = torch.randn(shape, generator=generator, device=device)
    chosen = torch.rand(shape[0], 1, 1, 1, generator=generator, device=device) < 0.5
    return noise + offset_noise * chosen * torch.randn(shape[0], shape[1], 1, 1, generator=generator, device=device)


def diffusion_loss(error: Tensor, weights: Tensor, flat_weight: float) -> Tensor:
    """Weighted mean square of the error of the predicted noise [n, 4, h, w]; `weights` [n].

    The error's mean over each image counts `flat_weight` times more: it is one of many components there, but it is
    the color of the background. The minimum stays the same.
    """
    square = error.square().mean(dim=(1, 2, 3)) + flat_weight * error.mean(dim=(2, 3)).square().mean(dim=1)
    return (weights * square).mean()


def rate_factor(step: int, progress: float, warmup_steps: int, final_rate: float) -> float:
    """The learning rate over its maximum, at `step` and `progress` (0 to 1) of the run."""
    warmup = min(1.0, (step + 1) / warmup_steps)
    return warmup * (final_rate + (1 - final_rate) * 0.5 * (1 + cos(pi * min(1.0, progress))))
