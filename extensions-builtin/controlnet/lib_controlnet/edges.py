"""Edges after Canny 1986 (A Computational Approach to Edge Detection), and keeping lines thin when a map is resized."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lib_controlnet.pixels import Pixels

TAN_22_5 = 13573  # in units of 1 / 32768
SHIFT = 15


def canny(image: Pixels, low: float, high: float) -> Pixels:
    """White edges [H,W] of [H,W,3]: Sobel gradients of 3x3 in each channel, where the channel with the largest counts,
    their sum of absolute values as strength; what is above `low` and connected with what is above `high`."""
    from scipy import ndimage

    low, high = (int(np.floor(value)) for value in sorted((low, high)))
    padded = np.pad(image.astype(np.int64), ((1, 1), (1, 1), (0, 0)), mode="edge")
    smooth_y = padded[:-2] + 2 * padded[1:-1] + padded[2:]
    smooth_x = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    dx, dy = smooth_y[:, 2:] - smooth_y[:, :-2], smooth_x[2:] - smooth_x[:-2]
    channel = np.argmax(np.abs(dx) + np.abs(dy), axis=2)[:, :, None]
    dx, dy = (np.take_along_axis(each, channel, axis=2)[:, :, 0] for each in (dx, dy))
    strength = np.abs(dx) + np.abs(dy)
    is_edge = _is_maximum(strength, dx, dy) & (strength > low)
    labels, _ = ndimage.label(is_edge, structure=np.ones((3, 3)))
    strong = np.unique(labels[is_edge & (strength > high)])
    return np.where(np.isin(labels, strong) & is_edge, 255, 0).astype(np.uint8)


def _is_maximum(strength: npt.NDArray[Any], dx: npt.NDArray[Any], dy: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Whether no neighbour along the gradient is stronger; of equal ones the first counts."""
    there = np.pad(strength, 1)
    height, width = strength.shape

    def at(down: int, right: int) -> npt.NDArray[Any]:
        return there[1 + down : 1 + down + height, 1 + right : 1 + right + width]

    x, y = np.abs(dx), np.abs(dy) << SHIFT
    flat = x * TAN_22_5
    steep = flat + (x << (SHIFT + 1))
    horizontal = (strength > at(0, -1)) & (strength >= at(0, 1))
    vertical = (strength > at(-1, 0)) & (strength >= at(1, 0))
    falling = (strength > at(-1, -1)) & (strength > at(1, 1))
    rising = (strength > at(-1, 1)) & (strength > at(1, -1))
    diagonal = np.where((dx ^ dy) < 0, rising, falling)
    found: npt.NDArray[Any] = np.where(y < flat, horizontal, np.where(y > steep, vertical, diagonal))
    return found


def line_maxima(image: Pixels) -> Pixels:
    """[H,W] with every pixel black that is below a neighbour in each of the four directions through it."""
    from scipy import ndimage

    lines = [np.zeros((3, 3), bool) for _ in range(4)]
    lines[0][1, :] = True
    lines[1][:, 1] = True
    lines[2] = np.eye(3, dtype=bool)
    lines[3] = np.fliplr(np.eye(3, dtype=bool))
    kept = np.zeros_like(image)
    for line in lines:
        highest = ndimage.grey_dilation(image, footprint=line, mode="constant", cval=0)
        kept = np.where(highest == image, image, kept)
    return kept


THINNING = (
    np.array([[-1, -1, -1], [0, 1, 0], [1, 1, 1]]),
    np.array([[0, -1, -1], [1, 1, -1], [0, 1, 0]]),
)
PRUNING = (
    np.array([[-1, -1, -1], [-1, 1, -1], [0, 0, -1]]),
    np.array([[-1, -1, -1], [-1, 1, -1], [-1, 0, 0]]),
)
"""Hit-or-miss patterns: 1 is white, -1 black, 0 either; each in its four rotations."""
MAX_ROUNDS = 32


def thinned(image: Pixels, prune: bool) -> Pixels:
    """Lines [H,W] of white on black made one pixel wide (Golay's alphabet, L); with `prune` their ends lose one."""
    result = image.copy()
    for _ in range(MAX_ROUNDS):
        if not _hit(result, THINNING):
            break
    if prune:
        _hit(result, PRUNING)
    return result


def _hit(image: Pixels, patterns: tuple[npt.NDArray[Any], ...]) -> bool:
    """Blacken what a pattern hits, in place, one pattern after the other; whether any did."""
    any_hit = False
    for turns in range(4):
        for pattern in patterns:
            found = _matches(image > 127, np.rot90(pattern, k=turns))
            if found.any():
                any_hit = True
                image[found] = 0
    return any_hit


def _matches(white: npt.NDArray[Any], pattern: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Match patterns; what lies outside of the image fits every one."""
    height, width = white.shape
    ones, zeros = np.pad(white, 1, constant_values=True), np.pad(~white, 1, constant_values=True)
    found = np.ones_like(white)
    for row in range(3):
        for column in range(3):
            there = {1: ones, -1: zeros}.get(int(pattern[row, column]))
            if there is not None:
                found &= there[row : row + height, column : column + width]
    return found


def otsu(image: Pixels) -> Pixels:
    """[H,W] in black and white, at the threshold with the largest variance between the two (Otsu 1979)."""
    counts = np.bincount(image.ravel(), minlength=256).astype(np.float64)
    share = counts / counts.sum()
    levels = np.arange(256)
    below, moment = np.cumsum(share), np.cumsum(share * levels)
    mean = moment[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        between = (mean * below - moment) ** 2 / (below * (1 - below))
    between = np.where((below > 1e-7) & (below < 1 - 1e-7), between, 0.0)
    return np.where(image > int(np.argmax(between)), 255, 0).astype(np.uint8)
