"""Brownian-tree noise for the SDE samplers: one seeded path an image, the same whichever sigmas are asked for.

A virtual Brownian tree (Li et al. 2020, arXiv:2001.01328; Gaines and Lyons 1997) halves the interval of sigmas until
it meets the point asked for, to a resolution of 1e-6, and gives each halving noise of its own seed. The seeds, the
rounding and so the paths are those of `torchsde.BrownianTree` 0.2.6; this one
mixes fewer words for each seed and takes the random numbers from a noise source that is passed in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from modules.sampling.noise import NoiseSource

_DIGITS = 6
_POOL_SIZE = 24
_RECENT_POINTS = 4
_MASK = 0xFFFFFFFF

# Constants of numpy's SeedSequence (M. E. O'Neill, "Developing a seed_seq alternative", 2015).
_INIT_A, _MULT_A = 0x43B0D7E5, 0x931E8875
_INIT_B, _MULT_B = 0x8B51F9DD, 0x58F38DED
_MIX_L, _MIX_R = 0xCA01F9DD, 0x4973F715


class NodeSeeds:
    """Seeds of the tree's nodes: the first word that `SeedSequence(entropy, spawn_key=(path, depth), pool_size=24)`
    generates, without mixing the part of the pool that all nodes share again for each of them."""

    def __init__(self, entropy: int) -> None:
        root = np.random.SeedSequence(entropy, pool_size=_POOL_SIZE)
        self.root = int(root.generate_state(1)[0])
        self._pool_word = int(root.pool[0])
        # The spawn key is mixed in after the pool's 24 words and all 24 * 23 pairs of them.
        hashes_before = _POOL_SIZE * _POOL_SIZE
        self._path_hash = (_INIT_A * pow(_MULT_A, hashes_before, 1 << 32)) & _MASK
        self._depth_hash = (_INIT_A * pow(_MULT_A, hashes_before + _POOL_SIZE, 1 << 32)) & _MASK

    def node(self, path: int, depth: int) -> int:
        """The seed of the node reached by the bits of `path` (left 0, right 1) at `depth`; the root is (0, 0)."""
        word = _mix(self._pool_word, _hash(path, self._path_hash, _MULT_A))
        word = _mix(word, _hash(depth, self._depth_hash, _MULT_A))
        return _hash(word, _INIT_B, _MULT_B)


def _hash(word: int, constant: int, multiplier: int) -> int:
    """One hashing of a word: xor with the constant, multiply with the next one, fold."""
    value = ((word ^ constant) * ((constant * multiplier) & _MASK)) & _MASK
    return value ^ (value >> 16)


def _mix(x: int, y: int) -> int:
    """Mix two words of the pool."""
    value = (_MIX_L * x - _MIX_R * y) & _MASK
    return value ^ (value >> 16)


class BrownianPath:
    """One image's Brownian motion over sigma in [start, end], with value 0 at `start`.

    Values are fp64 [C, H, W] on the CPU (fp64 because differences of near points are asked for). A point needs the
    noise of about 24 halvings, which is where the time goes; the ones it shares with the last point are kept.
    """

    def __init__(
        self, start: float, end: float, shape: tuple[int, ...], entropy: int, source: NoiseSource, device: torch.device
    ) -> None:
        self._start, self._end = round(start, _DIGITS), round(end, _DIGITS)
        self._shape, self._source, self._device = shape, source, device
        self._seeds = NodeSeeds(entropy)
        self._end_value = self._randn(self._seeds.root).double() * math.sqrt(end - start)
        self._last_noises: dict[tuple[int, int], Tensor] = {}
        self._recent: dict[float, Tensor] = {}

    def value(self, sigma: float) -> Tensor:
        """The path at `sigma`, which is clamped to the path's range."""
        point = round(sigma, _DIGITS)
        if point <= self._start:
            return torch.zeros_like(self._end_value)
        if point >= self._end:
            return self._end_value
        if point not in self._recent:
            if len(self._recent) == _RECENT_POINTS:
                self._recent.pop(next(iter(self._recent)))
            self._recent[point] = self._descend(point)
        return self._recent[point]

    def _descend(self, point: float) -> Tensor:
        """Halve towards `point` and weigh the noise of every halving by its share in the value there."""
        low, high, path, depth = self._start, self._end, 0, 0
        nodes: list[tuple[int, int]] = []
        halvings: list[tuple[float, float, bool]] = []  # (share of the high end, deviation, went right afterwards)
        while True:
            middle = round(0.5 * (high + low), _DIGITS)
            share = (middle - low) / (high - low)
            nodes.append((path, depth))
            halvings.append((share, math.sqrt(share * (high - middle)), point > middle))
            if point == middle:
                break
            low, high = (middle, high) if point > middle else (low, middle)
            path, depth = 2 * path + (point > middle), depth + 1
        self._last_noises = {node: self._noise(*node) for node in nodes}
        weights, end_weight = _weights(halvings)
        value = self._end_value * end_weight
        for noise, weight in zip(self._last_noises.values(), weights, strict=True):
            value.add_(noise, alpha=weight)
        return value

    def _noise(self, path: int, depth: int) -> Tensor:
        """The noise of a node, kept from the last point where that passed it too."""
        kept = self._last_noises.get((path, depth))
        return self._randn(self._seeds.node(path, depth)) if kept is None else kept

    def _randn(self, seed: int) -> Tensor:
        return self._source.generator(seed, self._device).randn(self._shape).cpu()


