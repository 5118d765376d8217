"""The tiny VAE on a card: it learns from the full one as that stands, without lessons on disk."""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from recipes.card.drawing import DrawnPool, seeded
from recipes.card.running import log
from recipes.scenes.model import SceneModel, in_bf16
from recipes.scenes.tiny_vae import TinyOptions, TinyTrainer, disturbed, write_tiny


def train_tiny_vae(
    model: SceneModel, pool: DrawnPool, latents: Tensor, target: Path, *, seconds: float, batch: int
) -> list[Path]:
    """Train both halves on `latents` [n, 4, 16, 16] (unscaled) and the pool's images, and write them."""
    device = latents.device
    trainer = TinyTrainer(latents.shape[1], TinyOptions(minutes=seconds / 60, batch=batch, device=str(device)))
    generator, began = seeded(device, 4), time.monotonic()
    while trainer.progress() < 1:
        picks = pool.pick(batch, generator)
        scaled = latents[picks] * model.scale_factor
        shown = disturbed(scaled, generator)
        with torch.no_grad(), in_bf16(device):
            decoded = model.vae.decode(shown / model.scale_factor).sample.float().clamp(-1, 1)
        losses = trainer.train_step(shown, decoded, scaled, pool.pixels(picks))
        trainer.seconds = time.monotonic() - began
        if trainer.step % 200 == 0:
            log.info("tiny: step %d, losses %.4f and %.4f, %.1f s", trainer.step, *losses, trainer.seconds)
    return write_tiny(trainer, target)
