"""Trains the UNet on the pool, and the text model where asked: eps prediction, weighted so that colors are learnt where
they fall.

The loss is that of `recipes.scenes.loss`, which says why it is weighted. A text model that knows all words already is
better left alone: it would cost a sixth of the time, and its vocabulary half of the optimizer's.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from recipes.scenes.loss import (
    diffusion_loss,
    draw_guided_timesteps,
    draw_noise,
    draw_timesteps,
    guided_error,
    guided_weights,
    loss_weights,
    rate_factor,
)
from recipes.scenes.model import SceneModel, in_bf16
from recipes.scenes.parallel import BmmAttention, Workers
from recipes.scenes.pool import Pool
from recipes.scenes.tokens import tokenize


@dataclass(frozen=True, kw_only=True)
class DiffusionOptions:
    """How to train. The learning rate warms up, then falls by a cosine over `minutes` of training (or `steps`)."""

    minutes: float = 90.0
    steps: int | None = None  # stop after these; None: by time alone
    batch: int = 24
    pairs: int = 8  # of a batch are predicted with and without their prompt, for the loss under guidance
    part: int = 16  # predictions that one thread makes at a time; even, so that pairs stay together
    learning_rate: float = 3e-4
    final_rate: float = 0.01  # of the learning rate, at the end
    warmup_steps: int = 50
    weight_decay: float = 1e-2
    empty_prompts: float = 0.15
    high_noise_share: float = 0.8  # of the timesteps are drawn from the upper half only
    guided_weight: float = 0.2  # of the error under guidance, for the pairs
    max_guidance: float = 8.0
    train_text: bool = False
    ema_decay: float = 0.99
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
        self._unet, self._text = model.unet.to(device).train(), model.text.to(device).train(options.train_text)
        self._unet.set_attn_processor(BmmAttention())
        self._trained = [self._unet, self._text] if options.train_text else [self._unet]
        self._parameters = [parameter for module in self._trained for parameter in module.parameters()]
        self._workers = Workers(torch.get_num_threads())
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
        pairs = min(options.pairs, len(captions))
        timesteps = draw_timesteps(len(captions), options.high_noise_share, generator)
        timesteps[:pairs] = draw_guided_timesteps(pairs, generator)
        guidance = (1 + (options.max_guidance - 1) * torch.rand(pairs, generator=generator)).to(device)
        noise = draw_noise(latents.shape, options.offset_noise, generator)
        # A pair's two rows, with and without the prompt, follow each other.
        twice = torch.arange(len(captions)).repeat_interleave(torch.arange(len(captions)).lt(pairs) + 1)
        texts = [caption for row, caption in enumerate(captions) for caption in (caption, "")[: 1 + (row < pairs)]]
        scaled = (latents[twice] * self.model.scale_factor).to(device)
        noise, timesteps, tokens = noise[twice].to(device), timesteps[twice].to(device), tokenize(texts).to(device)
        alpha = self._alphas[timesteps].view(-1, 1, 1, 1)
        noisy = alpha.sqrt() * scaled + (1 - alpha).sqrt() * noise

        def loss_of(part: slice) -> Tensor:
            with in_bf16(device):
                with torch.set_grad_enabled(options.train_text):
                    context = self._text(tokens[part]).last_hidden_state
                predicted = self._unet(noisy[part], timesteps[part], encoder_hidden_states=context).sample
            error, weights = predicted.float() - noise[part], self._weights[timesteps[part]]
            loss = diffusion_loss(error, weights, options.flat_weight)
            both = max(0, min(part.stop, 2 * pairs) - part.start)
            if both:
                scales = guidance[part.start // 2 : (part.start + both) // 2]
                guided = guided_error(error[:both:2], error[1:both:2], scales)
                weights = weights[:both:2] * guided_weights(timesteps[part][:both:2])
                share = both / 2 / len(error)
                loss = loss + options.guided_weight * share * diffusion_loss(guided, weights, options.flat_weight)
            return loss

        loss = self._workers.gradients(loss_of, self._parameters, len(texts), options.part)
        nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        # A young average would still remember the start; the decay grows with the steps taken.
        decay = min(options.ema_decay, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(self._ema, [parameter.detach() for parameter in self._parameters], 1 - decay)
        return loss

    def averaged(self) -> list[dict[str, Tensor]]:
        """State dicts of the UNet, and of a trained text model, from the moving average, fp32 on the CPU."""
        average = iter(self._ema)
        return [
            {name: next(average).detach().cpu().clone() for name, _ in module.named_parameters()}
            for module in self._trained
        ]

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
