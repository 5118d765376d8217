"""Sharpens the VAE's decoder on frozen latents: the encoder, and with it the latent space and the UNet, stay as is."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError
from recipes.scenes.images import draw
from recipes.scenes.pool import SHARD_IMAGES, read_shard, scene_of_seed, to_tensor

DECODER_STATE = "decoder.pt"
REPORT_STEPS = 25


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """How to train the decoder; the learning rate falls linearly over `minutes` (or `steps`)."""

    minutes: float = 20.0
    steps: int | None = None
    batch: int = 8
    learning_rate: float = 2e-4
    gradient_weight: float = 1.0
    snapshot_minutes: float = 5.0
    seed: int = 0
    device: str = "cpu"


def image_loss(decoded: Tensor, wanted: Tensor, gradient_weight: float) -> Tensor:
    """L1 at three scales plus the L1 of horizontal and vertical differences, which is where soft edges show.

    Both [n, 3, height, width] in -1 to 1.
    """
    error = decoded - wanted
    scales = sum((F.avg_pool2d(error, 2**scale).abs().mean() for scale in range(3)), torch.zeros(()).to(error))
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return scales + gradient_weight * edges


class DecoderTuner:
    """The run's state: decoder weights, optimizer, steps and time, saved and resumed together."""

    def __init__(self, vae: Any, options: DecoderOptions) -> None:
        self.vae = vae.to(options.device)
        self.options = options
        self._parameters = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=options.learning_rate, weight_decay=0.0)
        self.step = 0
        self.seconds = 0.0

    def progress(self) -> float:
        """Share of the run that is done; 1 or more: finished."""
        by_time = self.seconds / (60 * self.options.minutes)
        return by_time if self.options.steps is None else max(by_time, self.step / self.options.steps)

    def train_step(self, latents: Tensor, images: Tensor) -> float:
        """One step on unscaled latents [n, 4, h, w] and their images; returns the loss."""
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.learning_rate * max(0.02, 1 - self.progress())
        decoded = self.vae.decode(latents.to(self.options.device)).sample
        loss = image_loss(decoded, images.to(self.options.device), self.options.gradient_weight)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=self._parameters)
        self._optimizer.step()
        self.step += 1
        return float(loss.detach())

    def save(self, path: Path) -> None:
        """Write the state, atomically."""
        unfinished = path.with_suffix(".part")
        state = {"vae": self.vae.state_dict(), "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "step": self.step, "seconds": self.seconds}, unfinished)
        unfinished.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a file that `save` wrote."""
        state: dict[str, Any] = torch.load(path, map_location=self.options.device, weights_only=True)
        self.vae.load_state_dict(state["vae"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def tune_decoder(tuner: DecoderTuner, pool: Path, state_path: Path) -> Iterator[tuple[int, float]]:
    """Train until time or steps are spent; yields (step, mean loss) now and then. Resumes from `state_path`.

    Raises CheckpointError where the pool is empty.
    """
    shards = sorted(pool.glob("pool-*.safetensors"))
    if not shards:
        raise CheckpointError(f"{pool} holds no encoded images. Run the command `encode` first.")
    if state_path.is_file():
        tuner.resume(state_path)
    rng = Random(f"{tuner.options.seed}-{tuner.step}")
    saved_at, losses = tuner.seconds, []
    while tuner.progress() < 1:
        began = time.monotonic()
        losses.append(tuner.train_step(*_batch(rng.choice(shards), tuner.options.batch, rng)))
        tuner.seconds += time.monotonic() - began
        if len(losses) == REPORT_STEPS:
            yield tuner.step, sum(losses) / len(losses)
            losses = []
        if tuner.seconds - saved_at > 60 * tuner.options.snapshot_minutes:
            tuner.save(state_path)
            saved_at = tuner.seconds
    tuner.save(state_path)


def _batch(shard: Path, size: int, rng: Random) -> tuple[Tensor, Tensor]:
    """Random latents of a shard, and their images drawn again from their seeds."""
    latents, _ = read_shard(shard)
    first = int(shard.stem.removeprefix("pool-")) * SHARD_IMAGES
    picks = rng.sample(range(SHARD_IMAGES), size)
    return latents[picks].float(), to_tensor([draw(scene_of_seed(first + pick)[0]) for pick in picks])
