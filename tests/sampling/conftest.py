"""What the sampling tests share."""

from collections.abc import Iterator

import pytest
import torch

from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod
from tests.sampling.tiny_model import TinyModel, load_tiny_model


@pytest.fixture(scope="session")
def tiny_model() -> TinyModel:
    return load_tiny_model()


@pytest.fixture(scope="session")
def sd1() -> DiscreteSchedule:
    """The noise levels of Stable Diffusion 1."""
    return DiscreteSchedule(scaled_linear_alphas_cumprod())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """The recordings were made on one thread; sums come out in another order on several."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
