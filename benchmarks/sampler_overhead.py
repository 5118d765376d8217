"""What each sampler costs alongside the model: milliseconds per step with a model that does nothing, 64x64 latents.

Run `python -m benchmarks.sampler_overhead`; it prints a table and writes `results/sampler-overhead.json`. The time
is the CPU's on one thread, for the
whole sampling run (schedule, noise, Brownian trees) over the steps asked for.
"""

from __future__ import annotations

import json
import platform
import statistics
import time
from pathlib import Path

import torch
from torch import Tensor

from modules.sampling.catalog import SAMPLERS, SCHEDULES, SamplerSpec
from modules.sampling.denoisers import denoise_for
from modules.sampling.discrete import DiscreteSchedule, scaled_linear_alphas_cumprod
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import txt2img_run

STEPS = 20
REPEATS = 25
GOAL_MS = 0.5
RESULT = Path(__file__).parent / "results" / "sampler-overhead.json"


class IdleGuidance:
    """A `GuidedDenoise` around a model that predicts no noise at all; counts its calls and their time."""

    def __init__(self, spec: SamplerSpec, schedule: DiscreteSchedule) -> None:
        self._denoise = denoise_for(spec, lambda x, t: torch.zeros_like(x), schedule)
        self._last = torch.empty(0)
        self.calls = 0

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
        self.calls += 1
        self._last = self._denoise(x, sigma)
        return self._last

    def uncond_denoised(self) -> Tensor:
        return self._last


def measure(spec: SamplerSpec, schedule: DiscreteSchedule) -> dict[str, float | int]:
    """Milliseconds a step (of several walks after one to warm up: the best is what the code takes, the median also
    what else the machine was doing) and the model calls."""
    times = []
    calls = 0
    for seed in range(REPEATS + 1):
        noise = ImageNoise(NoiseRequest(shape=(4, 64, 64), seeds=(seed,)))
        first = noise.first()
        start = time.process_time()
        plan = txt2img_run(spec, SCHEDULES.get("automatic"), STEPS, schedule)
        guidance = IdleGuidance(spec, schedule)
        plan.run(guidance, plan.start(first), plan.step_noise(noise), lambda info: None)
        times.append((time.process_time() - start) * 1000)
        calls = guidance.calls
    # DPM adaptive takes as many steps as it likes: three calls each.
    steps = calls // 3 if spec.name == "DPM adaptive" else STEPS
    best, median = min(times[1:]) / steps, statistics.median(times[1:]) / steps
    return {"best_ms_per_step": round(best, 4), "median_ms_per_step": round(median, 4), "steps": steps, "calls": calls}


def main() -> None:
    """Measure every sampler, print the table, write the JSON."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    schedule = DiscreteSchedule(scaled_linear_alphas_cumprod())
    results = {name: measure(spec, schedule) for name, spec in SAMPLERS.items()}
    print(f"{'sampler':<20}{'best ms':>9}{'median':>9}{'steps':>7}{'calls':>7}   goal <= {GOAL_MS} ms")
    for name, row in results.items():
        verdict = "ok" if row["best_ms_per_step"] <= GOAL_MS else "over"
        times = f"{row['best_ms_per_step']:>9.3f}{row['median_ms_per_step']:>9.3f}"
        print(f"{name:<20}{times}{row['steps']:>7}{row['calls']:>7}   {verdict}")
    setting = {"latent": [1, 4, 64, 64], "steps": STEPS, "threads": 1, "torch": torch.__version__}
    RESULT.parent.mkdir(exist_ok=True)
    document = {"setting": setting, "machine": platform.machine(), "goal_ms": GOAL_MS, "samplers": results}
    RESULT.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
