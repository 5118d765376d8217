"""OFT, BOFT and DoRA on rows against dense matrices in float64, built from the papers' definitions.

OFT: Qiu et al. 2023, arXiv:2306.07280. BOFT: Liu et al. 2023, arXiv:2311.06243. DoRA: Liu et al. 2024,
arXiv:2402.09353.
"""

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from modules.adapters.adapter_file import read_adapter

Matrix = NDArray[np.float64]


def random(*shape: int, seed: int = 0) -> Matrix:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32).astype(np.float64)


def cayley(block: Matrix) -> Matrix:
    """The rotation (I + Q)(I - Q)^-1 of the skew-symmetric Q."""
    eye = np.eye(len(block))
    return (eye + block) @ np.linalg.inv(eye - block)


def block_diagonal(blocks: list[Matrix]) -> Matrix:
    size = len(blocks[0])
    whole = np.zeros((len(blocks) * size,) * 2)
    for number, block in enumerate(blocks):
        whole[number * size : (number + 1) * size, number * size : (number + 1) * size] = block
    return whole


def changed(weight: Matrix, **factors: Matrix) -> Matrix:
    adapter = read_adapter({name: torch.tensor(value, dtype=torch.float32) for name, value in factors.items()})
    assert adapter is not None
    delta = adapter.weight_delta(torch.tensor(weight, dtype=torch.float32))
    assert delta is not None
    found: Matrix = weight + delta.double().numpy()
    return found


@pytest.mark.parametrize("limit", [0.0, 1e-3, 100.0])
@pytest.mark.parametrize("shape", [(12, 6), (12, 3, 3, 3)])
def test_oft_multiplies_with_a_block_diagonal_rotation(shape: tuple[int, ...], limit: float) -> None:
    """kohya's trainer applies the transpose; alpha times the rows limits the norm of all blocks together."""
    weight, blocks = random(*shape), 0.1 * random(3, 4, 4, seed=1)
    skew = blocks - blocks.transpose(0, 2, 1)
    norm = np.sqrt((skew**2).sum())
    if limit:
        skew = skew * min(1.0, limit * shape[0] / norm)
    rotation = block_diagonal([cayley(block) for block in skew])
    assert np.allclose(rotation @ rotation.T, np.eye(12))
    expected = (rotation.T @ weight.reshape(12, -1)).reshape(shape)
    found = changed(weight, oft_blocks=blocks, alpha=np.array(limit))
    assert np.abs(found - expected).max() < 2e-5


def test_rotations_in_a_file_are_taken_as_they_are() -> None:
    weight, blocks = random(12, 6), 0.1 * random(3, 4, 4, seed=1)
    rotations = [cayley(block) for block in blocks - blocks.transpose(0, 2, 1)]
    rescale = 1 + 0.1 * random(12, 1, seed=2)
    expected = rescale * (block_diagonal(rotations).T @ weight)
    found = changed(weight, oft_diag=np.stack(rotations), rescale=rescale)
    assert np.abs(found - expected).max() < 2e-5


def butterfly_permutation(count: int, stride: int) -> Matrix:
    """P that brings together rows that stand `stride` apart: of each pair of runs, one of either in turn."""
    order = [
        start + half * stride + place
        for start in range(0, count, 2 * stride)
        for place in range(stride)
        for half in range(2)
    ]
    permutation = np.zeros((count, count))
    permutation[range(count), order] = 1
    return permutation


@pytest.mark.parametrize("size", [2, 4])
def test_boft_is_a_product_of_permuted_block_diagonal_rotations(size: int) -> None:
    """R = B_m ... B_1 with B_i = P_i^T diag(blocks) P_i, butterflies of growing stride."""
    count, levels = 16, 3
    weight, blocks = random(count, 5), 0.1 * random(levels, count // size, size, size, seed=3)
    skew = blocks - blocks.transpose(0, 1, 3, 2)
    whole = np.eye(count)
    for level in range(levels):
        permutation = butterfly_permutation(count, 2**level * size // 2)
        diagonal = block_diagonal([cayley(block) for block in skew[level]])
        whole = permutation.T @ diagonal @ permutation @ whole
    assert np.allclose(whole @ whole.T, np.eye(count))
    assert np.abs(changed(weight, oft_blocks=blocks) - whole @ weight).max() < 2e-5


@pytest.mark.parametrize("shape", [(6, 10), (6, 3, 3, 3)])
@pytest.mark.parametrize("on_rows", [True, False])
def test_dora_brings_rows_or_columns_to_their_magnitude(on_rows: bool, shape: tuple[int, ...]) -> None:
    weight, up, down = random(*shape), random(6, 2, seed=1), random(2, *shape[1:], seed=2)
    merged = weight + (up @ down.reshape(2, -1)).reshape(shape) * 0.5
    axes = tuple(range(1, len(shape))) if on_rows else tuple(axis for axis in range(len(shape)) if axis != 1)
    norm = np.sqrt((merged**2).sum(axis=axes, keepdims=True))
    magnitude = np.abs(random(*norm.shape, seed=3)) + 0.5
    up = up.reshape(6, 2, *(1,) * (len(shape) - 2))
    factors = {"lora_up.weight": up, "lora_down.weight": down, "alpha": np.array(1.0), "dora_scale": magnitude}
    assert np.abs(changed(weight, **factors) - merged / norm * magnitude).max() < 2e-5
