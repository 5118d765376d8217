"""How well the bundled model follows prompts: 96 prompts "a [size] [color] [shape] on a [color] background".

Run `python -m benchmarks.default_model [--sheet FILE.png] [--picture docs/images/scenes.png]`; it draws them by the
product's own engine (fixed seeds, 20 steps, 128x128), finds the background's and the shape's color in every image,
prints a table and writes `results/default-model.json`. Eight landscapes are drawn after them; those are for the eye, on
the sheet. The picture has one image of each shape, and the landscapes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from recipes.scenes.layout import SHAPES, SIZE_PX
from recipes.scenes.scoring import (
    LANDSCAPE_PROMPTS,
    ColorPrompt,
    background_color,
    color_prompts,
    shape_color,
)

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "default-model.json"
GOAL = 0.85
COLUMNS = 13


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.default_model", description=__doc__)
    parser.add_argument("--checkpoint-dir", type=Path, default=ROOT / "models" / "Stable-diffusion")
    parser.add_argument("--checkpoint", default="featherweight-scenes")
    parser.add_argument("--sampler", default="DPM++ 2M")
    parser.add_argument("--scheduler", default="Karras")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--cfg-scale", type=float, default=6.0)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sheet", type=Path, help="where to write all images on one sheet (PNG)")
    parser.add_argument("--picture", type=Path, help="where to write the picture of the README (PNG)")
    arguments = parser.parse_args()

    prompts = color_prompts()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        renderer = _PreviewRenderer(arguments, Path(scratch))
        images = [renderer.draw(prompt.text, prompt.seed) for prompt in prompts]
        landscapes = [renderer.draw(text, seed) for seed, text in enumerate(LANDSCAPE_PROMPTS)]
    seconds = time.monotonic() - began
    result = score(prompts, images)
    result["settings"] = {name: getattr(arguments, name) for name in ("sampler", "scheduler", "steps", "cfg_scale")}
    result["seconds_per_image"] = round(seconds / (len(images) + len(landscapes)), 2)
    _print(result)
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if arguments.sheet:
        _sheet([*images, *landscapes], COLUMNS).save(arguments.sheet)
    if arguments.picture:
        _sheet([*images[: len(SHAPES)], *landscapes], len(SHAPES)).save(arguments.picture, optimize=True)


class _PreviewRenderer:
    """Draws through the engine, one image a request, without saving."""

    def __init__(self, arguments: argparse.Namespace, scratch: Path) -> None:
        self._arguments = arguments
        catalogue = CheckpointCatalogue([arguments.checkpoint_dir], HashCache(scratch / "hashes.json"))
        machine = Machine(torch.device(arguments.device), torch.float32, torch.float32)
        self._engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        self._output = Output(scratch)

    def draw(self, prompt: str, seed: int) -> Image.Image:
        arguments = self._arguments
        request = GenerationRequest(
            prompt=prompt,
            width=SIZE_PX,
            height=SIZE_PX,
            steps=arguments.steps,
            cfg_scale=arguments.cfg_scale,
            sampler=arguments.sampler,
            scheduler=arguments.scheduler,
            seed=seed,
            subseed=0,
            checkpoint=arguments.checkpoint,
            save_images=False,
            save_grid=False,
        )
        return generate(request, self._engine, self._output, Silent()).images[0].image


def score(prompts: list[ColorPrompt], images: list[Image.Image]) -> dict[str, object]:
    """Shares of right backgrounds and shapes, whether the goal is met, and what went wrong where."""
    seen = [(background_color(np.asarray(p)), shape_color(np.asarray(p))) for p in images]
    right_background = [background == prompt.background for (background, _), prompt in zip(seen, prompts, strict=True)]
    right_shape = [shape == prompt.color for (_, shape), prompt in zip(seen, prompts, strict=True)]
    both = [a and b for a, b in zip(right_background, right_shape, strict=True)]
    shares = [sum(right) / len(prompts) for right in (right_background, right_shape, both)]
    return {
        "prompts": len(prompts),
        "right_background": round(shares[0], 4),
        "right_shape_color": round(shares[1], 4),
        "both": round(shares[2], 4),
        "goal": GOAL,
        "reached": min(shares[:2]) >= GOAL,
        "wrong": [
            {"prompt": prompt.text, "seed": prompt.seed, "background": background, "shape": shape}
            for prompt, (background, shape), right in zip(prompts, seen, both, strict=True)
            if not right
        ],
    }


def _print(result: dict[str, object]) -> None:
    for name, value in result.items():
        if name != "wrong":
            print(f"{name:22} {value}")
    wrong = result["wrong"]
    assert isinstance(wrong, list)
    for entry in wrong:
        print(f"  {entry['prompt']:50} background {entry['background']:8} shape {entry['shape']}")


def _sheet(images: list[Image.Image], columns: int) -> Image.Image:
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * SIZE_PX, rows * SIZE_PX))
    for i, image in enumerate(images):
        sheet.paste(image, (i % columns * SIZE_PX, i // columns * SIZE_PX))
    return sheet


if __name__ == "__main__":
    main()
