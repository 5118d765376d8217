"""A UNet of 860 M parameters whose weights are streamed, alongside the same resident, and alongside diffusers' group
offloading to disk: time of a step, and memory.

Run `python -m benchmarks.streaming`. A checkpoint of Stable Diffusion 1's full size with random weights is made on the
fly; steps of a pair take turns; memory is measured in processes of their own. On the CPU weights are streamed
from the checkpoint file (warm page cache), where what is compared is the time of all threads. Rows that need a graphics
card say so without one.
"""

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size import ROOT, load_through_program, write_full_size_checkpoint
from benchmarks.report import print_table, write_result
from modules.memory.streaming.groups import Level
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.stream_layout import StreamLayout
from modules.system.devices import native_bf16_cpu, release_memory

GOALS = {"time": 1.10, "resident": 0.10, "fp8": 0.55, "disk time": 1.05, "disk memory": 0.05}
SIDES = {32: 3, 64: 2}  # of the latent (256 and 512 pixels), and how many pairs are timed
NOT_MEASURED = "not measured"


def load(path: Path, device: torch.device, storage: str | None, streaming: StreamLayout | None) -> LoadedModel:
    """Load through the program's own loader."""
    return load_through_program(path, storage, _dtype(device), device, streaming)


def _dtype(device: torch.device) -> torch.dtype:
    if device.type != "cpu":
        return torch.float16
    return torch.bfloat16 if native_bf16_cpu() else torch.float32


def stream_layout(path: Path, level: Level = Level.LAYER, on_disk: bool = True) -> StreamLayout:
    """Streaming that may write next to the checkpoint."""
    return StreamLayout(level=level, on_disk=on_disk, folder=path.parent / "offload")


def stepper(unet: Any, device: torch.device, side: int) -> Callable[[], Tensor]:
    """One evaluation with guidance at a latent of `side`."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, side, side, generator=generator).to(device, _dtype(device))
    context = torch.randn(2, 77, 768, generator=generator).to(device, _dtype(device))
    t = torch.full((2,), 500, device=device)
    return lambda: unet(x, t, encoder_hidden_states=context, return_dict=False)[0]


def pair(first: Callable[[], Tensor], second: Callable[[], Tensor], device: torch.device, count: int) -> dict[str, Any]:
    """Median seconds of both, of their ratio, and of the ratio of wall times; they take turns."""

    def timed(step: Callable[[], Tensor]) -> tuple[float, float]:
        began, wall = time.process_time(), time.perf_counter()
        outputs.append(step())
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.process_time() - began, time.perf_counter() - wall

    outputs: list[Tensor] = []
    times = [(timed(first), timed(second)) for _ in range(count)]
    of = 0 if device.type == "cpu" else 1
    return {
        "first_s": statistics.median(x[of] for x, _ in times),
        "second_s": statistics.median(y[of] for _, y in times),
        "ratio": statistics.median(x[of] / y[of] for x, y in times),
        "ratio_wall": statistics.median(x[1] / y[1] for x, y in times),
        "same_output": all(torch.equal(output, outputs[0]) for output in outputs),
    }


def offload_to_disk(unet: nn.Module, folder: Path) -> None:
    """diffusers' group offloading by leaf, on the CPU."""
    from diffusers.hooks import apply_group_offloading

    cpu = torch.device("cpu")
    apply_group_offloading(
        unet, cpu, offload_device=cpu, offload_type="leaf_level", offload_to_disk_path=str(folder)
    )  # streams it does not have there


@torch.inference_mode()
def child(path: Path, way: str) -> dict[str, int]:
    """Resident bytes of one process: before loading, with the model, and at the peak of a step."""
    from benchmarks.load import base_bytes, peak_bytes

    base = base_bytes()
    cpu = torch.device("cpu")
    unet = load(path, cpu, None, stream_layout(path) if way == "streamed" else None).unet  # the rest is let go
    if way == "diffusers":
        offload_to_disk(unet, path.parent / "theirs")
    loaded = peak_bytes()
    gc.collect()
    release_memory(cpu)
    step = stepper(unet, cpu, 32)
    before = base_bytes()
    step()
    weights = sum(p.numel() for p in unet.parameters()) * _dtype(cpu).itemsize
    return {"base": base, "loaded": loaded, "before_step": before, "step": peak_bytes(), "unet": weights}


def in_child(path: Path, way: str) -> dict[str, int]:
    """Run `child` in another process."""
    command = [sys.executable, "-m", "benchmarks.streaming", "--child", str(path), way]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


