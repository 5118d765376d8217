"""Distils the model's VAE into a tiny one (TAESD's architecture) on drawn images: for previews, and for those who
choose it as encoder or decoder.

The decoder learns the full decoder's images, also of latents as they are halfway through sampling; the encoder
learns the full encoder's means. Both work on scaled latents.
"""

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from modules.models.autoencoders.running import VaeRunner
from modules.models.autoencoders.tiny_vae import TinyHalf, TinySizes, build_tiny, original_names
from modules.models.autoencoders.tiny_vae_files import DECODER, ENCODER
from recipes.scenes.images import draw
from recipes.scenes.model import SceneModel
from recipes.scenes.pool import images_of_shard, read_shard, scene_of_seed, shard_path, to_tensor
from recipes.scenes.vae import image_loss

TINY_STATE = "tiny-vae.pt"
REPORT_STEPS = 100
BLOCKS = (3, 3, 3, 1)  # of the decoder's stages, from the latent up; the encoder has them the other way round
DISTURBED_SHARE = 0.4  # of the latents that the decoder learns from are no encoder's
UNSEEN_SEED = 1_000_000  # pools count up from 0
PEAK = 2.0  # images lie in -1..1


@dataclass(frozen=True, kw_only=True)
class TinyOptions:
    """How to train; the learning rate falls by a cosine over `minutes` (or `steps`)."""

    minutes: float = 25.0
    steps: int | None = None
    batch: int = 8
    width: int = 16
    learning_rate: float = 2e-3
    snapshot_minutes: float = 1.0
    seed: int = 0
    device: str = "cpu"


def lesson_path(folder: Path, number: int) -> Path:
    """Where the images of shard `number` and what the full decoder makes of its latents are kept."""
    return folder / f"tiny-{number:05d}.safetensors"


