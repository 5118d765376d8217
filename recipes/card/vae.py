"""The VAE on a card: all of it from drawn images, and then its decoder from what the UNet makes.

The latents keep their layout and get their scale back afterwards (`scale_factor`). They are learnt with noise, relative
to their own spread so that it cannot be outgrown: what a UNet restores is never exact. KL weight as by Rombach et al.
2022 (arXiv:2112.10752).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recipes.card.drawing import DrawnPool, seeded
from recipes.card.running import Learner
from recipes.card.unet import empty_tokens
from recipes.scenes.layout import SIZE_PX
from recipes.scenes.model import SceneModel, in_bf16
from recipes.scenes.vae import MAX_GUIDANCE, border_weights, image_loss

KL_WEIGHT = 1e-6  # of the sum over an image's latent
LATENT_NOISE = 0.1  # at most, of the latents' standard deviation
GRADIENT_WEIGHT = 1.0
BORDER_WEIGHT = 0.5
DENOISED_TIMESTEPS = 300
ENCODED_AT_ONCE = 1024


def train_vae(vae: Any, pool: DrawnPool, *, seconds: float, batch: int, learning_rate: float = 6e-4) -> None:
    """Train encoder and decoder on the pool's images, which may still grow; the moving average stays in the VAE."""
    learner, device = Learner("vae", vae, seconds=seconds, learning_rate=learning_rate), pool.images.device
    generator, weights = seeded(device, 1), border_weights(SIZE_PX, SIZE_PX, BORDER_WEIGHT).to(device)
    while learner.going():
        images = pool.pixels(pool.pick(batch, generator))
        moments = vae.quant_conv(vae.encoder(images.to(vae.dtype))).float()
        mean, log_variance = moments.chunk(2, dim=1)
        variance = log_variance.clamp(-30, 20).exp()
        noise = torch.randn(mean.shape, generator=generator, device=device)
        extra = LATENT_NOISE * torch.rand(batch, 1, 1, 1, generator=generator, device=device)
        restored = mean + noise * (variance + (extra * mean.detach().std()).square()).sqrt()
        decoded = vae.decoder(vae.post_quant_conv(restored.to(vae.dtype)))
        kl = 0.5 * (mean.square() + variance - 1 - log_variance).sum() / batch
        learner.learn(image_loss(decoded.float(), images, GRADIENT_WEIGHT, weights) + KL_WEIGHT * kl)
    learner.use_average()


@torch.no_grad()
def encode_pool(vae: Any, pool: DrawnPool) -> Tensor:
    """The means [ready, 4, 16, 16], unscaled fp32, of all images that are ready."""
    return torch.cat([vae.encode(pool.pixels(part)).latent_dist.mean for part in _parts(pool)])


def _parts(pool: DrawnPool) -> tuple[Tensor, ...]:
    return torch.split(torch.arange(pool.ready, device=pool.images.device), ENCODED_AT_ONCE)


def tune_decoder(
    model: SceneModel, pool: DrawnPool, latents: Tensor, *, seconds: float, batch: int, learning_rate: float = 2e-4
) -> None:
    """Train the decoder alone, half on latents [n, 4, 16, 16] (unscaled) as they are and half as the UNet restores
    them in one guided step from little noise; the moving average stays in the VAE."""
    vae = model.vae
    learner = Learner(
        "decoder",
        vae.decoder,
        vae.post_quant_conv,
        seconds=seconds,
        learning_rate=learning_rate,
        ema_decay=0.995,
        dtype=torch.float32,  # what is left to learn is as small as bf16's steps
    )
    device = latents.device
    generator, weights = seeded(device, 3), border_weights(SIZE_PX, SIZE_PX, BORDER_WEIGHT).to(device)
    alphas = model.alphas_cumprod.to(device)
    while learner.going():
        picks = pool.pick(batch, generator)
        shown = latents[picks]
        tokens = pool.wordings(picks[: batch // 2], generator)
        shown = torch.cat([_restored(model, alphas, shown[: batch // 2], tokens, generator), shown[batch // 2 :]])
        decoded = vae.decode(shown).sample
        learner.learn(image_loss(decoded, pool.pixels(picks), GRADIENT_WEIGHT, weights))
    learner.use_average()


@torch.no_grad()
def _restored(model: SceneModel, alphas: Tensor, latents: Tensor, tokens: Tensor, generator: torch.Generator) -> Tensor:
    """Unscaled latents as the UNet restores them, guided, in one step."""
    count, device = len(latents), latents.device
    timesteps = torch.randint(1, DENOISED_TIMESTEPS, (count,), generator=generator, device=device)
    guidance = 1 + (MAX_GUIDANCE - 1) * torch.rand(count, 1, 1, 1, generator=generator, device=device)
    alpha = alphas[timesteps].view(-1, 1, 1, 1)
    noise = torch.randn(latents.shape, generator=generator, device=device)
    noisy = alpha.sqrt() * latents * model.scale_factor + (1 - alpha).sqrt() * noise
    with in_bf16(device):
        context = model.text(torch.cat([tokens, empty_tokens(device).expand(count, -1)])).last_hidden_state
        both = model.unet(noisy.repeat(2, 1, 1, 1), timesteps.repeat(2), encoder_hidden_states=context).sample
    cond, uncond = both.float().chunk(2)
    predicted = uncond + guidance * (cond - uncond)
    restored: Tensor = (noisy - (1 - alpha).sqrt() * predicted) / alpha.sqrt() / model.scale_factor
    return restored
