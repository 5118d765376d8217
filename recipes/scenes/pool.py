"""A growing pool of drawn and encoded images on disk: encoding costs as much as training, so each is used often.

A shard is one safetensors file: `latents` [n, 4, 16, 16] fp16 (VAE means, unscaled), with the captions as JSON in
its metadata (several wordings an image). Image i of the pool is drawn from seed i, so a shard's number gives
its images.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipes.scenes.captions import describe
from recipes.scenes.images import draw
from recipes.scenes.layout import Scene, random_scene
from recipes.scenes.model import in_bf16

SHARD_IMAGES = 256
WORDINGS = 4


def scene_of_seed(seed: int) -> tuple[Scene, list[str]]:
    """The scene of `seed` and `WORDINGS` captions of it."""
    rng = Random(seed)
    scene = random_scene(rng)
    return scene, [describe(scene, rng) for _ in range(WORDINGS)]


def to_tensor(images: Sequence[Image.Image]) -> Tensor:
    """RGB images of one size as [n, 3, height, width] fp32 in -1 to 1."""
    stacked = np.stack([np.asarray(image) for image in images])
    return torch.from_numpy(stacked).permute(0, 3, 1, 2).float() / 127.5 - 1


def images_of_shard(number: int, count: int = SHARD_IMAGES) -> Tensor:
    """The images of shard `number`, drawn again: [count, 3, 128, 128] in -1 to 1."""
    first = number * SHARD_IMAGES
    return to_tensor([draw(scene_of_seed(seed)[0]) for seed in range(first, first + count)])


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"pool-{number:05d}.safetensors"


@torch.no_grad()
def encode_shard(vae: Any, folder: Path, number: int, *, batch: int = 16, device: str = "cpu") -> Path:
    """Draw, encode and write shard `number`, atomically; the VAE stays on its device. In bf16, which is
    three times faster where the device has it, latents differ by less than a hundredth of their spread."""
    first = number * SHARD_IMAGES
    drawn = [scene_of_seed(seed) for seed in range(first, first + SHARD_IMAGES)]
    latents = []
    for start in range(0, SHARD_IMAGES, batch):
        images = to_tensor([draw(scene) for scene, _ in drawn[start : start + batch]]).to(device)
        with in_bf16(device):
            mean = vae.encode(images).latent_dist.mean
        latents.append(mean.to("cpu", torch.float16).contiguous())
    path = shard_path(folder, number)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    captions = json.dumps([captions for _, captions in drawn])
    save_file({"latents": torch.cat(latents).contiguous()}, unfinished, metadata={"captions": captions})
    unfinished.replace(path)
    return path


def read_shard(path: Path) -> tuple[Tensor, list[list[str]]]:
    """Latents [n, 4, 16, 16] fp16 and the captions of a shard."""
    with safe_open(path, framework="pt") as file:
        return file.get_tensor("latents"), json.loads(file.metadata()["captions"])


class Pool:
    """The shards of a folder in memory; `refresh` picks up new ones while another process draws them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()
        self._latents: list[Tensor] = []
        self._captions: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._captions)

    def refresh(self) -> None:
        for path in sorted(self._folder.glob("pool-*.safetensors")):
            if path.name not in self._known:
                latents, captions = read_shard(path)
                self._known.add(path.name)
                self._latents.extend(latents.unbind(0))
                self._captions.extend(captions)

    def batch(self, size: int, rng: Random) -> tuple[Tensor, list[str]]:
        """`size` random latents [size, 4, 16, 16] fp32 with one wording each."""
        picks = rng.choices(range(len(self)), k=size)
        captions = [rng.choice(self._captions[pick]) for pick in picks]
        return torch.stack([self._latents[pick] for pick in picks]).float(), captions