@torch.no_grad()
def make_lesson(vae: Any, scale_factor: float, folder: Path, number: int, *, batch: int = 8) -> Path:
    """Decode shard `number` of the pool with the full VAE, and write all that the tiny one learns from, atomically.

    `latents` are the encoder's, `shown` partly disturbed (both scaled, fp16), `decoded` what the full decoder makes of
    `shown` and `images` what was drawn (both uint8).
    """
    latents = read_shard(shard_path(folder, number))[0].float() * scale_factor
    shown = disturbed(latents, torch.Generator().manual_seed(number))
    decoded = torch.cat([vae.decode(part / scale_factor).sample for part in torch.split(shown, batch)])
    tensors = {
        "latents": latents.half(),
        "shown": shown.half(),
        "decoded": _to_bytes(decoded),
        "images": _to_bytes(images_of_shard(number)),
    }
    path = lesson_path(folder, number)
    unfinished = path.with_suffix(".part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, unfinished)
    unfinished.replace(path)
    return path


def disturbed(latents: Tensor, generator: torch.Generator) -> Tensor:
    """Latents [n,C,h,w] of which a share is mixed with another one and has noise, as denoised ones halfway have. All
    lie where the generator does."""
    count, device = len(latents), generator.device

    def drawn() -> Tensor:
        return torch.rand(count, 1, 1, 1, generator=generator, device=device)

    other = latents[torch.randint(count, (count,), generator=generator, device=device)]
    share = 0.5 * drawn()
    noise = torch.randn(latents.shape, generator=generator, device=device) * 0.3 * drawn()
    return torch.where(drawn() < DISTURBED_SHARE, latents * (1 - share) + other * share + noise, latents)


class TinyTrainer:
    """The run's state: both halves, optimizer, steps and time, saved and resumed together."""

    def __init__(self, latent_channels: int, options: TinyOptions) -> None:
        self.options = options
        sizes = TinySizes(latent_channels, 3, (options.width,) * len(BLOCKS), BLOCKS)
        turned = replace(sizes, in_channels=3, out_channels=latent_channels, blocks=BLOCKS[::-1])
        torch.manual_seed(options.seed)
        self.decoder = build_tiny(sizes, DECODER).to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.encoder = build_tiny(turned, ENCODER).to(options.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._parameters = [*self.decoder.parameters(), *self.encoder.parameters()]
        self._optimizer = torch.optim.AdamW(self._parameters, lr=options.learning_rate, weight_decay=0.0)
        self.step = 0
        self.seconds = 0.0

    def progress(self) -> float:
        """Share of the run that is done; 1 or more: finished."""
        if self.options.steps is not None:
            return self.step / self.options.steps
        return self.seconds / (60 * self.options.minutes)

    def train_step(self, shown: Tensor, decoded: Tensor, latents: Tensor, images: Tensor) -> tuple[float, float]:
        """One step of both halves; images are in -1..1. Returns the decoder's and the encoder's loss."""
        falling = 0.5 * (1 + math.cos(math.pi * min(self.progress(), 1.0)))
        warming = min(1.0, (self.step + 1) / 50)
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.learning_rate * max(0.01, falling) * warming
        wanted, means = (tensor.to(self.options.device) for tensor in (decoded, latents))
        made = self.decoder(_last(shown.to(self.options.device)))
        decoder_loss = image_loss(made, wanted, 0.5) + 10.0 * F.mse_loss(made, wanted)
        found = self.encoder(_last(images.to(self.options.device)))
        encoder_loss = F.smooth_l1_loss(found, means, beta=0.2)
        self._optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(decoder_loss + encoder_loss)
        torch.nn.utils.clip_grad_norm_(self._parameters, 1.0)
        self._optimizer.step()
        self.step += 1
        return float(decoder_loss.detach()), float(encoder_loss.detach())

    def save(self, path: Path) -> None:
        """Write the state, atomically."""
        unfinished = path.with_suffix(".part")
        halves = {DECODER: self.decoder.state_dict(), ENCODER: self.encoder.state_dict()}
        state = {**halves, "optimizer": self._optimizer.state_dict(), "step": self.step, "seconds": self.seconds}
        torch.save(state, unfinished)
        unfinished.replace(path)

    def resume(self, path: Path) -> None:
        """Go on from a file that `save` wrote, with halves of the same width."""
        state: dict[str, Any] = torch.load(path, map_location=self.options.device, weights_only=True)
        self.decoder.load_state_dict(state[DECODER])
        self.encoder.load_state_dict(state[ENCODER])
        self._optimizer.load_state_dict(state["optimizer"])
        self.step, self.seconds = state["step"], state["seconds"]


def train_tiny(
    trainer: TinyTrainer, folder: Path, state_path: Path, session_minutes: float | None = None
) -> Iterator[tuple[int, float, float]]:
    """Train until time or steps are spent, or for `session_minutes` of this run; yields (step, mean losses) now and
    then. Resumes from `state_path`. The lessons of `folder` must have been made."""
    options = trainer.options
    if state_path.is_file():
        trainer.resume(state_path)
    rng = Random(f"{options.seed}-{trainer.step}")
    lessons = [load_file(path) for path in sorted(folder.glob("tiny-*.safetensors"))]
    began_at = saved_at = trainer.seconds
    losses: list[tuple[float, float]] = []
    while trainer.progress() < 1 and (session_minutes is None or trainer.seconds - began_at < 60 * session_minutes):
        began = time.monotonic()
        lesson = rng.choice(lessons)
        picks = rng.sample(range(len(lesson["latents"])), options.batch)
        shown, latents = lesson["shown"][picks].float(), lesson["latents"][picks].float()
        losses.append(
            trainer.train_step(shown, _to_unit(lesson["decoded"][picks]), latents, _to_unit(lesson["images"][picks]))
        )
        trainer.seconds += time.monotonic() - began
        if len(losses) == REPORT_STEPS:
            yield trainer.step, sum(a for a, _ in losses) / len(losses), sum(b for _, b in losses) / len(losses)
            losses = []
        if trainer.seconds - saved_at > 60 * options.snapshot_minutes:
            trainer.save(state_path)
            saved_at = trainer.seconds
    trainer.save(state_path)


def write_tiny(trainer: TinyTrainer, target: Path) -> list[Path]:
    """`TARGET_decoder.safetensors` and `TARGET_encoder.safetensors` in fp16, under the original names."""
    written = []
    for half, module in ((DECODER, trainer.decoder), (ENCODER, trainer.encoder)):
        path = target.with_name(f"{target.name}_{half}.safetensors")
        tensors = {name: tensor.half().contiguous() for name, tensor in original_names(module, half).items()}
        unfinished = path.with_suffix(".part")
        save_file(tensors, unfinished, metadata={"format": "pt"})
        unfinished.replace(path)
        path.chmod(0o644)
        written.append(path)
    return written


@dataclass(frozen=True)
class TinyQuality:
    """Mean PSNR in dB: of the tiny decoder against the full one, on the same latents; of the tiny encoder and decoder
    against the drawn images; and of the full VAE against them. `sheet` [images,4,3,H,W] shows each as drawn,
    decoded by the full and by the tiny decoder, and there and back by the tiny ones."""

    decoded_db: float
    round_trip_db: float
    full_round_trip_db: float
    sheet: Tensor


@torch.no_grad()
def measure_tiny(
    model: SceneModel, decoder: TinyHalf, encoder: TinyHalf, *, images: int = 32, first_seed: int = UNSEEN_SEED
) -> TinyQuality:
    """Compare with the full VAE on images that nothing was trained on."""
    runner = VaeRunner(torch.device("cpu"), torch.float32)
    rows, values = [], []
    for seed in range(first_seed, first_seed + images):
        drawn = to_tensor([draw(scene_of_seed(seed)[0])])
        latent = model.vae.encode(drawn).latent_dist.mean
        full = model.vae.decode(latent).sample
        tiny = decoder.run(latent * model.scale_factor, runner)
        back = decoder.run(encoder.run(drawn, runner), runner)
        rows.append(torch.cat([drawn, full, tiny, back]))
        values.append((psnr(tiny, full), psnr(back, drawn), psnr(full, drawn)))
    means = [sum(column) / images for column in zip(*values, strict=True)]
    return TinyQuality(means[0], means[1], means[2], torch.stack(rows))


def psnr(made: Tensor, wanted: Tensor) -> float:
    """Peak signal-to-noise ratio in dB of images in -1..1, after both were brought into that range."""
    error = (made.clamp(-1, 1) - wanted.clamp(-1, 1)).square().mean()
    return float(10 * torch.log10(PEAK**2 / error))


def _to_bytes(images: Tensor) -> Tensor:
    return ((images.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)


def _to_unit(images: Tensor) -> Tensor:
    return images.float() / 127.5 - 1


def _last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)