def _weights(halvings: list[tuple[float, float, bool]]) -> tuple[list[float], float]:
    """Weights of the halvings' noises and of the path's end in the value at the last middle.

    Each middle is `(1 - f) * low + f * high + deviation * noise`; going up from the last, the weight on a middle is
    passed on to the two ends it was made from.
    """
    weights = [0.0] * len(halvings)
    on_low = on_high = 0.0
    for index in range(len(halvings) - 1, -1, -1):
        share, deviation, went_right = halvings[index]
        is_last = index == len(halvings) - 1
        on_middle = 1.0 if is_last else (on_low if went_right else on_high)
        if not is_last and went_right:
            on_low = 0.0
        elif not is_last:
            on_high = 0.0
        weights[index] = on_middle * deviation
        on_low += on_middle * (1 - share)
        on_high += on_middle * share
    return weights, on_high


class BrownianNoise:
    """Step noise from one Brownian path an image, seeded by the image's seed, so independent of batch position.

    `sigmas` give the range of the paths: the whole schedule, also where img2img starts in the middle. With
    `per_image` False the batch is one path, with the seed that k-diffusion draws where it is given none: the first
    draw of PyTorch's generator, which the last image's noise has just seeded (the reference UI's option against batch
    determinism). Noise is [B, C, H, W] fp32 on `device`, of unit variance.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        seeds: Sequence[int],
        sigmas: Tensor,
        source: NoiseSource = NoiseSource.CPU,
        device: torch.device | None = None,
        per_image: bool = True,
    ) -> None:
        start, end = sigmas[sigmas > 0].min().item(), sigmas.max().item()
        self._device = device or torch.device("cpu")
        self._batch = len(seeds)
        path_shape: tuple[int, ...] = shape if per_image else (len(seeds), *shape)
        self._paths = [
            BrownianPath(start, end, path_shape, seed, source, self._device)
            for seed in (seeds if per_image else [drawn_seed(seeds[-1])])
        ]
        self._per_image = per_image

    def __call__(self, sigma_from: float, sigma_to: float, rows: Sequence[bool] | None = None) -> Tensor:
        """The paths' increments between two sigmas over the root of their distance; zeros outside `rows`."""
        scale = 1 / math.sqrt(abs(sigma_to - sigma_from))
        steps = [(path.value(sigma_to) - path.value(sigma_from)) * scale for path in self._paths]
        noise = (torch.stack(steps) if self._per_image else steps[0]).float()
        if rows is not None:
            noise *= torch.tensor(rows, dtype=noise.dtype).reshape(-1, *[1] * (noise.ndim - 1))
        return noise.to(self._device)


def drawn_seed(seed: int) -> int:
    """The first seed in [0, 2^63 - 1) that a generator of PyTorch on the CPU draws after it was seeded with `seed`."""
    return int(torch.randint(0, 2**63 - 1, (), generator=torch.Generator().manual_seed(seed)))
