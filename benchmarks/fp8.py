"""Weights in 8 bits beside 16 bits and beside diffusers' layerwise casting: bytes, peak while loading, time of a step.

Run `python -m benchmarks.fp8 [PART ...]`; parts that are not named keep what the JSON has of them. A checkpoint of
Stable Diffusion 1's full size with random weights is made on the fly; each load runs in a process of its own; steps of
a pair take turns, and the quickest of each counts. Rows that need a graphics card say so without one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.full_size import ROOT, load_through_program, write_full_size_checkpoint
from benchmarks.report import RESULTS, print_table, write_result
from modules.devices import native_bf16_cpu

FORMATS = ("fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row")
GOALS = {
    "bytes/fp8_e4m3fn": 0.505,
    "bytes/fp8_e4m3fn_row": 0.51,
    "load": 1.15,
    "step/16 bit": 1.05,
    "step/layerwise": 0.5,
    "gpu step": 1.03,
    "gpu medvram": 0.55,
    "row error": 0.027,
}
PARTS = ("load", *FORMATS, "layerwise")
PAIRS = 4
LATENT_SIDE = 64  # 512 px


def child_load(path: Path, storage: str | None) -> dict[str, int]:
    """Peak above the base, and bytes, of one load on the processor in 16 bit or `storage`; for a process of its own."""
    from benchmarks.load import base_bytes, peak_bytes
    from modules.memory.storage import stored_bytes

    base = base_bytes()
    model = load_through_program(path, storage, torch.float16, torch.device("cpu"))
    return {
        "peak": peak_bytes() - base,
        "model": model.stored_bytes,
        "unet_and_text": stored_bytes(model.unet) + stored_bytes(model.text_encoder),
    }


def in_child(path: Path, storage: str | None) -> dict[str, int]:
    """Run `child_load` in another process."""
    command = [sys.executable, "-m", "benchmarks.fp8", "--child", str(path), storage or "none"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    result: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return result


def stepper(unet: Any, dtype: torch.dtype, device: torch.device) -> Callable[[], torch.Tensor]:
    """One evaluation with guidance at 512 px."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, LATENT_SIDE, LATENT_SIDE, generator=generator).to(device, dtype)
    context = torch.randn(2, 77, 768, generator=generator).to(device, dtype)
    t = torch.full((2,), 500, device=device)
    return lambda: unet(x, t, encoder_hidden_states=context, return_dict=False)[0]


def pair(first: Callable[[], Any], second: Callable[[], Any], device: torch.device) -> dict[str, float]:
    """Seconds of the quickest run of both and their ratio, taking turns, warmed up once."""

    def timed(step: Callable[[], Any]) -> float:
        began = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - began

    timed(first), timed(second)
    times = [(timed(first), timed(second)) for _ in range(PAIRS if device.type == "cpu" else 20)]
    first_s, second_s = min(a for a, _ in times), min(b for _, b in times)
    return {"first_s": first_s, "second_s": second_s, "ratio": first_s / second_s}


@torch.inference_mode()
def measure_step(path: Path, storage: str, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    """A step with weights in a format beside one with weights in the compute dtype."""
    plain = load_through_program(path, None, dtype, device)
    ours = load_through_program(path, storage, dtype, device)
    return pair(stepper(ours.unet, dtype, device), stepper(plain.unet, dtype, device), device)


@torch.inference_mode()
def measure_peer(path: Path, dtype: torch.dtype, device: torch.device) -> dict[str, float]:
    """A step on plain fp8 beside one with diffusers' layerwise casting."""
    from diffusers.hooks import apply_layerwise_casting

    theirs = load_through_program(path, None, dtype, device).unet
    apply_layerwise_casting(
        theirs, storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype, skip_modules_pattern=("norm",)
    )
    ours = load_through_program(path, FORMATS[0], dtype, device)
    return pair(stepper(ours.unet, dtype, device), stepper(theirs, dtype, device), device)


def row_errors() -> dict[str, float]:
    """The largest relative error of Gaussian rows over 60 orders of magnitude, by format."""
    from modules.memory.formats import FORMATS as ENTRIES

    worst: dict[str, float] = {}
    for name in ("fp8_e4m3fn_row", "int8_row"):
        for exponent in range(-30, 31, 5):
            weight = torch.randn(128, 2048, generator=torch.Generator().manual_seed(0)) * 10.0**exponent
            encoded = ENTRIES.get(name).encode(weight)
            got = ENTRIES.get(name).decode(encoded.data, encoded.scale, torch.empty(weight.shape))
            error = float((got - weight).double().norm() / weight.double().norm())
            worst[name] = max(worst.get(name, 0.0), error)
    return worst


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--child", nargs=2, metavar=("FILE", "FORMAT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, storage = arguments.child
        print(json.dumps(child_load(Path(path), None if storage == "none" else storage)))
        return
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    measure(arguments.parts or PARTS)


def measure(parts: Sequence[str]) -> None:
    """Measure these parts, print what is known of all, write it."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    name = "fp8" if device.type == "cpu" else f"fp8-{torch.cuda.get_device_name().replace(' ', '-').lower()}"
    kept = RESULTS / f"{name}.json"
    result: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() and set(parts) != set(PARTS) else {}

    def row(what: str, value: float | str, goal: float | None) -> None:
        result[what] = {"value": value, "goal": goal}

    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16 if native_bf16_cpu() else torch.float32
    short = str(dtype).removeprefix("torch.")
    result["compute_dtype"] = short
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.safetensors"
        write_full_size_checkpoint(path)
        wide = in_child(path, None) if "load" in parts else {}
        for storage in FORMATS if "load" in parts else ():
            narrow = in_child(path, storage)
            share = narrow["unet_and_text"] / wide["unet_and_text"]
            row(f"bytes of UNet and text encoder, {storage} / fp16", share, GOALS.get(f"bytes/{storage}"))
            row(f"peak while loading / bytes of the model, {storage}", narrow["peak"] / narrow["model"], GOALS["load"])
        steps = result.setdefault("steps", {})
        for storage in (part for part in parts if part in FORMATS):
            steps[storage] = measure_step(path, storage, dtype, device)
            goal = GOALS["gpu step" if device.type == "cuda" else "step/16 bit"]
            row(f"step at 512 px, {storage} / {short}", steps[storage]["ratio"], goal)
        if "layerwise" in parts:
            steps["layerwise"] = measure_peer(path, dtype, device)
            ratio = steps["layerwise"]["ratio"]
            row(f"the same, {FORMATS[0]} / diffusers' layerwise casting", ratio, GOALS["step/layerwise"])
    for storage, error in row_errors().items():
        row(f"relative error of Gaussian rows, {storage}", error, GOALS["row error"])
    if device.type != "cuda":
        row("step on a CUDA card, SD1 512 px and SDXL 1024 px, fp8 / fp16", "not measured", GOALS["gpu step"])
        row("peak VRAM, SDXL 1024 px, medvram, fp8 / fp16", "not measured", GOALS["gpu medvram"])
    print_table(("what", "measured", "at most", "met"), [line(what, found) for what, found in result.items()])
    write_result(name, result)


def line(what: str, found: Any) -> tuple[object, ...]:
    """A row of the table, of one entry of the result."""
    if not isinstance(found, dict) or "value" not in found:
        return (what, found if isinstance(found, str) else "", "", "")
    value, goal = found["value"], found["goal"]
    if isinstance(value, str) or goal is None:
        return (what, value if isinstance(value, str) else f"{value:.4f}", goal or "", "")
    return (what, f"{value:.4f}", goal, "yes" if value <= goal else "NO")


if __name__ == "__main__":
    main()