@torch.inference_mode()
def on_cpu(path: Path, way: str, resident: nn.Module) -> dict[str, Any]:
    """One way of streaming alongside the resident model, at each size."""
    cpu = torch.device("cpu")
    model = load(path, cpu, None, None if way == "diffusers" else stream_layout(path, Level(way)))
    unet, streaming = model.unet, model.streaming
    del model
    if way == "diffusers":
        offload_to_disk(unet, path.parent / "theirs")
    stepper(unet, cpu, 16)()  # the order of layers is learnt
    result: dict[str, Any] = {}
    for side, count in SIDES.items():
        result[str(8 * side)] = pair(stepper(unet, cpu, side), stepper(resident, cpu, side), cpu, count)
        print(way, 8 * side, result[str(8 * side)], flush=True)
    if streaming is not None:
        result["counts"] = vars(streaming.counts)
        streaming.close()
    return result


@torch.inference_mode()
def on_gpu(path: Path, device: torch.device) -> dict[str, Any]:
    """Steps bound by transfer: 8 against 16 bits; from disk against from main memory."""
    from benchmarks.load import base_bytes

    result: dict[str, Any] = {}
    before = base_bytes()
    wide = load(path, device, None, stream_layout(path, Level.BLOCK, on_disk=False))
    in_memory = base_bytes() - before
    narrow = load(path, device, "fp8_e4m3fn_row", stream_layout(path, Level.BLOCK, on_disk=False))
    result["fp8"] = pair(stepper(narrow.unet, device, 16), stepper(wide.unet, device, 16), device, 10)
    before = base_bytes()
    from_disk = load(path, device, None, stream_layout(path, Level.BLOCK))
    result["disk"] = pair(stepper(from_disk.unet, device, 64), stepper(wide.unet, device, 64), device, 10)
    result["disk memory"] = {"ratio": (base_bytes() - before) / in_memory}
    return result


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--child", nargs=2, metavar=("FILE", "WAY"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", help="where the checkpoint is kept for the next time")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(child(Path(arguments.child[0]), arguments.child[1])))
        return
    rows: list[tuple[object, ...]] = []
    result: dict[str, Any] = {}

    def row(what: str, value: float | str, goal: float | None = None) -> None:
        met = "" if goal is None or isinstance(value, str) else ("yes" if value <= goal else "NO")
        rows.append((what, value if isinstance(value, str) else f"{value:.3f}", goal or "", met))
        result[what] = {"value": value, "goal": goal}

    cpu, has_gpu = torch.device("cpu"), torch.cuda.is_available()
    suffix = "-" + torch.cuda.get_device_name().replace(" ", "-").lower() if has_gpu else ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments.folder or folder) / "full.safetensors"
        if not path.is_file():
            write_full_size_checkpoint(path)
        resident = load(path, cpu, None, None).unet
        for way in (Level.LAYER, "diffusers", Level.BLOCK):
            result[f"steps, {way}"] = steps = on_cpu(path, way, resident)
            for side in SIDES:
                goal = GOALS["time"] if (way, side) == (Level.LAYER, 64) else None
                row(f"step at {8 * side} px, streamed from disk / resident, {way}", steps[str(8 * side)]["ratio"], goal)
            write_result(f"streaming{suffix}", result)
        del resident
        result["memory"] = memory = {way: in_child(path, way) for way in ("resident", "streamed", "diffusers")}
        unet = memory["resident"]["unet"]
        others = memory["resident"]["step"] - unet  # activations, program
        for way in ("streamed", "diffusers"):
            share = (memory[way]["step"] - others) / unet
            goal = GOALS["resident"] if way == "streamed" else None
            row(f"weights of the UNet in memory at the peak of a step, {way} / all", share, goal)
        card = on_gpu(path, torch.device("cuda")) if has_gpu else {}
        result["card"] = card
        for what, key, goal in (
            ("step bound by transfer on a card, fp8 / fp16", "fp8", GOALS["fp8"]),
            ("step on a card, from disk / from main memory", "disk", GOALS["disk time"]),
            ("main memory with a card, from disk / from main memory", "disk memory", GOALS["disk memory"]),
        ):
            row(what, card[key]["ratio"] if card else NOT_MEASURED, goal)
    print_table(("what", "measured", "at most", "met"), rows)
    write_result(f"streaming{suffix}", result)


if __name__ == "__main__":
    main()
