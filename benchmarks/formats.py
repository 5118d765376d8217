"""The table of storage formats: what each takes and what it loses, of weights and of images.

Run `python -m benchmarks.formats [weights] [images] [steps] [load] [lora] [--prompts N] [--minutes M]`; a part that is
not named keeps what the JSON has of it, and images go on with the prompts that are missing. Weights are 25 of the
bundled model's linear layers, a Gaussian, and the same with outliers in columns and in single places. Images are made
with the bundled model and compared with those in full precision. Step times are CPU seconds in one process, contenders
taking turns, over those of 16 bits. Loading is CPU seconds over those of reading the file. A LoRA's retention is the
share of its change that reaches a layer's output.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.full_size import ROOT, load_through_program
from benchmarks.report import print_table, read_result, write_result
from lib_workbench.comparison.compare import UNSTORED, compare
from modules.memory.changes import AllBranches, SideBranch, joined_branches
from modules.memory.formats.blocks import for_weight, kept_bytes
from modules.memory.formats.catalog import FORMAT_SPECS, chosen_formats
from modules.memory.formats.format import FORMATS
from modules.memory.layer import manage, put, read_weight, stored_state
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.tensor_file import TensorFile
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings

BUNDLED = ROOT / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
PARTS = ("weights", "images", "steps", "load", "lora")
NAMES = [name for name, spec in FORMAT_SPECS.items() if spec.is_narrow]
CHOSEN = chosen_formats()
"""What a model can be stored in by the settings; the others are read from files."""
BEST_DB = 99.0  # for equal images
SIDE_PX = 128  # that the bundled model was trained on
AT_ONCE = 4  # prompts between two switches of the format
LAYERS, WIDTH = 25, 1280
ROUNDS = 5
STRIDE = 37  # has no factor with 96 in common: the first prompts are of all colors, things and grounds
THINGS = ("circle", "square", "triangle", "star", "lighthouse", "tree", "house", "boat")
COLORS = ("red", "blue", "green", "yellow")
GROUNDS = ("a white background", "a blue background", "a meadow")


def prompts(count: int) -> list[str]:
    """Up to 96 prompts; fewer of them are a sample of all, and are among those of more."""
    every = [f"a {color} {thing} on {ground}" for ground in GROUNDS for thing in THINGS for color in COLORS]
    return [every[at * STRIDE % len(every)] for at in range(min(count, len(every)))]


def kinds_of_weights() -> dict[str, list[Tensor]]:
    """Trained, Gaussian, with six columns and with two places per row that are far larger."""
    generator = torch.Generator().manual_seed(0)
    gauss = torch.randn(WIDTH, WIDTH, generator=generator) * 0.02
    columns, spikes = gauss.clone(), gauss.clone()
    columns[:, torch.randperm(WIDTH, generator=generator)[:6]] *= 15
    for row in spikes:
        row[torch.randperm(WIDTH, generator=generator)[:2]] *= 20
    with TensorFile(BUNDLED) as file:
        matrices = [key for key, entry in file.entries.items() if _is_matrix(key, entry.shape)]
        trained = [file.read(key).float() for key in matrices[:LAYERS]]
    return {"trained": trained, "Gaussian": [gauss], "outlier columns": [columns], "spikes": [spikes]}


def _is_matrix(key: str, shape: tuple[int, ...]) -> bool:
    return "diffusion_model" in key and key.endswith(".weight") and len(shape) == 2 and shape[1] % 64 == 0


def stored(weight: Tensor, name: str) -> tuple[Tensor, int]:
    """A weight stored in a format and decoded again, with the bytes that it took."""
    storage = for_weight(FORMATS.get(name), tuple(weight.shape))
    assert storage is not None
    encoded = storage.encode(weight)
    storage = getattr(encoded, "storage", None) or storage
    out = torch.empty(weight.shape)
    return storage.decode(encoded.data, encoded.scale, out), kept_bytes(storage, tuple(weight.shape))


def measure_weights() -> dict[str, Any]:
    """Relative root mean square errors by format and kind of weights."""
    kinds = kinds_of_weights()
    rows: dict[str, Any] = {}
    for name in NAMES:
        row: dict[str, Any] = {"bits": FORMAT_SPECS.get(name).bits}
        for kind, weights in kinds.items():
            off = [(float((stored(w, name)[0] - w).square().sum()), float(w.square().sum())) for w in weights]
            row[kind] = (sum(error for error, _ in off) / sum(norm for _, norm in off)) ** 0.5
        rows[name] = row
    return rows


def measure_images(scores: dict[str, Any], count: int, steps: int, seconds: float, save: Callable[[], None]) -> None:
    """PSNR (dB) and SSIM against full precision, by prompt and format, into `scores`: of the prompts that are not in it
    yet, until the time is over; `save` is called after each few."""
    ends = time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder:
        catalogue = CheckpointCatalogue([BUNDLED.parent], HashCache(Path(folder) / "hashes.json"))
        machine = Machine(torch.device("cpu"), torch.float32, torch.float32)
        engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        request = GenerationRequest(
            prompt="x",
            steps=steps,
            seed=1,
            subseed=0,
            width=SIDE_PX,
            height=SIDE_PX,
            settings=Settings(),
            checkpoint=BUNDLED.name,
        )
        left = [prompt for prompt in prompts(count) if prompt not in scores]
        while left and time.monotonic() < ends:
            some, left = left[:AT_ONCE], left[AT_ONCE:]
            rows = compare(request, some, [UNSTORED, *CHOSEN], engine, Output(Path(folder)), Silent())
            for at, prompt in enumerate(some):
                scores[prompt] = {
                    row.storage: [round(min(row.psnr_db[at], BEST_DB), 2), round(row.ssim[at], 5)] for row in rows[1:]
                }
            save()


def of_images(scores: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Median and worst of all prompts so far, by format."""
    found = {}
    for name in CHOSEN:
        psnr, ssim = zip(*(of_prompt[name] for of_prompt in scores.values()), strict=True)
        found[name] = {
            "psnr_median": statistics.median(psnr),
            "psnr_worst": min(psnr),
            "ssim_median": statistics.median(ssim),
            "ssim_worst": min(ssim),
        }
    return found


