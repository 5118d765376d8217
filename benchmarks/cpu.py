"""What int8 products and forecast steps are worth on a CPU: steps, memory, decoding and images against the peers.

Run `python -m benchmarks.cpu [--part steps memory decode images] [--family sd1 sdxl] [--quick]`; it writes
`results/cpu.json`. Steps are those of full-size UNets with random weights and guidance (two images), at 512 px; all
take turns, and a ratio is that of the shortest times. Images are the bundled model's: how far they are from those in
fp32, and whether the asked colours are seen where fp32 has them. OpenVINO is measured where `openvino` (and `nncf`) are
installed, see `benchmarks/requirements.txt`. `--quick` does all of it at a small size, to see that it runs.

All parts together take long: each can run by itself (`--part`, `--family`, `--way`, `--rounds`), and what it finds goes
into the results of the others. `--keep FOLDER` keeps the full-size checkpoints for the next part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from benchmarks.full_size import CPU, FAMILIES, ROOT, load_through_program, use_every_page, write_full_size_checkpoint
from benchmarks.report import print_table, write_result
from modules.memory import int8_matmul
from modules.memory.int8_support import Int8Support, measure
from modules.models.loaded import LoadedModel
from modules.models.precision import ComputeMode
from modules.models.reading.catalogue import CheckpointCatalogue, HashCache
from modules.processing.comparison.compare import psnr_db
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.events import Silent
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request import GenerationRequest
from modules.settings.values import Settings
from recipes.scenes.layout import SIZE_PX
from recipes.scenes.scoring import background_colour, colour_prompts, shape_colour

PARTS = ("steps", "memory", "decode", "images")
SIDE, QUICK_SIDE = 64, 16
ROUNDS, QUICK_ROUNDS = 3, 1
PROMPTS, QUICK_PROMPTS = 96, 2
DENOISING_STEPS = 20
GOALS = {
    "int8 matmul / diffusers fp32": 0.50,
    "int8 matmul / diffusers bf16": 0.2,
    "int8 matmul / OpenVINO fp32": 0.55,
    "int8 matmul / OpenVINO int8": 1.1,
    "peak memory / diffusers fp32": 0.3,
    "decoding / diffusers fp32": 0.6,
    "int8 matmul, median dB": 32.0,
    "int8_convrot weights, median dB": 40.0,
    "forecast, time": 0.6,
    "forecast, median dB": 30.0,
}
Step = Callable[[], Any]


@dataclass(frozen=True)
class Way:
    """A way of ours to compute: the storage format (None: plain weights), its dtype and mode."""

    storage: str | None
    dtype: torch.dtype
    mode: ComputeMode

    def load(self, path: Path) -> LoadedModel:
        """The model of a checkpoint."""
        return load_through_program(path, self.storage, self.dtype, CPU, mode=self.mode)


# Plain weights are in diffusers' own UNet with its own attention, which is also what the program computes with then.
WAYS = {
    "diffusers fp32": Way(None, torch.float32, ComputeMode.PLAIN),
    "diffusers bf16": Way(None, torch.bfloat16, ComputeMode.PLAIN),
    "int8_row weights": Way("int8_row", torch.float32, ComputeMode.MANUAL),
    "int8 matmul": Way("int8_row", torch.float32, ComputeMode.INT8_MATMUL),
    "int8 matmul, bf16": Way("int8_row", torch.bfloat16, ComputeMode.INT8_MATMUL),
    "int8 matmul, convrot": Way("int8_convrot", torch.float32, ComputeMode.INT8_MATMUL),
}

QUICK_WAYS = ("diffusers fp32", "int8_row weights", "int8 matmul")


def inputs(family: str, side: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor] | None]:
    """Latents of two images, their timestep, the texts, and what SDXL is told besides."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, side, side, generator=generator).to(dtype)
    width = 2048 if family == "sdxl" else 768
    context = torch.randn(2, 77, width, generator=generator).to(dtype)
    added = None
    if family == "sdxl":
        sizes = torch.tensor([[8.0 * side, 8.0 * side, 0, 0, 8.0 * side, 8.0 * side]] * 2)
        added = {"text_embeds": torch.randn(2, 1280, generator=generator).to(dtype), "time_ids": sizes}
    return x, torch.full((2,), 500), context, added


