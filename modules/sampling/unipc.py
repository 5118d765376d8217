"""UniPC: a predictor and a corrector of the same form, one model call per step.

Zhao et al. 2023, arXiv:2302.04867, in the x0-predicting multistep form. Scaling as in `ddim`: with
`x = x_vp / alpha` the paper's alpha disappears and `lambda = -log(sigma)`. All numbers about the grid are fp64.
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from modules.sampling.ddim import to_variance_preserving
from modules.sampling.steps import Progress, denoise_at, move
from modules.sampling.types import Denoise, OnStep, SamplerOptions, StepNoise

Vector: TypeAlias = list[float]


@dataclass(frozen=True)
class Grid:
    """Where a step stands: its length `h` in lambda, and the earlier points in units of it, oldest not first.

    `ratios` holds (lambda_i - lambda_0) / h for the points before the current one (negative), then 1 for the next.
    """

    h: float
    ratios: Vector


def _phis(h: float, count: int) -> list[float]:
    """phi_1(-h) * (-h) = expm1(-h), then h_phi_2, h_phi_3 ... of the exponential integrator, `count` of them."""
    values = [math.expm1(-h)]
    factorial = 1.0
    for k in range(1, count):
        values.append(values[-1] / -h - 1 / factorial)
        factorial *= k + 1
    return values


def bh_weights(grid: Grid, variant: str, with_next: bool) -> Vector:
    """Weights of the differences D_m / r_m for B(h) = h ("bh1") or e^h - 1 ("bh2"): equation 11 of the paper.

    `with_next` includes the next point (the corrector). One unknown is taken as 1/2, as the paper advises.
    """
    ratios = grid.ratios if with_next else grid.ratios[:-1]
    order = len(ratios)
    scale = -grid.h if variant == "bh1" else math.expm1(-grid.h)
    if order == 1:
        return [0.5 * scale]
    phis = _phis(grid.h, order + 1)
    factorials = itertools.accumulate(range(1, order + 1), operator.mul)
    right = [phi * f / scale for phi, f in zip(phis[1:], factorials, strict=True)]
    return [weight * scale for weight in _solve_powers(ratios, right)]


def _solve_powers(nodes: Vector, right: Vector) -> Vector:
    """The w with `sum_j w_j * nodes_j**k = right_k` for every k: a Vandermonde system in n^2 steps.

    Bjoerck and Pereyra 1970, "Solution of Vandermonde Systems of Equations", section 3. For two or three nodes it is
    many times quicker than handing a matrix over to LAPACK, and no less exact.
    """
    found, count = list(right), len(nodes)
    for k in range(count - 1):
        for i in range(count - 1, k, -1):
            found[i] -= nodes[k] * found[i - 1]
    for k in range(count - 2, -1, -1):
        for i in range(k + 1, count):
            found[i] /= nodes[i] - nodes[i - k - 1]
        for i in range(k, count - 1):
            found[i] -= found[i + 1]
    return found


def varying_weights(grid: Grid, with_next: bool) -> Vector:
    """Weights of the differences D_m / r_m with coefficients that vary with h (appendix C): no choice of B(h).

    The corrector keeps two habits of the authors' published code, because images were made with it: the highest
    phi weighs the next point alone, and that point takes its factor from the row before the last.
    """
    ratios = grid.ratios if with_next else grid.ratios[:-1]
    order = len(ratios)
    if order == 0:
        return []
    phis = np.array(_phis(grid.h, order + 1)[1:])
    factorials = np.cumprod(np.arange(1, order + 1))
    matrix = np.vander(ratios, order, increasing=True) / factorials
    inverse = np.linalg.inv(matrix)
    if not with_next:
        return list(map(float, phis @ inverse))
    earlier = phis[:-1] @ inverse[:-1, :-1]
    return [*map(float, earlier), float(phis[-1] * inverse[max(order - 2, 0), -1])]


@dataclass(frozen=True)
class Point:
    """A point that was passed: its sigma and the x0 predicted there."""

    sigma: float
    denoised: Tensor


def _grid(points: list[Point], sigma_next: float, order: int) -> Grid:
    """The grid of a step of this order from `points` (the newest first) to `sigma_next`."""
    newest = points[0].sigma
    h = math.log(newest / sigma_next)
    ratios = [math.log(newest / point.sigma) / h for point in points[1:order]]
    return Grid(h, [*ratios, 1.0])


def _move(
    x: Tensor, points: list[Point], grid: Grid, sigma_next: float, weights: Vector, after: Tensor | None
) -> Tensor:
    """The step: first-order exponential part, and weighted differences to the newest prediction.

    `after` is the prediction at the next point, for the corrector.
    """
    newest = points[0]
    x = torch.lerp(newest.denoised, x, sigma_next / newest.sigma)
    others = [point.denoised for point in points[1 : len(grid.ratios)]]
    if after is not None:
        others.append(after)
    for other, ratio, weight in zip(others, grid.ratios, weights, strict=False):
        x = move(x, other - newest.denoised, -weight / ratio)
    return x


def sample_unipc(
    denoise: Denoise, x: Tensor, sigmas: Tensor, options: SamplerOptions, noise: StepNoise, on_step: OnStep
) -> Tensor:
    """Multistep UniPC (algorithms 5 and 6): predict, call the model, correct; the last step only predicts.

    The order grows from 1 to `uni_pc_order` and, with `uni_pc_lower_order_final`, falls again at the end.
    """
    levels = sigmas.tolist()
    steps = len(levels) - 1
    if steps < 1:
        return x
    progress = Progress(on_step, steps)
    top_order = min(options.uni_pc_order, steps)
    points = [Point(levels[0], denoise_at(denoise, x, levels[0]))]
    progress(levels[0], x, points[0].denoised)
    for step in range(1, steps + 1):
        order = min(step, top_order)
        if options.uni_pc_lower_order_final:
            order = min(order, steps + 1 - step) if step >= top_order else order
        sigma_next = levels[step]
        if sigma_next == 0:  # the limit of a step to where lambda is infinite
            return points[0].denoised
        grid = _grid(points, sigma_next, order)
        predicted = _move(x, points, grid, sigma_next, _weights(options, grid, with_next=False), None)
        if step == steps:
            return to_variance_preserving(predicted, sigma_next)
        denoised = denoise_at(denoise, predicted, sigma_next)
        progress(sigma_next, predicted, denoised)
        x = _move(x, points, grid, sigma_next, _weights(options, grid, with_next=True), denoised)
        points = [Point(sigma_next, denoised), *points][:top_order]
    return x


def _weights(options: SamplerOptions, grid: Grid, with_next: bool) -> Vector:
    """Weights of predictor or corrector in the chosen variant."""
    if options.uni_pc_variant == "vary_coeff":
        return varying_weights(grid, with_next)
    if not with_next and len(grid.ratios) == 1:
        return []
    return bh_weights(grid, options.uni_pc_variant, with_next)