def stored_layer(name: str, dtype: torch.dtype, rows: int = WIDTH) -> nn.Linear:
    """A linear layer whose weight is stored in a format."""
    torch.manual_seed(0)
    layer = nn.Linear(WIDTH, rows).to(dtype).requires_grad_(False)
    storage = for_weight(FORMATS.get(name), (rows, WIDTH))
    assert storage is not None
    encoded = storage.encode(layer.weight.data)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": getattr(encoded, "storage", None) or storage}, dtype)
    return layer


def measure_steps() -> dict[str, Any]:
    """CPU seconds of a layer on 1,024 tokens over those of 16 bits (float32 where the CPU computes in that)."""
    dtype = torch.float32
    x = torch.randn(1024, WIDTH, dtype=dtype)
    plain: nn.Module = nn.Linear(WIDTH, WIDTH).to(dtype).requires_grad_(False)
    layers: dict[str, nn.Module] = {"16 bit": plain}
    layers.update((name, stored_layer(name, dtype)) for name in NAMES)
    return _over_first({name: (lambda layer=layer: layer(x)) for name, layer in layers.items()})  # type: ignore[misc]


def _over_first(calls: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    best = dict.fromkeys(calls, float("inf"))
    with torch.no_grad():
        for turn in range(ROUNDS + 1):
            for name, call in calls.items():
                began = time.process_time()
                call()
                if turn:
                    best[name] = min(best[name], time.process_time() - began)
    first = next(iter(best.values()))
    return {name: seconds / first for name, seconds in best.items()}


def measure_load() -> dict[str, Any]:
    """CPU seconds of loading the bundled model in each format over those of reading its file, best of three."""

    def read() -> None:
        with BUNDLED.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass

    def load(name: str) -> None:
        load_through_program(BUNDLED, name, torch.float32, torch.device("cpu"))

    return _over_first({"cat": read} | {name: (lambda name=name: load(name)) for name in NAMES})


def measure_lora() -> dict[str, Any]:
    """The share of a LoRA's change that reaches the output of a stored layer, as a side branch."""
    generator = torch.Generator().manual_seed(2)
    branch = SideBranch(
        torch.randn(32, WIDTH, generator=generator) / WIDTH**0.5,
        torch.randn(WIDTH, 32, generator=generator) * 3e-4,
        None,
        1.0,
    )
    x = torch.randn(64, WIDTH, generator=generator)
    wanted = x @ (branch.up @ branch.down).t() * branch.scale
    rows = {}
    for name in NAMES:
        layer = stored_layer(name, torch.float32)
        state = stored_state(layer)
        assert state is not None
        with torch.no_grad():
            before = x @ read_weight(layer, "weight").t() + layer.bias
            state.branches = AllBranches(joined_branches(layer, [branch], torch.float32, torch.device("cpu")))
            effect = layer(x) - before
        rows[name] = float((effect * wanted).sum() / wanted.square().sum())
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Measure what is named, write the JSON, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=list(PARTS))
    parser.add_argument("--prompts", type=int, default=96)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=8.0, help="for images; another run goes on where it ended")
    parser.add_argument("--note", default="", help="kept in the JSON with each part: what else ran")
    arguments = parser.parse_args(argv)
    runs: dict[str, Callable[[], Any]] = {
        "weights": measure_weights,
        "steps": measure_steps,
        "load": measure_load,
        "lora": measure_lora,
    }
    for part, run in runs.items():
        if part in arguments.parts:
            _keep({part: run(), f"{part}_note": arguments.note})
    if "images" in arguments.parts:
        _more_images(arguments.prompts, arguments.steps, 60 * arguments.minutes)
    print_table(*table(read_result("formats")))


def _more_images(count: int, steps: int, seconds: float) -> None:
    before = read_result("formats")
    is_same = before.get("images_made_with", {}).get("steps") == steps
    scores: dict[str, Any] = before.get("image_scores", {}) if is_same else {}

    def save() -> None:
        made_with = {"prompts": len(scores), "steps": steps}
        _keep({"images": of_images(scores), "images_made_with": made_with, "image_scores": scores})

    measure_images(scores, count, steps, seconds, save)


def _keep(parts: Mapping[str, Any]) -> None:
    """Put these parts in the place of those in the JSON, which another run may have written meanwhile."""
    write_result("formats", {**read_result("formats"), **parts})


def table(result: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Heads and rows; "-" for what was not measured."""
    weights, images = result.get("weights", {}), result.get("images", {})
    kinds = [kind for kind in (next(iter(weights.values())) if weights else {}) if kind != "bits"]
    rows = []
    for name in NAMES:
        row, image = weights.get(name, {}), images.get(name, {})
        cells = [name, f"{row.get('bits', 0):g}", *(f"{row[kind]:.2%}" if kind in row else "-" for kind in kinds)]
        for key in ("psnr_median", "psnr_worst", "ssim_median", "ssim_worst"):
            cells.append(f"{image[key]:.4g}" if key in image else "-")
        for part in ("steps", "load", "lora"):
            value = result.get(part, {}).get(name)
            cells.append("-" if value is None else f"{value:.4g}")
        rows.append(cells)
    return ["format", "bits", *kinds, "PSNR", "worst", "SSIM", "worst", "step", "load", "LoRA"], rows


if __name__ == "__main__":
    main()