def stepper(unet: Any, family: str, side: int, dtype: torch.dtype) -> Step:
    """One evaluation with guidance."""
    x, t, context, added = inputs(family, side, dtype)
    return lambda: unet(x, t, encoder_hidden_states=context, added_cond_kwargs=added, return_dict=False)[0]


def take_turns(steps: Mapping[str, Step], rounds: int) -> dict[str, float]:
    """Seconds of the quickest run of each, after one that warms up."""
    best = dict.fromkeys(steps, float("inf"))
    for turn in range(rounds + 1):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            if turn:
                best[name] = min(best[name], time.perf_counter() - began)
                print(f"{name}: {best[name]:.2f} s", flush=True)
    return best


def openvino_steps(unet: Any, family: str, side: int) -> tuple[dict[str, Step], str]:
    """The same UNet compiled by OpenVINO, in fp32 and (with nncf) with weights and activations in int8; and why there
    are none."""
    if find_spec("openvino") is None:
        return {}, "openvino is not installed (pip install -r benchmarks/requirements.txt)"
    openvino = import_module("openvino")
    x, t, context, added = inputs(family, side, torch.float32)
    example: dict[str, Any] = {"sample": x, "timestep": t, "encoder_hidden_states": context}
    if added is not None:
        example["added_cond_kwargs"] = added
    unet.config.return_dict = False
    model = openvino.convert_model(unet, example_input=example)
    values = [x.numpy(), t.numpy(), context.numpy(), *(item.numpy() for item in (added or {}).values())]
    core = openvino.Core()
    compiled = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    steps: dict[str, Step] = {"OpenVINO fp32": lambda: compiled(values)}
    if find_spec("nncf") is None:
        return steps, "nncf is not installed, so OpenVINO's int8 was left out"
    nncf = import_module("nncf")
    quantized = nncf.quantize(model, nncf.Dataset([values]), model_type=nncf.ModelType.TRANSFORMER, subset_size=1)
    small = core.compile_model(quantized, "CPU")
    steps["OpenVINO int8"] = lambda: small(values)
    return steps, ""


@torch.inference_mode()
def measure_steps(path: Path, family: str, side: int, rounds: int, names: Sequence[str]) -> dict[str, Any]:
    """Seconds of a step in each of our ways and of the peers', and the ratios; how far int8 is from fp32 here."""
    unets = {name: WAYS[name].load(path).unet for name in names}
    steps = {name: stepper(unets[name], family, side, WAYS[name].dtype) for name in names}
    others, left_out = openvino_steps(unets["diffusers fp32"], family, side)
    seconds = take_turns({**steps, **others}, rounds)
    true = steps["diffusers fp32"]()
    errors = {name: float((steps[name]().float() - true).norm() / true.norm()) for name in names}
    fastest = "int8 matmul"
    ratios = {f"{fastest} / {name}": seconds[fastest] / seconds[name] for name in seconds if name != fastest}
    print(json.dumps({"seconds": seconds, "ratios": ratios, "relative_errors": errors}), flush=True)
    return {"seconds": seconds, "ratios": ratios, "relative_errors": errors, "left_out": left_out}


@torch.inference_mode()
def child_peak(path: Path, family: str, side: int, name: str) -> int:
    """Peak bytes above the base of loading and one step; for a process of its own."""
    from benchmarks.load import base_bytes, peak_bytes

    base = base_bytes()
    unet = WAYS[name].load(path).unet
    use_every_page([unet])
    stepper(unet, family, side, WAYS[name].dtype)()
    return peak_bytes() - base


