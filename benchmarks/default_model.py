"""How well the bundled model follows prompts: 96 prompts "a [size] [color] [shape] on a [color] background", and eight
landscapes.

Run `python -m benchmarks.default_model [--sheet FILE.png] [--picture docs/images/scenes.png]`; it draws them by the
product's own engine (fixed seeds, 20 steps, 128x128), prints a table and writes `results/default-model.json`:

- colors: whether background and shape have the asked ones;
- overlap: intersection over union of the drawn form with the ideal shape, in the place and radius (of those that the
  size's word allows) where that is largest;
- edge: how many pixels wide the change of color is, drawn and where the checkpoint's VAE encodes and decodes the ideal
  shape;
- corners: how far their 8x8 pixels lie from the background's color, in levels of 255;
- landscapes: whether sky, land and each thing are there, in their forms and colors.

The picture has one image of each shape, and the landscapes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

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
from recipes.scenes.forms import Fit, best_fit, corner_levels, edge_px, form_in
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, SIZE_PX, SIZES, ShapesScene
from recipes.scenes.model import load_model
from recipes.scenes.pool import to_tensor
from recipes.scenes.preview import decode
from recipes.scenes.scoring import (
    LANDSCAPE_PROMPTS,
    ColorPrompt,
    background_color,
    color_prompts,
    seen_in_landscape,
    shape_color,
)

ROOT = Path(__file__).resolve().parent.parent
RESULT = Path(__file__).parent / "results" / "default-model.json"
GOALS = {"colors": 0.99, "overlap": 0.9, "landscapes": 8}
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
    fits = [best_fit(form_in(np.asarray(image)), p.shape, p.size) for p, image in zip(prompts, images, strict=True)]
    result = {
        **score(prompts, images),
        "overlap": overlaps(prompts, fits),
        "edge_px": edges(
            images, round_trip(arguments.checkpoint_dir / f"{arguments.checkpoint}.safetensors", fits, prompts)
        ),
        "corner_levels": corner_levels(np.asarray(image) for image in images),
        "landscapes": looked_at(landscapes),
    }
    result["goals"] = GOALS
    result["reached"] = reached(result)
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


def score(prompts: list[ColorPrompt], images: list[Image.Image]) -> dict[str, Any]:
    """Shares of right backgrounds, shapes' colors and both, and what went wrong where."""
    seen = [(background_color(np.asarray(p)), shape_color(np.asarray(p))) for p in images]
    right_background = [background == prompt.background for (background, _), prompt in zip(seen, prompts, strict=True)]
    right_shape = [shape == prompt.color for (_, shape), prompt in zip(seen, prompts, strict=True)]
    both = [a and b for a, b in zip(right_background, right_shape, strict=True)]
    return {
        "prompts": len(prompts),
        "right_background": round(sum(right_background) / len(prompts), 4),
        "right_shape_color": round(sum(right_shape) / len(prompts), 4),
        "both": round(sum(both) / len(prompts), 4),
        "wrong": [
            {"prompt": prompt.text, "seed": prompt.seed, "background": background, "shape": shape}
            for prompt, (background, shape), right in zip(prompts, seen, both, strict=True)
            if not right
        ],
    }


def overlaps(prompts: list[ColorPrompt], fits: list[Fit]) -> dict[str, Any]:
    """The overlap's median, its lower quartile and the share above the goal; medians by shape and size; the worst."""
    values = [fit.overlap for fit in fits]
    named = [(prompt, value) for prompt, value in zip(prompts, values, strict=True)]
    worst = sorted(named, key=lambda one: one[1])[:8]
    return {
        "median": _rounded(np.median(values)),
        "lower_quartile": _rounded(np.percentile(values, 25)),
        "above_goal": _rounded(np.mean([value >= GOALS["overlap"] for value in values])),
        "by_shape": {kind: _rounded(np.median([v for p, v in named if p.shape == kind])) for kind in SHAPES},
        "by_size": {size or "plain": _rounded(np.median([v for p, v in named if p.size == size])) for size in SIZES},
        "worst": [{"prompt": prompt.text, "seed": prompt.seed, "overlap": _rounded(value)} for prompt, value in worst],
    }


@torch.no_grad()
def round_trip(checkpoint: Path, fits: list[Fit], prompts: list[ColorPrompt]) -> list[Image.Image]:
    """The ideal shapes of `fits` in the colors of the prompts, encoded and decoded by the checkpoint's VAE."""
    vae = load_model(checkpoint).vae
    shapes = [replace(fit.shape, color=prompt.color) for fit, prompt in zip(fits, prompts, strict=True)]
    scenes = [ShapesScene(background=p.background, shapes=(s,)) for p, s in zip(prompts, shapes, strict=True)]
    batches = torch.split(to_tensor([draw(scene) for scene in scenes]), 16)
    decoded = torch.cat([decode(vae, vae.encode(batch).latent_dist.mean) for batch in batches])
    return [Image.fromarray(image) for image in decoded.permute(0, 2, 3, 1).numpy()]


def edges(drawn: list[Image.Image], ideal: list[Image.Image]) -> dict[str, float]:
    """Median width of the edge, as drawn and after the round trip through the VAE."""
    widths = {
        name: [edge_px(np.asarray(image), form_in(np.asarray(image))) for image in images]
        for name, images in (("drawn", drawn), ("round_trip", ideal))
    }
    return {name: _rounded(np.median(values)) for name, values in widths.items()}


def looked_at(landscapes: list[Image.Image]) -> dict[str, Any]:
    """How many of the landscapes are right, and what each shows."""
    seen = [seen_in_landscape(image, text) for image, text in zip(landscapes, LANDSCAPE_PROMPTS, strict=True)]
    return {
        "right": sum(one.right for one in seen),
        "each": [
            {"prompt": text, "right": one.right, **asdict(one)}
            for text, one in zip(LANDSCAPE_PROMPTS, seen, strict=True)
        ],
    }


def reached(result: dict[str, Any]) -> dict[str, bool]:
    """Which goals are met."""
    return {
        "colors": min(result["right_background"], result["right_shape_color"]) >= GOALS["colors"],
        "overlap": result["overlap"]["median"] >= GOALS["overlap"],
        "landscapes": result["landscapes"]["right"] >= GOALS["landscapes"],
    }


def _rounded(value: Any) -> float:
    return round(float(value), 3)


def _print(result: dict[str, Any]) -> None:
    for name, value in result.items():
        if name not in ("wrong", "landscapes"):
            print(f"{name:22} {value}")
    print(f"{'landscapes':22} {result['landscapes']['right']} right")
    for entry in result["landscapes"]["each"]:
        print(f"  {entry}")
    for entry in result["wrong"]:
        print(f"  {entry['prompt']:50} background {entry['background']:8} shape {entry['shape']}")


def _sheet(images: list[Image.Image], columns: int) -> Image.Image:
    rows = -(-len(images) // columns)
    sheet = Image.new("RGB", (columns * SIZE_PX, rows * SIZE_PX))
    for i, image in enumerate(images):
        sheet.paste(image, (i % columns * SIZE_PX, i // columns * SIZE_PX))
    return sheet


if __name__ == "__main__":
    main()
