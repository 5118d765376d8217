"""What holds for every sampler: batches, reports, interruption."""

import itertools

import pytest
import torch
from torch import Tensor

from modules.errors import InvalidValueError, NumericalError, Skipped
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.denoisers import Prediction, denoise_for
from modules.sampling.discrete import DiscreteSchedule
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import img2img_run, txt2img_run
from modules.sampling.restart import restart_run
from modules.sampling.types import SamplerOptions, StepInfo
from tests.cases import for_each
from tests.sampling.walks import LinearDenoise, no_report

ALL = list(SAMPLERS)
CHURN = SamplerOptions(s_churn=5, s_noise=1.01)


def _run(name: str, seeds: tuple[int, ...], sd1: DiscreteSchedule, steps: int = 6, offset: float = 0.0) -> Tensor:
    class Curved(LinearDenoise):
        """Not linear, so that images need different steps."""

        def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
            self._last = super().__call__(x, sigma) + torch.tanh(x + offset)
            return self._last

    plan = txt2img_run(SAMPLERS.get(name), SCHEDULES.get("automatic"), steps, sd1, options=CHURN)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=seeds))
    return plan.run(Curved(), plan.start(noise.first()), plan.step_noise(noise), no_report)


@pytest.mark.parametrize("name", ALL)
def test_an_image_is_the_same_alone_and_in_a_batch(name: str, sd1: DiscreteSchedule) -> None:
    torch.testing.assert_close(_run(name, (3, 4, 5), sd1)[1:2], _run(name, (4,), sd1), rtol=1e-5, atol=1e-5)


@for_each("name", ALL)
@for_each("steps", [1, 2, 3, 25])
def test_any_number_of_steps_runs(name: str, steps: int, sd1: DiscreteSchedule) -> None:
    assert torch.isfinite(_run(name, (1,), sd1, steps)).all()


@pytest.mark.parametrize("name", ALL)
def test_steps_are_counted_and_an_interruption_passes(name: str, sd1: DiscreteSchedule) -> None:
    seen: list[StepInfo] = []

    def on_step(info: StepInfo) -> None:
        seen.append(info)
        if len(seen) == 2:
            raise Skipped("enough")

    plan = txt2img_run(SAMPLERS.get(name), SCHEDULES.get("automatic"), 6, sd1)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=(1, 2)))
    with pytest.raises(Skipped):
        plan.run(LinearDenoise(), plan.start(noise.first()), plan.step_noise(noise), on_step)
    assert [info.index for info in seen] == [0, 1]
    assert seen[0].sigma > seen[1].sigma > 0
    assert seen[1].total >= 2
    assert seen[0].x.shape == seen[0].denoised.shape == (2, 4, 4, 4)


@for_each("name", ALL)
@for_each("t_enc", [0, 1, 2, 5])
def test_img2img_starts_anywhere(name: str, t_enc: int, sd1: DiscreteSchedule) -> None:
    plan = img2img_run(SAMPLERS.get(name), SCHEDULES.get("automatic"), 6, t_enc, sd1)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=(1,)))
    latent = torch.zeros(1, 4, 4, 4)
    out = plan.run(LinearDenoise(), plan.start_from(latent, noise.first()), plan.step_noise(noise), no_report)
    assert torch.isfinite(out).all()


def test_adaptive_refuses_nan(sd1: DiscreteSchedule) -> None:
    plan = txt2img_run(SAMPLERS.get("DPM adaptive"), SCHEDULES.get("automatic"), 6, sd1)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=(1,)))
    with pytest.raises(NumericalError, match="NaN or infinity"):
        plan.run(lambda x, sigma: x * torch.nan, plan.start(noise.first()), plan.step_noise(noise), no_report)


def test_cfgpp_wants_the_unconditional_prediction(sd1: DiscreteSchedule) -> None:
    plan = txt2img_run(SAMPLERS.get("DDIM CFG++"), SCHEDULES.get("automatic"), 6, sd1)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=(1,)))
    with pytest.raises(TypeError, match="uncond_denoised"):
        plan.run(lambda x, sigma: x, plan.start(noise.first()), plan.step_noise(noise), no_report)


@pytest.mark.parametrize("name", ["Euler", "DDIM", "LCM"])
def test_v_and_eps_predictions_of_the_same_model_agree(name: str, sd1: DiscreteSchedule) -> None:
    def eps(x: Tensor, t: Tensor) -> Tensor:
        return 0.5 * x

    def v(x: Tensor, t: Tensor) -> Tensor:
        alpha = sd1.alphas_cumprod[t.long()].reshape(-1, 1, 1, 1)
        return (eps(x, t) - (1 - alpha).sqrt() * x) / alpha.sqrt()

    x = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))
    sigma = sd1.sigmas[[999, 499]]
    results = [
        denoise_for(SAMPLERS.get(name), denoiser, sd1, prediction)(x * 5, sigma)
        for denoiser, prediction in ((eps, Prediction.EPS), (v, Prediction.V))
    ]
    torch.testing.assert_close(*results, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("steps", "times", "length"), [(19, 0, 19), (20, 1, 20), (36, 2, 36), (50, 2, 50)])
def test_restart_goes_back_up_from_20_steps_on(steps: int, times: int, length: int) -> None:
    sampling_run = restart_run([*torch.linspace(14.6, 0.03, steps).tolist(), 0.0])
    jumps = [after[0] - before[1] for before, after in itertools.pairwise(sampling_run) if after[0] > before[1] + 1e-6]
    assert len(jumps) == times
    assert len(sampling_run) == length
    assert all(1 < jump < 3 for jump in jumps)


@pytest.mark.parametrize("variant", ["bh1", "bh2", "vary_coeff"])
@pytest.mark.parametrize("skip_type", ["time_uniform", "time_quadratic", "logSNR"])
def test_unipc_variants_agree_about_the_image(variant: str, skip_type: str, sd1: DiscreteSchedule) -> None:
    options = SamplerOptions(uni_pc_variant=variant, uni_pc_skip_type=skip_type)
    plan = txt2img_run(SAMPLERS.get("UniPC"), SCHEDULES.get("automatic"), 40, sd1, options=options)
    noise = ImageNoise(NoiseRequest(shape=(4, 4, 4), seeds=(1,)))
    first = noise.first()
    out = plan.run(LinearDenoise(), plan.start(first), plan.step_noise(noise), no_report)
    torch.testing.assert_close(out, first * 0.7, rtol=0.05, atol=0.05)


def test_options_out_of_range_are_refused() -> None:
    with pytest.raises(InvalidValueError, match="choose one of bh1, bh2, vary_coeff"):
        SamplerOptions(uni_pc_variant="bh3")
    with pytest.raises(InvalidValueError, match="must be at least 1"):
        SamplerOptions(uni_pc_order=0)
    assert SamplerOptions(s_tmax=0).s_tmax == float("inf")