def measure_memory(path: Path, family: str, side: int) -> dict[str, Any]:
    """Peaks of a process each, and the ratio."""
    peaks = {}
    for name in QUICK_WAYS:
        command = [sys.executable, "-m", "benchmarks.cpu", "--child", str(path), family, str(side), name]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks[name] = int(json.loads(done.stdout.splitlines()[-1]))
        print(f"{name}: {peaks[name] >> 20} MiB", flush=True)
    return {"peak_bytes": peaks, "ratio": peaks["int8 matmul"] / peaks["diffusers fp32"]}


@torch.inference_mode()
def measure_decoding(path: Path, side: int, rounds: int) -> dict[str, Any]:
    """Seconds of decoding one image with our VAE, in fp32 and bf16, and with diffusers' own in fp32."""
    z = torch.randn(1, 4, side, side, generator=torch.Generator().manual_seed(0))
    full, half = WAYS["diffusers fp32"].load(path), WAYS["diffusers bf16"].load(path)
    plain: Any = full.vae
    seconds = take_turns(
        {
            "ours fp32": lambda: full.decode(z),
            "ours bf16": lambda: half.decode(z),
            "diffusers fp32": lambda: plain.decode(z / plain.config.scaling_factor, return_dict=False)[0],
        },
        rounds,
    )
    best = min(seconds["ours fp32"], seconds["ours bf16"])
    return {"seconds": seconds, "ratio": best / seconds["diffusers fp32"]}


class _Images:
    """Draws the prompts of the bundled model through the engine."""

    def __init__(self, scratch: Path, count: int) -> None:
        catalogue = CheckpointCatalogue([ROOT / "models" / "Stable-diffusion"], HashCache(scratch / "hashes.json"))
        machine = Machine(CPU, torch.float32, torch.float32, int8=lambda dtype: Int8Support(0.0))
        self._engine = Engine(catalogue, ROOT / "configs", lambda: machine, hashing=False)
        self._output = Output(scratch)
        self._prompts = colour_prompts()[:count]

    def draw(self, changes: Mapping[str, object], sampler: str = "DPM++ 2M", scheduler: str = "Karras") -> _Drawn:
        """One image of each prompt, and what they took."""
        images = []
        began = time.process_time()
        for prompt in self._prompts:
            request = GenerationRequest(
                prompt=prompt.text,
                width=SIZE_PX,
                height=SIZE_PX,
                steps=DENOISING_STEPS,
                cfg_scale=6.0,
                sampler=sampler,
                scheduler=scheduler,
                seed=prompt.seed,
                subseed=0,
                checkpoint="featherweight-scenes",
                save_images=False,
                save_grid=False,
                settings=Settings().with_changes(changes),
            )
            images.append(generate(request, self._engine, self._output, Silent()).images[0].image)
        return _Drawn(images, time.process_time() - began)

    def right(self, images: list[Image.Image]) -> list[bool]:
        """Where background and shape have the colours that were asked for."""
        pixels = [np.asarray(image) for image in images]
        return [
            background_colour(image) == prompt.background and shape_colour(image) == prompt.colour
            for image, prompt in zip(pixels, self._prompts, strict=True)
        ]


@dataclass(frozen=True)
class _Drawn:
    """`seconds`: of the CPU."""

    images: list[Image.Image]
    seconds: float


