"""The Brownian tree against torchsde's, which is the oracle."""

import itertools
import math
import warnings

import numpy as np
import pytest
import torch

from modules.sampling.brownian import BrownianNoise, BrownianPath, NodeSeeds
from modules.sampling.noise import NoiseSource

SIGMAS = torch.tensor([14.614643, 7.3248825, 3.6712418, 1.8400, 0.9222, 0.1161, 0.0291675, 0.0])


@pytest.mark.parametrize("entropy", [0, 1234, 2**32 - 1, 2**32, 123456789012345])
def test_node_seeds_are_those_of_numpys_seed_sequence(entropy: int) -> None:
    seeds = NodeSeeds(entropy)
    for path, depth in [(0, 0), (0, 1), (1, 1), (5, 3), (2**23 - 1, 23)]:
        sequence = np.random.SeedSequence(entropy, spawn_key=(path, depth), pool_size=24)
        assert seeds.node(path, depth) == int(sequence.generate_state(4)[0])
    assert seeds.root == int(np.random.SeedSequence(entropy, pool_size=24).generate_state(3)[0])


def test_increments_are_torchsdes() -> None:
    import torchsde

    levels = SIGMAS[:-1]
    tree = torchsde.BrownianTree(t0=levels[-1], w0=torch.zeros(4, 3, 3), t1=levels[0], entropy=77)
    path = BrownianPath(levels[-1].item(), levels[0].item(), (4, 3, 3), 77, NoiseSource.CPU, torch.device("cpu"))
    for high, low in itertools.pairwise(levels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchsde rounds its own limits and then warns about them
            expected = tree(low, high)
        actual = path.value(high.item()) - path.value(low.item())
        torch.testing.assert_close(actual.float(), expected, rtol=0, atol=5e-6)


def _steps(seeds: tuple[int, ...], source: NoiseSource = NoiseSource.CPU) -> torch.Tensor:
    noise = BrownianNoise((4, 4, 4), seeds, SIGMAS, source)
    levels = SIGMAS[:-1].tolist()
    return torch.stack([noise(a, b) for a, b in itertools.pairwise(levels)], dim=1)


@pytest.mark.parametrize("source", [NoiseSource.CPU, NoiseSource.NV])
def test_an_image_has_the_same_path_alone_and_in_a_batch(source: NoiseSource) -> None:
    assert torch.equal(_steps((5, 6, 7), source)[1:2], _steps((6,), source))


def test_the_source_decides_the_draws() -> None:
    assert not torch.allclose(_steps((5,), NoiseSource.CPU), _steps((5,), NoiseSource.NV))


def test_the_path_does_not_depend_on_the_questions() -> None:
    fine, coarse = (BrownianNoise((4, 4, 4), (3,), SIGMAS) for _ in range(2))
    halves = fine(14.0, 5.0) * math.sqrt(9.0) + fine(5.0, 2.0) * math.sqrt(3.0)
    torch.testing.assert_close(halves, coarse(14.0, 2.0) * math.sqrt(12.0), rtol=0, atol=1e-5)


def test_noise_has_unit_variance() -> None:
    noise = BrownianNoise((4, 32, 32), (3,), SIGMAS)
    for pair in [(14.6, 10.0), (1.0, 0.9), (0.2, 0.1)]:
        assert noise(*pair).std().item() == pytest.approx(1, abs=0.05)


def test_one_path_for_a_batch_differs_between_its_images() -> None:
    noise = BrownianNoise((4, 4, 4), (3, 3), SIGMAS, per_image=False)(2.0, 1.0)
    assert noise.shape == (2, 4, 4, 4)
    assert not torch.allclose(noise[0], noise[1])


def test_one_path_for_a_batch_has_the_seed_that_pytorch_draws_after_the_last_images_noise() -> None:
    """As k-diffusion without a seed: `torch.randint(0, 2 ** 63 - 1, [])` of the generator that made the last noise."""
    import torchsde

    with torch.random.fork_rng():
        torch.manual_seed(6)
        entropy = torch.randint(0, 2**63 - 1, []).item()
    levels = SIGMAS[:-1]
    tree = torchsde.BrownianTree(t0=levels[-1], w0=torch.zeros(2, 4, 3, 3), t1=levels[0], entropy=entropy)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = tree(levels[2], levels[1]) / (levels[1] - levels[2]).sqrt()
    noise = BrownianNoise((4, 3, 3), (5, 6), SIGMAS, per_image=False)(levels[1].item(), levels[2].item())
    torch.testing.assert_close(noise, -expected, rtol=0, atol=5e-6)
