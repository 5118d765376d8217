"""Trains UNet and text model together on the pool: eps prediction, weighted so that colors are learnt where they fall.

The loss is that of `recipes.scenes.loss`, which says why it is weighted.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from recipes.scenes.loss import diffusion_loss, draw_noise, draw_timesteps, loss_weights, rate_factor
from recipes.scenes.model import SceneModel
from recipes.scenes.pool import Pool
from recipes.scenes.tokens import tokenize


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions:
    """How to train. The learning rate warms up, then falls by a cosine over `minutes` of training (or `steps`)."""

    minutes: float = 90.0
    steps: int | None = None  # stop after these; None: by time alone
    batch: int = 40
    learning_rate: float = 3e-4
    final_rate: float = 0.02  # of the learning rate, at the end
    warmup_steps: int = 100
    weight_decay: float = 1e-2
    empty_prompts: float = 0.1
    high_noise_share: float = 0.5  # of the timesteps are drawn from the upper half only
    ema_decay: float = 0.999
    weight_limit: float = 50.0
    flat_weight: float = 2.0  # extra weight of the error's mean over the image
    offset_noise: float = 0.1  # standard deviation, on half of the images
    min_snr: float = 5.0
    snapshot_minutes: float = 5.0
    seed: int = 0
    device: str = "cpu"


class Trainer:
    """One training run: weights, their moving average, optimizer, and the time spent, saved and resumed together."""

    def __init__(self, model: SceneModel, options: DiffusionOptions) -> None:
        self.model = model
        self.options = options
        device = options.device
        self._unet, self._text = model.unet.to(device).train(), model.text.to(device).train()
        self._parameters = [*self._unet.parameters(), *self._text.parameters()]
        self._ema = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer = torch.optim.AdamW(
            self._parameters,
            lr=options.learning_rate,
            weight_decay=options.weight_decay,
            betas=(0.9, 0.99),
            fused=True,
        )
        self._alphas = model.alphas_cumprod.to(device)
        self._weights = loss_weights(self._alphas, options.weight_limit, options.min_snr)
        self.step = 0
        self.seconds = 0.0

    def progress(self) -> float:
        by_time = self.seconds / (60 * self.options.minutes)
        return by_time if self.options.steps is None else max(by_time, self.step / self.options.steps)

    def train_step(self, latents: Tensor, captions: list[str], generator: torch.Generator) -> float:
        """One optimizer step on unscaled `latents`; returns the loss."""
        options, device = self.options, self.options.device
        factor = rate_factor(self.step, self.progress(), options.warmup_steps, options.final_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * factor
        scaled = (latents * self.model.scale_factor).to(device)
        noise = draw_noise(latents.shape, options.offset_noise, generator).to(device)
        timesteps = draw_timesteps(len(captions), options.high_noise_share, generator).to(device)
        context = self._text(tokenize(captions).to(device)).last_hidden_state
        alpha = self._alphas[timesteps].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * scaled + (1 - alpha).sqrt() * noise
        predicted = self._unet(noisy, timesteps, encoder_hidden_states=context).sample
        loss = diffusion_loss(predicted - noise, self._weights[timesteps], options.flat_weight)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        # A young average would still remember the start; the decay grows with the steps taken.
        decay = min(options.ema_decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._ema, [parameter.detach() for parameter in self._parameters], 1 - decay)
        return float(loss.detach())

    def averaged(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """State dicts of UNet and text model from the moving average, fp32 on the CPU."""
        average = iter(self._ema)
        states = [
            {name: next(average).detach().cpu().clone() for name, _ in module.named_parameters()}
            for module in (self._unet, self._text)
        ]
        return states[0], states[1]

    def save(self, path: Path) -> None:
        """Write everything needed to go on, atomically."""
        unfinished = path.with_suffix(".part")
        torch.save(
            {
                "unet": self._unet.state_dict(),
                "text": self._text.state_dict(),
                "ema": self._ema,
                "optimizer": self._optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
            },
            unfinished,
        )
        unfinished.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a file that `save` wrote."""
        state: dict[str, Any] = torch.load(path, map_location=self.options.device, weights_only=True)
        self._unet.load_state_dict(state["unet"])
        self._text.load_state_dict(state["text"])
        self._ema = [tensor.to(self.options.device) for tensor in state["ema"]]
        self._optimizer.load_state_dict(state["optimizer"])
        with torch.no_grad():  # the average is the better place to go on from
            for parameter, average in zip(self._parameters, self._ema, strict=True):
                parameter.copy_(average)
        self.step, self.seconds = state["step"], state["seconds"]


def train_diffusion(
    trainer: Trainer, pool: Pool, state_path: Path, report: Callable[[str], None]
) -> Iterator[tuple[int, float]]:
    """Train until the time or the steps of the options are spent; yields (step, mean loss) every 25 steps.

    Resumes from `state_path` where it exists, and writes it every `snapshot_minutes` and at the end. New shards of
    the pool are picked up on the way.
    """
    options = trainer.options
    if state_path.is_file():
        trainer.resume(state_path)
        report(f"resumed at step {trainer.step} after {trainer.seconds / 60:.1f} minutes")
    rng = Random(f"{options.seed}-{trainer.step}")
    generator = torch.Generator().manual_seed(options.seed + trainer.step)
    saved_at, losses = trainer.seconds, []
    while trainer.progress() < 1:
        if trainer.step % 50 == 0 or len(pool) == 0:
            pool.refresh()
        started = time.monotonic()
        latents, captions = pool.batch(options.batch, rng)
        # No augmentation: the encoder is not equivariant, so a flipped latent is no image's latent.
        captions = ["" if rng.random() < options.empty_prompts else caption for caption in captions]
        losses.append(trainer.train_step(latents, captions, generator))
        trainer.seconds += time.monotonic() - started
        if len(losses) == 25:
            yield trainer.step, sum(losses) / len(losses)
            losses = []
        if trainer.seconds - saved_at > 60 * options.snapshot_minutes:
            trainer.save(state_path)
            saved_at = trainer.seconds
    trainer.save(state_path)
