"""The rotation of groups of inputs: its matrix, its inverse, and what it does to outliers."""

from hashlib import sha256

import pytest
import torch

from modules.memory.formats.rotation import can_rotate, hadamard, rotate


@pytest.mark.parametrize("order", [4, 16, 64, 256])
def test_the_matrix_is_regular_symmetric_and_its_own_inverse(order: int) -> None:
    matrix = hadamard(order)
    assert torch.equal(matrix, matrix.t())
    torch.testing.assert_close(matrix @ matrix, torch.eye(order))
    torch.testing.assert_close(matrix.sum(1), torch.ones(order))  # all rows alike: sqrt(order) / sqrt(order)
    assert torch.equal(matrix.abs(), torch.full((order, order), order**-0.5))


def test_the_order_of_rows_is_that_of_files() -> None:
    """Any order of rows is orthogonal: only the signs themselves tell one from another. Hash of comfy-kitchen's."""
    signs = (hadamard(256) * 16).to(torch.int8).view(torch.uint8).flatten().tolist()
    assert sha256(bytes(signs)).hexdigest() == "de75fba5a830070acfbfec9cf3fba8a70ef4bfc05e9e6e4dc1fa9bb994f3bc5d"


@pytest.mark.parametrize("order", [0, 2, 8, 12, 128])
def test_other_orders_are_refused(order: int) -> None:
    with pytest.raises(ValueError, match="4, 16, 64"):
        hadamard(order)


@pytest.mark.parametrize("group", [16, 256])
@pytest.mark.parametrize("shape", [(256,), (3, 512), (2, 5, 768), (0, 256)])
def test_groups_are_rotated_and_rotated_back(shape: tuple[int, ...], group: int) -> None:
    x = torch.randn(shape)
    once = rotate(x, group)
    expected = (x.reshape(-1, group) @ hadamard(group)).reshape(shape)
    torch.testing.assert_close(once, expected)
    torch.testing.assert_close(rotate(once, group), x)


def test_an_outlier_is_spread_over_its_group_only() -> None:
    x = torch.zeros(1, 512)
    x[0, 300] = 16.0
    rotated = rotate(x)
    assert torch.equal(rotated[0, :256], torch.zeros(256))
    torch.testing.assert_close(rotated[0, 256:].abs(), torch.ones(256))


def test_whole_groups_only() -> None:
    assert can_rotate(256) and can_rotate(1280)
    assert not can_rotate(0) and not can_rotate(320)
