"""What weights in 8 bits cost and save on a GPU, alongside fp16: SD1 at 512 px and SDXL at 1024 px, batch 1.

Measured by `python -m benchmarks.fp8 step` where there is a CUDA device.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.full_size import load_through_program, write_full_size_checkpoint
from modules.memory.streaming.groups import Level
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.stream_layout import StreamLayout

STORAGE = "fp8_e4m3fn"
STEPS = 20  # of each of a pair
STEP_GOAL, PEAK_GOAL = 1.03, 0.55
SIZES = {"SD1 at 512 px": ("sd1", 64, 768, None), "SDXL at 1024 px": ("sdxl", 128, 2048, 2816)}
PEAK = "peak VRAM, SDXL at 1024 px, medvram, fp8 / fp16"
NOT_MEASURED = "not measured"


def rows(sd1: Path) -> Mapping[str, tuple[float | str, float]]:
    """The rows of the table with their goals; `sd1` is a full-size checkpoint, SDXL's is made next to it."""
    steps = {family: f"step on a CUDA card, {family}, fp8 / fp16" for family in SIZES}
    if not torch.cuda.is_available():
        return dict.fromkeys(steps.values(), (NOT_MEASURED, STEP_GOAL)) | {PEAK: (NOT_MEASURED, PEAK_GOAL)}
    device = torch.device("cuda")
    sdxl = sd1.with_name("xl.safetensors")
    write_full_size_checkpoint(sdxl, "sdxl")
    found: dict[str, tuple[float | str, float]] = {}
    for family, what in steps.items():
        found[what] = step_ratio(sd1 if SIZES[family][0] == "sd1" else sdxl, family, device), STEP_GOAL
    found[PEAK] = peak_of_image(sdxl, STORAGE, device) / peak_of_image(sdxl, None, device), PEAK_GOAL
    return found


def stepper(model: LoadedModel, family: str, device: torch.device, dtype: torch.dtype) -> Callable[[], Tensor]:
    """One evaluation for one image with guidance, of random inputs."""
    _, side, width, vector = SIZES[family]
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(2, *shape, generator=generator).to(device, dtype)

    context = DenoiserContext(noise(77, width), None if vector is None else noise(vector))
    x, t = noise(4, side, side), torch.full((2,), 500.0, device=device)
    return lambda: model.predict(x, t, context)


@torch.inference_mode()
def step_ratio(path: Path, family: str, device: torch.device) -> float:
    """Time of a step in fp8 / in fp16, by the card's own clock; they take turns."""
    models = [load_through_program(path, storage, torch.float16, device) for storage in (STORAGE, None)]
    steps = [stepper(model, family, device, torch.float16) for model in models]
    best = [float("inf")] * 2
    for turn in range(STEPS + 3):
        for index, step in enumerate(steps):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            began.record()
            step()
            ended.record()
            torch.cuda.synchronize(device)
            if turn >= 3:
                best[index] = min(best[index], began.elapsed_time(ended))
    return best[0] / best[1]


@torch.inference_mode()
def peak_of_image(path: Path, storage: str | None, device: torch.device) -> int:
    """Most bytes allocated on the card by steps and decoding, where the model's parts take turns on it."""
    torch.cuda.empty_cache()
    streaming = StreamLayout(level=Level.COMPONENT, on_disk=False)
    model: Any = load_through_program(path, storage, torch.float16, device, streaming)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    latent = stepper(model, "SDXL at 1024 px", device, torch.float16)()[:1]
    model.decode(latent.float())
    return torch.cuda.max_memory_allocated(device) - before
