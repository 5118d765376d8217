"""Trains the control net on the lessons: the bundled model stays as it is, and only what is added to it learns."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from recipes.control.lessons import Lessons
from recipes.control.net import RANK, new_net, trained
from recipes.scenes.loss import diffusion_loss, draw_noise, draw_timesteps, loss_weights, rate_factor
from recipes.scenes.model import SceneModel
from recipes.scenes.tokens import tokenize


@dataclass(frozen=True, kw_only=True)
class ControlOptions:
    """How to train. The learning rate warms up, then falls by a cosine over `minutes` of training (or `steps`)."""

    minutes: float = 40.0
    steps: int | None = None  # stop after these; None: by time alone
    batch: int = 16
    learning_rate: float = 1.5e-3
    final_rate: float = 0.05  # of the learning rate, at the end
    warmup_steps: int = 20
    rank: int = RANK
    high_noise_share: float = 0.7  # of the timesteps are drawn from the upper half, where forms are decided
    ema_decay: float = 0.98
    weight_limit: float = 50.0
    flat_weight: float = 0.0
    offset_noise: float = 0.1
    min_snr: float = 5.0
    snapshot_minutes: float = 2.0
    seed: int = 0
    device: str = "cpu"


class ControlTrainer:
    """One training run: control net, moving average, optimizer and the time spent, saved and resumed together."""

    def __init__(self, model: SceneModel, options: ControlOptions) -> None:
        self.options = options
        self._scale_factor = model.scale_factor
        self._unet = model.unet.to(options.device).eval().requires_grad_(False)
        self._text = model.text.to(options.device).eval().requires_grad_(False)
        self.net = new_net(model.unet, options.rank, options.seed).to(options.device)
        self._parameters = [parameter for _, parameter in trained(self.net)]
        self._ema = [parameter.detach().clone() for parameter in self._parameters]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=options.learning_rate, betas=(0.9, 0.99), fused=True)
        self._alphas = model.alphas_cumprod.to(options.device)
        self._weights = loss_weights(self._alphas, options.weight_limit, options.min_snr)
        self.step = 0
        self.seconds = 0.0

    def progress(self) -> float:
        by_time = self.seconds / (60 * self.options.minutes)
        return by_time if self.options.steps is None else max(by_time, self.step / self.options.steps)

    def train_step(self, latents: Tensor, edges: Tensor, captions: list[str], generator: torch.Generator) -> float:
        """One optimizer step on unscaled `latents` and their edges [n, 1, 128, 128]; returns the loss."""
        options, device = self.options, self.options.device
        factor = rate_factor(self.step, self.progress(), options.warmup_steps, options.final_rate)
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * factor
        noise = draw_noise(latents.shape, options.offset_noise, generator).to(device)
        timesteps = draw_timesteps(len(captions), options.high_noise_share, generator).to(device)
        alpha = self._alphas[timesteps].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * (latents * self._scale_factor).to(device) + (1 - alpha).sqrt() * noise
        with torch.no_grad():
            context = self._text(tokenize(captions).to(device)).last_hidden_state
        predicted = self._predict(noisy, timesteps, context, edges.to(device))
        loss = diffusion_loss(predicted - noise, self._weights[timesteps], options.flat_weight)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        decay = min(options.ema_decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._ema, [parameter.detach() for parameter in self._parameters], 1 - decay)
        return float(loss.detach())

    def _predict(self, noisy: Tensor, timesteps: Tensor, context: Tensor, edges: Tensor) -> Tensor:
        down, middle = self.net(noisy, timesteps, context, controlnet_cond=edges, return_dict=False)
        predicted: Tensor = self._unet(
            noisy,
            timesteps,
            encoder_hidden_states=context,
            down_block_additional_residuals=down,
            mid_block_additional_residual=middle,
        ).sample
        return predicted

    @torch.no_grad()
    def use_average(self) -> None:
        """Put the moving average into the net: the better place to go on from, and what is written."""
        for parameter, average in zip(self._parameters, self._ema, strict=True):
            parameter.copy_(average)

    def save(self, path: Path) -> None:
        """Write everything needed to go on, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".part")
        torch.save(
            {
                "parameters": [parameter.detach() for parameter in self._parameters],
                "ema": self._ema,
                "optimizer": self._optimizer.state_dict(),
                "step": self.step,
                "seconds": self.seconds,
            },
            unfinished,
        )
        unfinished.replace(path)

    @torch.no_grad()
    def resume(self, path: Path) -> None:
        """Go on from a file that `save` wrote."""
        state: dict[str, Any] = torch.load(path, map_location=self.options.device, weights_only=True)
        for parameter, saved in zip(self._parameters, state["parameters"], strict=True):
            parameter.copy_(saved)
        self._ema = [tensor.to(self.options.device) for tensor in state["ema"]]
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def train_control(trainer: ControlTrainer, lessons: Lessons, state_path: Path) -> Iterator[tuple[int, float]]:
    """Train until the time or the steps of the options are spent; yields (step, mean loss) every 25 steps.

    Resumes from `state_path` where it exists, and writes it every `snapshot_minutes` and at the end.
    """
    options = trainer.options
    if state_path.is_file():
        trainer.resume(state_path)
    rng = Random(f"{options.seed}-{trainer.step}")
    generator = torch.Generator().manual_seed(options.seed + trainer.step)
    saved_at = trainer.seconds
    losses: list[float] = []
    while trainer.progress() < 1:
        if trainer.step % 50 == 0:
            lessons.refresh()
        started = time.monotonic()
        losses.append(trainer.train_step(*lessons.batch(options.batch, rng), generator))
        trainer.seconds += time.monotonic() - started
        if len(losses) == 25:
            yield trainer.step, sum(losses) / len(losses)
            losses = []
        if trainer.seconds - saved_at > 60 * options.snapshot_minutes:
            trainer.save(state_path)
            saved_at = trainer.seconds
    trainer.save(state_path)
