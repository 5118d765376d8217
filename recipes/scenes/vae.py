"""Sharpens the VAE's decoder on frozen latents: the encoder, and with it the latent space and the UNet, stay as is.

Half of the latents are not the encoder's: noise is added and the UNet removes it in one step, with guidance as in
sampling. The decoder so learns to draw from latents as it will get them.

A decoder whose groups are normalized over the whole image can learn to raise one corner far above the rest, which
sets the brightness of all other pixels and leaves a spot there (seen by Karras et al. 2020, arXiv:1912.04958, as
droplets). Values that stand out so far after a normalization are part of the loss.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError
from recipes.scenes.images import draw
from recipes.scenes.model import SceneModel
from recipes.scenes.pool import SHARD_IMAGES, read_shard, scene_of_seed, to_tensor
from recipes.scenes.tokens import tokenize

DECODER_STATE = "decoder.pt"
REPORT_STEPS = 25
BORDER_PX, CORNER_PX = 8, 32
CORNER_FACTOR = 8


@dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """How to train the decoder; the learning rate falls linearly over `minutes` (or `steps`)."""

    minutes: float = 20.0
    steps: int | None = None
    batch: int = 4
    learning_rate: float = 2e-4
    warmup_steps: int = 50
    gradient_weight: float = 1.0
    border_weight: float = 1.0  # extra weight of the outer 8 pixels, see `border_weights`
    outlier_weight: float = 2.0
    outlier_limit: float = 5.0  # standard deviations of a group, above which its values are outliers
    denoised_share: float = 0.5  # of the latents are the UNet's
    denoised_timesteps: int = 300  # noise up to this timestep: what is drawn stays where it is
    max_guidance: float = 2.0  # of the UNet's restoring
    snapshot_minutes: float = 5.0
    seed: int = 0
    device: str = "cpu"


def image_loss(decoded: Tensor, wanted: Tensor, gradient_weight: float, weights: Tensor | None = None) -> Tensor:
    """L1 at three scales plus the L1 of horizontal and vertical differences, which is where soft edges show.

    Both [n, 3, height, width] in -1 to 1; `weights` [height, width] of the pixels count in the L1, not in the
    differences.
    """
    error = decoded - wanted
    weighted = error if weights is None else error * weights
    scales = sum((F.avg_pool2d(weighted, 2**scale).abs().mean() for scale in range(3)), torch.zeros(()).to(error))
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return scales + gradient_weight * edges


def border_weights(height: int, width: int, extra: float) -> Tensor:
    """Weights [height, width]: 1; `extra` more in the outer 8 pixels, again in the corners of 32, and 8 times in the
    corners of 8."""
    rows = torch.minimum(torch.arange(height), torch.arange(height).flip(0))[:, None]
    columns = torch.minimum(torch.arange(width), torch.arange(width).flip(0))[None]
    nearest, farthest = torch.minimum(rows, columns), torch.maximum(rows, columns)
    border, corner = (nearest < BORDER_PX).float(), (farthest < CORNER_PX).float()
    return 1 + extra * (border + corner + CORNER_FACTOR * (farthest < BORDER_PX))


@torch.no_grad()
def denoised(model: SceneModel, latents: Tensor, captions: list[str], options: DecoderOptions, rng: Random) -> Tensor:
    """Unscaled latents [n, 4, h, w] with noise up to `denoised_timesteps`, as the UNet restores them in one step.

    It is guided by the captions at a CFG scale between 1 and `max_guidance`.
    """
    count = len(latents)
    scaled = latents * model.scale_factor
    generator = torch.Generator().manual_seed(rng.randrange(2**31))
    timesteps = torch.tensor([rng.randrange(1, options.denoised_timesteps) for _ in captions])
    guidance = torch.tensor([rng.uniform(1, options.max_guidance) for _ in captions]).view(-1, 1, 1, 1)
    context = model.text(tokenize([*captions, *[""] * count])).last_hidden_state
    alpha = model.alphas_cumprod[timesteps].view(-1, 1, 1, 1)
    noisy = alpha.sqrt() * scaled + (1 - alpha).sqrt() * torch.randn(scaled.shape, generator=generator)
    predicted: Tensor = model.unet(noisy.repeat(2, 1, 1, 1), timesteps.repeat(2), encoder_hidden_states=context).sample
    cond, uncond = predicted.chunk(2)
    noise = uncond + guidance * (cond - uncond)
    restored: Tensor = (noisy - (1 - alpha).sqrt() * noise) / alpha.sqrt() / model.scale_factor
    return restored


class Outliers:
    """How far values of a module's group norms lie beyond `limit` standard deviations, summed over its forward pass."""

    def __init__(self, module: nn.Module, limit: float) -> None:
        self._limit = limit
        self._parts: list[Tensor] = []
        for norm in module.modules():
            if isinstance(norm, nn.GroupNorm):
                norm.register_forward_pre_hook(self._look)

    def _look(self, norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(norm, nn.GroupNorm)
        if torch.is_grad_enabled():
            # Against the mean and deviation as they are: an outlier that makes the deviation cannot lower its distance.
            groups = inputs[0].reshape(len(inputs[0]), norm.num_groups, -1)
            deviation, mean = torch.std_mean(groups.detach(), dim=-1, keepdim=True)
            normal = (groups - mean) / (deviation + norm.eps)
            self._parts.append(F.relu(normal.abs() - self._limit).mean())

    def take(self) -> Tensor:
        """The sum since the last call, a scalar with its gradient."""
        total = torch.stack(self._parts).sum()
        self._parts = []
        return total


class DecoderTuner:
    """The run's state: decoder weights, optimizer, steps and time, saved and resumed together."""

    def __init__(self, vae: Any, options: DecoderOptions) -> None:
        self.vae = vae.to(options.device)
        self.options = options
        self._parameters = [*vae.decoder.parameters(), *vae.post_quant_conv.parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=options.learning_rate, weight_decay=0.0)
        self._outliers = Outliers(vae.decoder, options.outlier_limit)
        self.step = 0
        self.seconds = 0.0

    def progress(self) -> float:
        """Share of the run that is done; 1 or more: finished."""
        by_time = self.seconds / (60 * self.options.minutes)
        return by_time if self.options.steps is None else max(by_time, self.step / self.options.steps)

    def train_step(self, latents: Tensor, images: Tensor) -> float:
        """One step on unscaled latents [n, 4, h, w] and their images; returns the loss."""
        options = self.options
        warmup = min(1.0, (self.step + 1) / options.warmup_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = options.learning_rate * warmup * max(0.02, 1 - self.progress())
        decoded = self.vae.decode(latents.to(options.device)).sample
        height, width = images.shape[-2:]
        weights = border_weights(height, width, options.border_weight).to(options.device)
        loss = image_loss(decoded, images.to(options.device), options.gradient_weight, weights)
        loss = loss + options.outlier_weight * self._outliers.take()
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss, inputs=self._parameters)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
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


def read_tuned(vae: Any, path: Path) -> None:
    """Put the weights of a file that `DecoderTuner.save` wrote into a VAE, whatever was trained of it."""
    vae.load_state_dict(torch.load(path, map_location="cpu", weights_only=True)["vae"])


def tune_decoder(tuner: DecoderTuner, model: SceneModel, pool: Path, state_path: Path) -> Iterator[tuple[int, float]]:
    """Train until time or steps are spent; yields (step, mean loss) now and then. Resumes from `state_path`.

    `model`, whose VAE the tuner trains, stays on the CPU apart from it. Raises CheckpointError where the pool is empty.
    """
    shards = sorted(pool.glob("pool-*.safetensors"))
    if not shards:
        raise CheckpointError(f"{pool} holds no encoded images. Run the command `encode` first.")
    if state_path.is_file():
        tuner.resume(state_path)
    options = tuner.options
    rng = Random(f"{options.seed}-{tuner.step}")
    saved_at, losses = tuner.seconds, []
    while tuner.progress() < 1:
        began = time.monotonic()
        latents, captions, images = _batch(rng.choice(shards), options.batch, rng)
        count = round(options.denoised_share * options.batch)
        if count:
            shown = denoised(model, latents[:count], captions[:count], options, rng)
            latents = torch.cat([shown, latents[count:]])
        losses.append(tuner.train_step(latents, images))
        tuner.seconds += time.monotonic() - began
        if len(losses) == REPORT_STEPS:
            yield tuner.step, sum(losses) / len(losses)
            losses = []
        if tuner.seconds - saved_at > 60 * options.snapshot_minutes:
            tuner.save(state_path)
            saved_at = tuner.seconds
    tuner.save(state_path)


def _batch(shard: Path, size: int, rng: Random) -> tuple[Tensor, list[str], Tensor]:
    """Random latents of a shard with one wording each, and their images drawn again from their seeds."""
    latents, captions = read_shard(shard)
    first = int(shard.stem.removeprefix("pool-")) * SHARD_IMAGES
    picks = rng.sample(range(SHARD_IMAGES), size)
    images = to_tensor([draw(scene_of_seed(first + pick)[0]) for pick in picks])
    return latents[picks].float(), [rng.choice(captions[pick]) for pick in picks], images
