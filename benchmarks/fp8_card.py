"""What weights in 8 bits cost and save on a GPU, alongside fp16: SD1 at 512 px and SDXL at 1024 px, batch 1.

Measured by `python -m benchmarks.fp8 step` where there is a CUDA device.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.full_size import load_through_program, write_full_size_checkpoint
from modules.memory.graphs import DenoiserGraphs, GraphMode
from modules.memory.streaming.groups import Level
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode
from modules.models.loading.stream_layout import StreamLayout
from modules.processing.engine.block_decoding import using_block_decoding

STORAGE = "fp8_e4m3fn"
WIDE, DECODED, ROWS, KEPT = "fp16", "fp8", "fp8 rows", "fp8, decoded weights kept"
GRAPH = ", CUDA graph"
WAYS: Mapping[str, tuple[str | None, ComputeMode | None]] = {
    WIDE: (None, None),
    DECODED: (STORAGE, None),
    ROWS: ("fp8_e4m3fn_row", None),
    KEPT: (STORAGE, None),
    "int8 rows": ("int8_row", None),
    "fp8 matmul": (STORAGE, ComputeMode.FP8_MATMUL),
    "int8 matmul": ("int8_row", ComputeMode.INT8_MATMUL),
}
"""The format of the weights, and how they are multiplied where they are not just decoded. Each with all kernels sent
one by one and, under its name with `GRAPH` behind it, with the step recorded as a CUDA graph."""
STEPS = 20  # of each of them
RECORDED_AFTER = 4  # calls: two are computed to see that the graph gives the same
STEP_GOAL, PEAK_GOAL = 1.05, 0.52
SIZES = {"SD1 at 512 px": ("sd1", 64, 768, None), "SDXL at 1024 px": ("sdxl", 128, 2048, 2816)}
PEAK = "peak VRAM, SDXL at 1024 px, medvram, fp8 / fp16"
NOT_MEASURED = "not measured"
Rows = dict[str, tuple[float | str, float | None]]


def rows(sd1: Path, save: Callable[[Rows], None] = lambda found: None) -> Rows:
    """The rows of the table with their goals; `sd1` is a full-size checkpoint, SDXL's is made next to it. `save` gets
    what was found after each of them."""
    ratios = {family: f"step on a CUDA card, {family}, fp8 / fp16" for family in SIZES}
    if not torch.cuda.is_available():
        return {**dict.fromkeys(ratios.values(), (NOT_MEASURED, STEP_GOAL)), PEAK: (NOT_MEASURED, PEAK_GOAL)}
    device = torch.device("cuda")
    sdxl = sd1.with_name("xl.safetensors")
    found: Rows = {}
    for family, what in ratios.items():
        path = sd1 if SIZES[family][0] == "sd1" else sdxl
        if not path.exists():
            write_full_size_checkpoint(path, SIZES[family][0])
        seconds, gigabytes = measure_ways(path, family, device)
        for way in (DECODED, ROWS, KEPT):
            name = what.replace("fp8 /", f"{way} /")
            found[name] = seconds[way] / seconds[WIDE], STEP_GOAL
            found[f"{name}, both by CUDA graphs"] = seconds[way + GRAPH] / seconds[WIDE + GRAPH], STEP_GOAL
        for way in seconds:
            found[f"ms of a step, {family}, {way}"] = 1000 * seconds[way], None
            found[f"peak VRAM of a step with all weights of the model there, GB, {family}, {way}"] = (
                gigabytes[way],
                None,
            )
        found.update({f"ms of a step, {family}, {way}": (NOT_MEASURED, None) for way in WAYS if way not in seconds})
        save(found)
    peaks = {way: peak_of_image(sdxl, WAYS[way][0], device) for way in (WIDE, DECODED)}
    found[PEAK] = peaks[DECODED] / peaks[WIDE], PEAK_GOAL
    found.update({f"peak VRAM, GB, SDXL at 1024 px, medvram, {way}": (peak / 1e9, None) for way, peak in peaks.items()})
    save(found)
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
def measure_ways(path: Path, family: str, device: torch.device) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of a step by the card's own clock, in each of `WAYS`, which take turns; and the gigabytes that one takes
    at its peak, weights of the whole model included. Products that this card or build of PyTorch does not have are left
    out, and named."""
    steps: dict[str, Callable[[], object]] = {}
    gigabytes: dict[str, float] = {}
    contexts = ExitStack()
    for way, (storage, mode) in WAYS.items():
        model = load_through_program(path, storage, torch.float16, device, mode=mode)
        contexts.enter_context(using_block_decoding(model, 1 << 40 if way == KEPT else 0))
        step = stepper(model, family, device, torch.float16)
        try:
            step()
        except RuntimeError as error:
            if mode is None:
                raise
            print(f"{family}, {way}: {str(error).partition(chr(10))[0]}", flush=True)
            continue
        steps[way] = partial(_run, step, model.graphs, False)
        gigabytes[way] = (model.stored_bytes + peak_above(step, device)) / 1e9
        steps[way + GRAPH] = partial(_run, step, model.graphs, True)
        torch.cuda.empty_cache()
        before = torch.cuda.memory_reserved(device)
        for _ in range(RECORDED_AFTER):
            steps[way + GRAPH]()
        torch.cuda.empty_cache()
        gigabytes[way + GRAPH] = (model.stored_bytes + torch.cuda.memory_reserved(device) - before) / 1e9
    seconds = dict.fromkeys(steps, float("inf"))
    for turn in range(STEPS + 3):
        for way, run in steps.items():
            took = card_seconds(run, device)
            if turn >= 3:
                seconds[way] = min(seconds[way], took)
    contexts.close()
    return seconds, gigabytes


def _run(step: Callable[[], object], graphs: DenoiserGraphs, by_graph: bool) -> None:
    """One step, by the graph or without it, which stays."""
    if by_graph:
        graphs.begin_job(GraphMode.ON, print)
    step()
    graphs.end_job()


def card_seconds(step: Callable[[], object], device: torch.device) -> float:
    """How long the card takes."""
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    torch.cuda.synchronize(device)
    began.record()
    step()
    ended.record()
    torch.cuda.synchronize(device)
    return float(began.elapsed_time(ended)) / 1000


def peak_above(run: Callable[[], object], device: torch.device) -> int:
    """Most bytes allocated on the card beyond those before."""
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


@torch.inference_mode()
def peak_of_image(path: Path, storage: str | None, device: torch.device) -> int:
    """Most bytes allocated on the card by steps and decoding, where the model's parts take turns on it."""
    torch.cuda.empty_cache()
    streaming = StreamLayout(level=Level.COMPONENT, on_disk=False)
    model: Any = load_through_program(path, storage, torch.float16, device, streaming)

    def make() -> None:
        latent = stepper(model, "SDXL at 1024 px", device, torch.float16)()[:1]
        model.decode(latent.float())

    return peak_above(make, device)
