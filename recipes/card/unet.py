"""UNet and text model on a card, by the loss of `recipes.scenes.loss`: the guided pairs are a fifth of each batch."""

from __future__ import annotations

import torch
from torch import Tensor

from recipes.card.drawing import DrawnPool, seeded
from recipes.card.running import Learner
from recipes.scenes.loss import (
    diffusion_loss,
    draw_guided_timesteps,
    draw_noise,
    draw_timesteps,
    guided_error,
    guided_weights,
    loss_weights,
)
from recipes.scenes.model import SceneModel
from recipes.scenes.tokens import tokenize

HIGH_NOISE_SHARE = 0.5
EMPTY_PROMPTS = 0.1
OFFSET_NOISE = 0.1
WEIGHT_LIMIT, MIN_SNR, FLAT_WEIGHT = 50.0, 5.0, 2.0
GUIDED_WEIGHT = 0.2
MAX_GUIDANCE = 8.0


def empty_tokens(device: torch.device) -> Tensor:
    """The tokens [1, 77] of the empty prompt."""
    return tokenize([""]).to(device)


def train_unet(
    model: SceneModel,
    pool: DrawnPool,
    latents: Tensor,
    *,
    seconds: float,
    batch: int,
    pairs: int,
    learning_rate: float = 1e-3,
) -> None:
    """Train UNet and text model on `latents` [n, 4, 16, 16], unscaled, and the pool's wordings; the moving averages
    stay in the model. The last `pairs` rows of a batch are predicted with and without their prompt."""
    learner = Learner("unet", model.unet, model.text, seconds=seconds, learning_rate=learning_rate, weight_decay=0.01)
    device = latents.device
    generator, none = seeded(device, 2), empty_tokens(device)
    alphas = model.alphas_cumprod.to(device)
    weights = loss_weights(alphas, WEIGHT_LIMIT, MIN_SNR)
    scaled = latents * model.scale_factor
    while learner.going():
        picks = pool.pick(batch, generator)
        tokens, timesteps = pool.wordings(picks, generator), draw_timesteps(batch, HIGH_NOISE_SHARE, generator)
        timesteps[-pairs:] = draw_guided_timesteps(pairs, generator)
        emptied = torch.rand(batch - pairs, 1, generator=generator, device=device) < EMPTY_PROMPTS
        tokens[:-pairs] = torch.where(emptied, none, tokens[:-pairs])
        noise = draw_noise(scaled[picks].shape, OFFSET_NOISE, generator)
        alpha = alphas[timesteps].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * scaled[picks] + (1 - alpha).sqrt() * noise
        noisy, noise, times = (torch.cat([whole, whole[-pairs:]]) for whole in (noisy, noise, timesteps))
        context = model.text(torch.cat([tokens, none.expand(pairs, -1)])).last_hidden_state
        inputs = noisy.to(context.dtype)
        (predicted,) = model.unet(inputs, times, encoder_hidden_states=context, return_dict=False)
        error = predicted.float() - noise
        scales = 1 + (MAX_GUIDANCE - 1) * torch.rand(pairs, generator=generator, device=device)
        guided = guided_error(error[batch - pairs : batch], error[batch:], scales)
        share = GUIDED_WEIGHT * pairs / len(error)
        low = weights[timesteps[-pairs:]] * guided_weights(timesteps[-pairs:])
        loss = diffusion_loss(error, weights[times], FLAT_WEIGHT)
        learner.learn(loss + share * diffusion_loss(guided, low, FLAT_WEIGHT))
    learner.use_average()
