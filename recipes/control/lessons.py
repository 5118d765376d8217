"""What the control net learns from: scenes with their edges, encoded once and kept on disk.

A shard is one safetensors file: `latents` [n, 4, 16, 16] fp16 (VAE means, unscaled), `edges` [n, 128, 16] uint8 (one
bit per pixel), with the wordings of each image as JSON in its metadata. Image i of the lessons is drawn from seed i.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from recipes.control.edges import canny
from recipes.scenes.captions import describe, plain_caption
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, SIZE_PX, Landscape, Scene, ShapesScene, random_landscape, random_pair
from recipes.scenes.layout import random_single as random_middle
from recipes.scenes.pool import to_tensor

SHARD_IMAGES = 64
LOW, HIGH = 100.0, 200.0  # canny's thresholds
FINE_SHARE = 0.3  # of the edge images are found at four times the size and reduced, as at a resolution of 512
SINGLE_SHARE, PAIR_SHARE = 0.8, 0.1
FIRST_SEED = 5_000_000
WORD = "shape"  # stands for the kind of thing, which the edges say


def scene_of_seed(seed: int) -> Scene:
    """Mostly one shape, anywhere in the image; some pairs and landscapes."""
    rng = Random(seed)
    share = rng.random()
    if share < SINGLE_SHARE:
        scene = random_middle(rng)
        shape = scene.shapes[0]
        reach = max(0.0, SIZE_PX / 2 - 3 - shape.radius)
        x, y = (SIZE_PX / 2 + rng.uniform(-reach, reach) for _ in range(2))
        return replace(scene, shapes=(replace(shape, x=x, y=y),))
    return random_pair(rng) if share < SINGLE_SHARE + PAIR_SHARE else random_landscape(rng)


def wordings(scene: Scene, rng: Random) -> list[str]:
    """Six prompts for one scene: most leave its forms to the edges, one names another form, one is empty."""
    if isinstance(scene, Landscape):
        short = replace(scene, house=None, sailboat=None, peaks=(), trees=(), sky_body=None)
        return [*(describe(short, rng) for _ in range(3)), describe(scene, rng), describe(scene, rng), ""]
    return [
        *(_without_kinds(scene, rng) for _ in range(3)),
        describe(scene, rng),
        _with_kinds(scene, [rng.choice(SHAPES) for _ in scene.shapes]),
        "",
    ]


def _without_kinds(scene: ShapesScene, rng: Random) -> str:
    return _with_kinds(scene, [rng.choice((WORD, WORD, "thing")) for _ in scene.shapes])


def _with_kinds(scene: ShapesScene, kinds: Sequence[str]) -> str:
    things = [plain_caption("", shape.color, kind, "x") for shape, kind in zip(scene.shapes, kinds, strict=True)]
    joined = " and ".join(thing.partition(" on ")[0] for thing in things)
    return f"{joined} on a {scene.background} background"


def edges_of(image: Image.Image, fine: bool = False) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """The edges [128, 128] of an RGB image of that size; `fine`: found at four times the size."""
    if not fine:
        return canny(np.asarray(image), LOW, HIGH) > 0
    large = image.resize((4 * SIZE_PX, 4 * SIZE_PX), Image.Resampling.BICUBIC)
    cells = canny(np.asarray(large), LOW, HIGH).reshape(SIZE_PX, 4, SIZE_PX, 4)
    found: np.ndarray[Any, np.dtype[np.bool_]] = cells.max(axis=(1, 3)) > 0
    return found


def shard_path(folder: Path, number: int) -> Path:
    return folder / f"edges-{number:05d}.safetensors"


@dataclass(frozen=True)
class DrawnShard:
    """Images [n, 3, 128, 128] in -1 to 1, their edges [n, 128, 16] uint8 (one bit per pixel) and wordings."""

    images: Tensor
    edges: Tensor
    texts: list[list[str]]


def draw_shard(number: int) -> DrawnShard:
    """The images of shard `number` with their edges: what costs time of a CPU."""
    first = FIRST_SEED + number * SHARD_IMAGES
    scenes = [scene_of_seed(seed) for seed in range(first, first + SHARD_IMAGES)]
    images = [draw(scene) for scene in scenes]
    rng = Random(first)
    edges = np.stack([np.packbits(edges_of(image, rng.random() < FINE_SHARE), axis=1) for image in images])
    return DrawnShard(to_tensor(images), torch.from_numpy(edges), [wordings(scene, rng) for scene in scenes])


@torch.no_grad()
def encode_shard(
    vae: Any, folder: Path, number: int, *, batch: int = 8, device: str = "cpu", drawn: DrawnShard | None = None
) -> Path:
    """Encode and write shard `number`, atomically; it is drawn, unless it has been."""
    drawn = draw_shard(number) if drawn is None else drawn
    latents = [
        vae.encode(part.to(device)).latent_dist.mean.to("cpu", torch.float16)
        for part in torch.split(drawn.images, batch)
    ]
    path = shard_path(folder, number)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    tensors = {"latents": torch.cat(latents).contiguous(), "edges": drawn.edges}
    save_file(tensors, unfinished, metadata={"captions": json.dumps(drawn.texts)})
    unfinished.replace(path)
    return path


class Lessons:
    """The shards of a folder in memory; `refresh` picks up new ones."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: set[str] = set()
        self._latents: list[Tensor] = []
        self._edges: list[Tensor] = []
        self._captions: list[list[str]] = []

    def __len__(self) -> int:
        return len(self._captions)

    def refresh(self) -> None:
        for path in sorted(self._folder.glob("edges-*.safetensors")):
            if path.name not in self._known:
                self._known.add(path.name)
                with safe_open(path, framework="pt") as file:
                    self._latents.extend(file.get_tensor("latents").unbind(0))
                    self._edges.extend(file.get_tensor("edges").unbind(0))
                    self._captions.extend(json.loads(file.metadata()["captions"]))

    def batch(self, size: int, rng: Random) -> tuple[Tensor, Tensor, list[str]]:
        """Latents [size, 4, 16, 16] fp32, edges [size, 1, 128, 128] fp32 of 0 and 1, and a wording each."""
        picks = rng.choices(range(len(self)), k=size)
        edges = np.unpackbits(torch.stack([self._edges[pick] for pick in picks]).numpy(), axis=2)
        captions = [rng.choice(self._captions[pick]) for pick in picks]
        latents = torch.stack([self._latents[pick] for pick in picks]).float()
        return latents, torch.from_numpy(edges).float()[:, None], captions
