"""Weights in 8 bits alongside 16 bits and alongside diffusers' layerwise casting: bytes, peak while loading, time of
a step.

Run `python -m benchmarks.fp8 [load] [step]`; a part that is not named keeps what the JSON has of it. A
checkpoint of Stable Diffusion 1's full size with random weights is made on the fly; each load runs in a process of its
own; in the second part all contenders take turns, and the quickest step of each counts. Ours compute in what the
program chooses on this machine: bfloat16 where the CPU multiplies it natively, else float32, which is then far
quicker. The peers compute in 16 bit, as one uses them, and in float32 too where that is what we choose. Rows that need
a GPU (`benchmarks/fp8_card.py`) say so without one.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import fp8_card
from benchmarks.full_size import ROOT, load_through_program, use_every_page, write_full_size_checkpoint
from benchmarks.report import print_table, read_result, write_result
from modules.system.devices import native_bf16_cpu

FORMATS = ("fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row")
GOALS = {
    "bytes/fp8_e4m3fn": 0.505,
    "bytes/fp8_e4m3fn_row": 0.51,
    "load": 1.15,
    "step/16 bit": 1.05,
    "step/layerwise": 0.5,
    "row error": 0.027,
}
PARTS = ("load", "step")
ROUNDS = 3
LATENT_SIDE = 64  # 512 px


def child_load(path: Path, storage: str | None) -> dict[str, int]:
    """Peak above the base, and bytes, of one load on the CPU in 16 bit or `storage`; for a process of its own."""
    from benchmarks.load import base_bytes, peak_bytes
    from modules.memory.storage import stored_bytes

    base = base_bytes()
    model = load_through_program(path, storage, torch.float16, torch.device("cpu"))
    use_every_page(model.modules)
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


def stepper(unet: Any, dtype: torch.dtype, device: torch.device, side: int = LATENT_SIDE) -> Callable[[], torch.Tensor]:
    """One evaluation with guidance, at 512 px if nothing is said."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, side, side, generator=generator).to(device, dtype)
    context = torch.randn(2, 77, 768, generator=generator).to(device, dtype)
    t = torch.full((2,), 500, device=device)
    return lambda: unet(x, t, encoder_hidden_states=context, return_dict=False)[0]


def take_turns(steps: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Seconds of the quickest run of each, after one that warms up."""
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            took = time.perf_counter() - began
            if turn:
                best[name] = min(best[name], took)
                print(f"{name}: {took:.2f} s", flush=True)
    return best


def layerwise(path: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """The UNet with diffusers' layerwise casting: weights in float8, computed in `dtype`."""
    from diffusers.hooks import apply_layerwise_casting

    unet = load_through_program(path, None, dtype, device).unet
    apply_layerwise_casting(
        unet, storage_dtype=torch.float8_e4m3fn, compute_dtype=dtype, skip_modules_pattern=("norm",)
    )
    return unet


@torch.inference_mode()
def measure_steps(path: Path, ours: torch.dtype) -> dict[str, float]:
    """Seconds of a step on the CPU: our formats computed in `ours`, and the peers."""
    cpu = torch.device("cpu")
    steps: dict[str, Callable[[], Any]] = {}
    for dtype in dict.fromkeys((torch.bfloat16, ours)):
        steps[f"weights in {short(dtype)}"] = stepper(load_through_program(path, None, dtype, cpu).unet, dtype, cpu)
        steps[f"layerwise casting, {short(dtype)}"] = stepper(layerwise(path, dtype, cpu), dtype, cpu)
    for storage in FORMATS:
        steps[storage] = stepper(load_through_program(path, storage, ours, cpu).unet, ours, cpu)
    return take_turns(steps)


def step_rows(seconds: Mapping[str, float], ours: torch.dtype) -> dict[str, tuple[float, float | None]]:
    """What the seconds come to, with the goals: ratios to the peers in 16 bit, and in the dtype that we compute in."""
    rows: dict[str, tuple[float, float | None]] = {}
    for dtype in dict.fromkeys((torch.bfloat16, ours)):
        plain, cast = f"weights in {short(dtype)}", f"layerwise casting, {short(dtype)}"
        goals = (GOALS["step/16 bit"], GOALS["step/layerwise"]) if dtype == torch.bfloat16 else (None, None)
        for storage in FORMATS:
            what = f"step at 512 px, {storage} /"
            rows[f"{what} {plain}"] = seconds[storage] / seconds[plain], goals[0]
            rows[f"{what} diffusers' {cast}"] = seconds[storage] / seconds[cast], goals[1]
    return rows


def short(dtype: torch.dtype) -> str:
    """ "bfloat16" of torch.bfloat16."""
    return str(dtype).removeprefix("torch.")


def row_errors() -> dict[str, float]:
    """The largest relative error of Gaussian rows over 60 orders of magnitude, by format."""
    from modules.memory.formats.format import FORMATS as ENTRIES

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
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where full-size checkpoints are kept")
    parser.add_argument("--child", nargs=2, metavar=("FILE", "FORMAT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, storage = arguments.child
        print(json.dumps(child_load(Path(path), None if storage == "none" else storage)))
        return
    unknown = [part for part in arguments.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    measure(arguments.parts or PARTS, arguments.keep)


def measure(parts: Sequence[str], keep: Path | None = None) -> None:
    """Measure these parts, print what is known of all, write it. Checkpoints lie in the folder `keep`, if there is
    one, and are taken from there."""
    on_gpu = torch.cuda.is_available()
    name = f"fp8-{torch.cuda.get_device_name().replace(' ', '-').lower()}" if on_gpu else "fp8"
    result: dict[str, Any] = read_result(name) if set(parts) != set(PARTS) else {}

    def row(what: str, value: float | str, goal: float | None) -> None:
        result[what] = {"value": value, "goal": goal}

    ours = torch.bfloat16 if native_bf16_cpu() else torch.float32
    with tempfile.TemporaryDirectory() as folder:
        path = (keep or Path(folder)) / "full.safetensors"
        if not path.exists():
            write_full_size_checkpoint(path)
        wide = in_child(path, None) if "load" in parts else {}
        for storage in FORMATS if "load" in parts else ():
            narrow = in_child(path, storage)
            share = narrow["unet_and_text"] / wide["unet_and_text"]
            row(f"bytes of UNet and text encoder, {storage} / fp16", share, GOALS.get(f"bytes/{storage}"))
            row(f"peak while loading / bytes of the model, {storage}", narrow["peak"] / narrow["model"], GOALS["load"])
        if "step" in parts and not on_gpu:
            result["seconds of a step"] = seconds = measure_steps(path, ours)
            result["compute dtype"] = short(ours)
            for what, (ratio, goal) in step_rows(seconds, ours).items():
                row(what, ratio, goal)
        if "step" in parts:

            def save(rows: fp8_card.Rows) -> None:
                for what, (found, goal) in rows.items():
                    row(what, found, goal)
                write_result(name, result)

            save(fp8_card.rows(path, save))
    for storage, error in row_errors().items():
        row(f"relative error of Gaussian rows, {storage}", error, GOALS["row error"])
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