def measure_images(count: int, save: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """How far the images of each way are from those in fp32. Every layer multiplies in int8 here, those too that are
    too small for it to pay: the bundled model has few others."""
    row: dict[str, object] = {"fp8_storage": "Enable", "fp8_format": "int8_row"}
    rotated: dict[str, object] = {**row, "fp8_format": "int8_convrot"}
    ways: dict[str, dict[str, object]] = {
        "int8_row weights": {**row, "compute_mode": "Manual cast"},
        "int8_convrot weights": {**rotated, "compute_mode": "Manual cast"},
        "int8 matmul": {**row, "compute_mode": "int8 matmul"},
        "int8 matmul, convrot": {**rotated, "compute_mode": "int8 matmul"},
        "forecast 0.5": {"forecast_strength": 0.5},
    }
    int8_matmul.MIN_PRODUCTS = 0
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as scratch:
        artist = _Images(Path(scratch), count)
        for sampler, scheduler in (("DPM++ 2M", "Karras"), ("Euler", "Automatic")):
            artist.draw({}, sampler, scheduler)  # reads the model, so that times begin alike
            true = artist.draw({}, sampler, scheduler)
            seen = artist.right(true.images)
            for name, changes in ways.items():
                if sampler == "Euler" and not name.startswith("forecast"):
                    continue
                drawn = artist.draw(changes, sampler, scheduler)
                distances = [psnr_db(a, b) for a, b in zip(drawn.images, true.images, strict=True)]
                kept = [now for now, then in zip(artist.right(drawn.images), seen, strict=True) if then]
                found[f"{name}, {sampler}"] = {
                    "median_db": statistics.median(distances),
                    "lowest_db": min(distances),
                    "right_of_those_right_in_fp32": sum(kept) / max(1, len(kept)),
                    "time": drawn.seconds / true.seconds,
                }
                print(name, sampler, found[f"{name}, {sampler}"], flush=True)
                save(found)
    return found


def earlier_result() -> dict[str, Any]:
    """What the other parts found, of this file's results."""
    file = ROOT / "benchmarks" / "results" / "cpu.json"
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    return {name: part for name, part in found.items() if name not in ("machine", "environment")}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__)
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--family", nargs="+", choices=("sd1", "sdxl"), default=["sd1"])
    parser.add_argument("--way", nargs="+", choices=tuple(WAYS), help="of the part steps; the default is all of them")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where full-size checkpoints are kept")
    parser.add_argument("--quick", action="store_true", help="at a small size, nothing is written")
    parser.add_argument("--child", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        path, family, side, name = arguments.child
        print(json.dumps(child_peak(Path(path), family, int(side), name)))
        return
    names: Sequence[str] = QUICK_WAYS if arguments.quick else tuple(arguments.way or WAYS)
    side, rounds = (QUICK_SIDE, QUICK_ROUNDS) if arguments.quick else (SIDE, arguments.rounds)
    result: dict[str, Any] = {"goals": GOALS, "image_px": 8 * side}

    def save(content: dict[str, Any]) -> None:
        if not arguments.quick:
            write_result("cpu", {**earlier_result(), **content})

    for dtype in (torch.float32, torch.bfloat16):
        result[f"int8 product over {dtype}"] = measure(CPU, dtype).ratio
    with tempfile.TemporaryDirectory() as scratch:
        for family in arguments.family if {"steps", "memory", "decode"} & set(arguments.part) else ():
            assert family in FAMILIES
            path = (arguments.keep or Path(scratch)) / f"{family}.safetensors"
            if not path.exists():
                write_full_size_checkpoint(path, family)
            if "steps" in arguments.part:
                result[f"steps, {family}"] = measure_steps(path, family, side, rounds, names)
            if "memory" in arguments.part:
                result[f"memory, {family}"] = measure_memory(path, family, side)
            if "decode" in arguments.part:
                result[f"decode, {family}"] = measure_decoding(path, side, rounds)
            save(result)
            if arguments.keep is None:
                path.unlink()
    if "images" in arguments.part:
        prompts = QUICK_PROMPTS if arguments.quick else arguments.prompts
        result["images"] = measure_images(prompts, lambda found: save({**result, "images": found}))
    rows = []
    for family in arguments.family:
        for name, ratio in result.get(f"steps, {family}", {}).get("ratios", {}).items():
            rows.append((family, name, f"{ratio:.2f}", GOALS.get(name, "")))
        for part, name in (("memory", "peak memory / diffusers fp32"), ("decode", "decoding / diffusers fp32")):
            if f"{part}, {family}" in result:
                rows.append((family, name, f"{result[f'{part}, {family}']['ratio']:.2f}", GOALS[name]))
    for name, numbers in result.get("images", {}).items():
        rows.append(("images", f"{name}, median dB", f"{numbers['median_db']:.1f}", ""))
    print_table(["model", "what", "found", "goal"], rows)
    save(result)


if __name__ == "__main__":
    main()
