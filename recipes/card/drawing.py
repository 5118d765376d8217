"""Images of the pool, drawn by all cores while the card learns from those that are there."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recipes.control.lessons import DrawnShard, draw_shard
from recipes.scenes.images import draw
from recipes.scenes.layout import SIZE_PX
from recipes.scenes.pool import WORDINGS, scene_of_seed
from recipes.scenes.tokens import TOKENS, tokenize

PART_IMAGES = 256


class DrawnPool:
    """Images [n, 128, 128, 3] uint8 and the tokens of their wordings [n, 4, 77] int32, on the card as far as they are
    `ready`; image i is drawn from seed i. `close` stops the drawing."""

    def __init__(self, folder: Path, count: int, processes: int, device: torch.device) -> None:
        count -= count % PART_IMAGES
        folder.mkdir(parents=True, exist_ok=True)
        self._drawn = _open(folder, count)
        self.images = torch.empty((count, SIZE_PX, SIZE_PX, 3), dtype=torch.uint8, device=device)
        self.tokens = torch.empty((count, WORDINGS, TOKENS), dtype=torch.int32, device=device)
        self.ready = 0
        self._processes = get_context("spawn").Pool(processes, _quiet)
        parts = [(folder, count, first) for first in range(0, count, PART_IMAGES)]
        self._done = self._processes.imap(_draw_part, parts)
        self._failed: BaseException | None = None
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()

    def _collect(self) -> None:
        # On a stream of its own: on the usual one each part would wait for the training, and the training for it.
        cuda = self.images.is_cuda
        stream = torch.cuda.Stream(self.images.device) if cuda else None  # type: ignore[no-untyped-call]
        beside = torch.cuda.stream(stream) if cuda else nullcontext()
        try:
            with beside:
                for first in self._done:
                    part = slice(first, first + PART_IMAGES)
                    for whole, drawn in zip((self.images, self.tokens), self._drawn, strict=True):
                        whole[part].copy_(torch.from_numpy(drawn[part]))
                    self.ready = part.stop
        except BaseException as error:
            self._failed = error

    def wait(self, count: int) -> None:
        """Until so many images are ready, or all. Raises what the drawing raised."""
        while self.ready < min(count, len(self.images)):
            if self._failed is not None:
                raise self._failed
            self._thread.join(0.05)

    def draw_lessons(self, count: int) -> Iterator[tuple[int, DrawnShard]]:
        """Lessons of the control net, `count` shards with their numbers, drawn when the images are."""
        return enumerate(self._processes.imap(draw_shard, range(count)))

    def pick(self, count: int, generator: torch.Generator) -> Tensor:
        """The numbers [count] of random images."""
        return torch.randint(self.ready, (count,), generator=generator, device=generator.device)

    def pixels(self, picks: Tensor) -> Tensor:
        """Images [n, 3, 128, 128] in -1 to 1, channels last in memory."""
        return to_unit(self.images[picks])

    def wordings(self, picks: Tensor, generator: torch.Generator) -> Tensor:
        """Tokens [n, 77] int64 of a random wording of each."""
        chosen = torch.randint(WORDINGS, picks.shape, generator=generator, device=generator.device)
        return self.tokens[picks, chosen].long()

    def close(self) -> None:
        self._processes.terminate()


def to_unit(images: Tensor) -> Tensor:
    """[n, height, width, 3] uint8 as [n, 3, height, width] fp32 in -1 to 1."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


def _quiet() -> None:
    torch.set_num_threads(1)


def _open(folder: Path, count: int, mode: Any = "w+") -> tuple[np.memmap[Any, Any], np.memmap[Any, Any]]:
    """Files that all processes write into: sent through pipes, images would cost the training its time."""
    return (
        np.memmap(folder / "images.bin", np.uint8, mode, shape=(count, SIZE_PX, SIZE_PX, 3)),
        np.memmap(folder / "tokens.bin", np.int32, mode, shape=(count, WORDINGS, TOKENS)),
    )


def _draw_part(part: tuple[Path, int, int]) -> int:
    folder, count, first = part
    images, tokens = _open(folder, count, "r+")
    for seed in range(first, first + PART_IMAGES):
        scene, captions = scene_of_seed(seed)
        images[seed] = np.asarray(draw(scene))
        tokens[seed] = tokenize(captions).numpy()
    return first


def seeded(device: torch.device, seed: int) -> torch.Generator:
    """A generator on the device."""
    return torch.Generator(device).manual_seed(seed)
