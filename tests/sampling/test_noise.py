import pytest
import torch

from modules.sampling.noise import GaussianNoise, ImageNoise, NoiseRequest, NoiseSource, slerp
from modules.sampling.philox import PhiloxGenerator
from tests.sampling.recordings import parts

SEEDS = (0, 1, 42, 4294967295, 123456789012)
REQUESTS = {
    "plain": {"shape": (4, 12, 10), "seeds": (1, 2)},
    "subseed": {"shape": (4, 12, 10), "seeds": (1, 2), "subseeds": (7, 8), "subseed_strength": 0.35},
    "resize": {"shape": (4, 12, 10), "seeds": (5,), "seed_resize_from": (8, 16)},
    "ensd": {"shape": (4, 8, 8), "seeds": (3,), "eta_noise_seed_delta": 31337},
}


@pytest.mark.parametrize("seed", SEEDS)
def test_philox_draws_what_cuda_draws(seed: int) -> None:
    generator = PhiloxGenerator(seed)
    for which in ("first", "second"):
        recorded = parts()[f"philox/{seed}/{which}4x8x8"]
        assert torch.equal(torch.from_numpy(generator.randn((4, 8, 8))), recorded)


@pytest.mark.parametrize("source", ["CPU", "NV"])
@pytest.mark.parametrize("name", list(REQUESTS))
def test_image_noise_is_the_recorded_one(source: str, name: str) -> None:
    noise = ImageNoise(NoiseRequest(source=NoiseSource(source), **REQUESTS[name]))  # type: ignore[arg-type]
    assert torch.equal(noise.next(), parts()[f"imagerng/{source}/{name}/first"])
    assert torch.equal(noise.next(), parts()[f"imagerng/{source}/{name}/second"])


@pytest.mark.parametrize("source", list(NoiseSource))
def test_an_image_has_the_same_noise_alone_and_in_a_batch(source: NoiseSource) -> None:
    def noise(*seeds: int) -> ImageNoise:
        variation = {"subseeds": seeds, "subseed_strength": 0.2, "eta_noise_seed_delta": 3}
        return ImageNoise(NoiseRequest(shape=(4, 6, 5), seeds=seeds, source=source, **variation))  # type: ignore[arg-type]

    batch, alone = noise(11, 12, 13), noise(12)
    for _ in range(3):
        assert torch.equal(batch.next()[1:2], alone.next())


def test_global_random_state_is_left_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    ImageNoise(NoiseRequest(shape=(4, 8, 8), seeds=(1,))).next()
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_left_out_draw_nothing() -> None:
    request = NoiseRequest(shape=(4, 4, 4), seeds=(1, 2))
    some, all_ = ImageNoise(request), ImageNoise(request)
    some.first(), all_.first()
    step = GaussianNoise(some)
    masked = step(2.0, 1.0, rows=[True, False])
    assert torch.equal(masked[1], torch.zeros(4, 4, 4))
    second = all_.next()
    assert torch.equal(masked[0], second[0])
    assert torch.equal(step(1.0, 0.5)[1], second[1])


def test_slerp_mixes_linearly_where_noises_are_parallel() -> None:
    noise = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(slerp(0.3, noise, noise * 1.0), noise)


def test_variation_of_strength_one_is_the_other_noise() -> None:
    base = {"shape": (4, 8, 8), "seeds": (1,)}
    mixed = ImageNoise(NoiseRequest(**base, subseeds=(9,), subseed_strength=1.0)).first()  # type: ignore[arg-type]
    other = ImageNoise(NoiseRequest(shape=(4, 8, 8), seeds=(9,))).first()
    torch.testing.assert_close(mixed, other, rtol=1e-4, atol=1e-5)
