"""UniPC's weights against the equation that defines them."""

import numpy as np
import pytest

from modules.sampling.unipc import Grid, bh_weights


@pytest.mark.parametrize("variant", ["bh1", "bh2"])
@pytest.mark.parametrize("with_next", [True, False])
@pytest.mark.parametrize("earlier", [[-0.9], [-0.9, -2.1], [-0.5, -1.7, -2.2, -4.0], [-0.1, -0.2]])
def test_weights_solve_the_order_conditions(variant: str, with_next: bool, earlier: list[float]) -> None:
    """Equation 11 of the paper, its matrix written out and given to LAPACK."""
    h = 0.7
    weights = bh_weights(Grid(h, [*earlier, 1.0]), variant, with_next)
    nodes = [*earlier, 1.0] if with_next else earlier
    if len(nodes) == 1:
        assert weights == [0.5 * (-h if variant == "bh1" else np.expm1(-h))]
        return
    phi, factorial, expected = np.expm1(-h), 1.0, []
    for k in range(1, len(nodes) + 1):
        phi = phi / -h - 1 / factorial
        factorial *= k + 1
        expected.append(phi * factorial / (k + 1))
    matrix = np.vander(nodes, increasing=True).T
    np.testing.assert_allclose(weights, np.linalg.solve(matrix, expected), rtol=1e-10)
