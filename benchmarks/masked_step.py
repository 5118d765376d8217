"""What a mask costs per step: inpainting next to img2img of the whole image, bundled model, 128x128 pixels, guidance.

Run `python -m benchmarks.masked_step`; it prints a table and writes `results/masked-step.json`. Steps with and without
a mask take turns, on one thread of the CPU and in its own time, so that other programs count less. The share of the
mask alone is measured as well, around a denoiser that does nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from benchmarks.report import print_table, write_result
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.run_pass import build_guidance, guided_denoiser, pass_levels
from modules.processing.pipeline.starts.image import ImageStart
from modules.processing.request.hooks import NO_HOOKS
from modules.processing.request.pass_settings import PassSettings
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.sampling.catalog import SAMPLERS
from modules.sampling.types import Denoise

ROOT = Path(__file__).parents[1]
SIDE, STEPS, PAIRS, IDLE_CALLS = 128, 20, 40, 500
GOAL = 1.02
SAMPLER_NAMES = ("Euler", "DDIM")  # the mask at the denoiser's output, and at its input


def request_with(sampler: str) -> GenerationRequest:
    """Half of the image is painted again."""
    half = Image.new("L", (SIDE, SIDE))
    half.paste(255, (0, 0, SIDE // 2, SIDE))
    image = Image.effect_noise((SIDE, SIDE), 90).convert("RGB")
    start = FromImage(images=(SourceImage.of(image),), mask=Mask(image=SourceImage.of(half)))
    return GenerationRequest(
        prompt="a circle", start=start, width=SIDE, height=SIDE, steps=STEPS, sampler=sampler, seed=1, subseed=0
    )


def seconds(call: Callable[[], Tensor]) -> float:
    """CPU time of one call."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measure(engine: Engine, sampler: str) -> dict[str, float]:
    """Milliseconds of a step without and with the mask, the median ratio of pairs, and what the mask adds to a denoiser
    that does nothing."""
    request = request_with(sampler)
    assert isinstance(request.start, FromImage)
    model = engine.model(None)
    settings = PassSettings(
        sampler=SAMPLERS.get(sampler),
        scheduler="Automatic",
        steps=STEPS,
        cfg_scale=7.0,
        settings=request.settings,
        schedule_table=model.family.noise.schedule_table,
        size_px=request.size_px,
    )
    start = ImageStart.of(request.start, request)
    latents = start.latents(model, SIDE, SIDE)
    texts = engine.conditioner(None).encode(["a circle"], ["blurry"], 1000, request.settings, request.size_px)
    denoiser = guided_denoiser(settings, model, pass_levels(model, settings), texts, None)
    guidance = build_guidance(settings, denoiser, lambda: None, True)
    masked = start.constrain(guidance, latents, NO_HOOKS, settings.sampler)
    x, sigma = latents + torch.randn_like(latents) * 5.0, torch.tensor([5.0])
    seconds(lambda: guidance(x, sigma)), seconds(lambda: masked(x, sigma))
    pairs = [(seconds(lambda: guidance(x, sigma)), seconds(lambda: masked(x, sigma))) for _ in range(PAIRS)]

    def idle(x: Tensor, sigma: Tensor) -> Tensor:
        return x

    constrained = start.constrain(idle, latents, NO_HOOKS, settings.sampler)
    without, added = (
        statistics.median(a for a, _ in pairs),
        _per_call(constrained, x, sigma) - _per_call(idle, x, sigma),
    )
    return {
        "step_ms": without * 1000,
        "masked_step_ms": statistics.median(b for _, b in pairs) * 1000,
        "ratio": statistics.median(b / a for a, b in pairs),
        "mask_alone_ms": added * 1000,
        "ratio_by_mask_alone": 1 + added / without,
    }


def _per_call(denoise: Denoise, x: Tensor, sigma: Tensor) -> float:
    return statistics.median(seconds(lambda: denoise(x, sigma)) for _ in range(IDLE_CALLS))


@torch.inference_mode()
def main() -> None:
    """Measure, print, write."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        catalogue = CheckpointCatalogue([ROOT / "models" / "Stable-diffusion"], HashCache(Path(folder) / "hashes.json"))
        machine = Machine(torch.device("cpu"), torch.float32, torch.float32)
        engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        found = {name: measure(engine, name) for name in SAMPLER_NAMES}
        engine.close()
    rows = [
        (name, *(f"{row[key]:.3f}" for key in ("step_ms", "masked_step_ms", "ratio", "ratio_by_mask_alone")))
        for name, row in found.items()
    ]
    print_table(("sampler", "ms per step", "with a mask", "ratio", "ratio by the mask alone"), rows)
    write_result("masked-step", {"goal": GOAL, **found})


if __name__ == "__main__":
    main()
