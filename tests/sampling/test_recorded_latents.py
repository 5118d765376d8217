"""Whole walks against the recordings: first noise to the bit, final latents to rounding errors.

The tiny network amplifies these: CPUs with AVX2 and with AVX512 give results that lie 1e-4 to 8e-4 apart, of latents
whose deviation is about 1. The tolerances are ten times what was measured so; another sampler is a tenth away.
"""

import pytest
import torch
import torch.nn.functional as F

from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import img2img_run, img2img_steps
from tests.sampling.recordings import cases, latents
from tests.sampling.tiny_model import TinyModel
from tests.sampling.walks import guided, no_report, resolve_names, sample_recorded

GROUPS = ("sampler", "scheduler", "churn", "eta", "unipc", "rng", "seed", "steps", "cfg")
TOLERANCE = 1e-2
SENSITIVE = {
    "sampler/dpm_adaptive/steps20-128x64": 1.5,
    "sampler/lcm/steps20-128x64": 1.0,
    **dict.fromkeys(("sampler/dpm2", "sampler/plms", "scheduler/beta/heun", "scheduler/beta/lms"), 2e-2),
    **dict.fromkeys(("scheduler/beta/dpmpp_2m", "scheduler/beta/lcm"), 5e-2),
    "hires/plms": 0.2,
}
HIRES = ("hires/latent", "hires/resize-x-only", "hires/hr-sampler", "hires/sde", "hires/unipc", "hires/plms")


@pytest.mark.parametrize("case", [name for name in cases() if name.split("/")[0] in GROUPS])
def test_a_recorded_request_gives_the_recorded_latents(case: str, tiny_model: TinyModel) -> None:
    payload = cases()[case]
    for iteration in range(payload.get("n_iter", 1)):
        first, out = sample_recorded(payload, tiny_model, iteration)
        assert torch.equal(first, latents()[f"{case}:noise{iteration}"])
        expected = latents()[f"{case}:latent{iteration}"]
        assert (out - expected).abs().max().item() < SENSITIVE.get(case, TOLERANCE)


@pytest.mark.parametrize("case", [name for name in HIRES if name in cases()])
def test_a_second_pass_over_upscaled_latents_gives_the_recorded_ones(case: str, tiny_model: TinyModel) -> None:
    payload = cases()[case]
    _, small = sample_recorded(payload, tiny_model)
    expected = latents()[f"{case}:latent0"]
    spec, schedule = resolve_names(
        payload.get("hr_sampler_name") or payload["sampler_name"], payload.get("hr_scheduler") or payload["scheduler"]
    )
    steps, t_enc = img2img_steps(payload["steps"], payload["denoising_strength"], fix_steps=True)
    plan = img2img_run(spec, schedule, steps, t_enc, tiny_model.schedule)
    height, width = expected.shape[-2:]
    noise = ImageNoise(NoiseRequest(shape=(4, height, width), seeds=(payload["seed"],)))
    x = plan.start_from(F.interpolate(small, size=(height, width), mode="bilinear", antialias=False), noise.first())
    with torch.no_grad():
        out = plan.run(guided(payload, plan, tiny_model), x, plan.step_noise(noise), no_report)
    assert (out - expected).abs().max().item() < SENSITIVE.get(case, TOLERANCE)
