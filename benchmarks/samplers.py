"""Which samplers draw what is asked with the bundled model, at which guidance: 8 prompts for one shape, 8 for two.

Run `python -m benchmarks.samplers [--cfg-scales 3 6 7] [--samplers NAME ...]`; it prints a table and writes
`results/samplers.json`, where other rows stay. 20 steps; each sampler has the schedule that Automatic means for it.
Noise and steps are the program's own (`modules.sampling`); the model is called for all 16 prompts at once. Of the 16
images:

- one: those with one shape whose background and shape have the asked colors, and the median of the form's overlap with
  the ideal one (intersection over union);
- two: those with two shapes in which the background and both shapes have the asked colors, each shape in its form (an
  overlap of `MIN_PART_OVERLAP`), and the median of the worse overlap of the two.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.report import print_table, read_result, write_result
from modules.sampling.catalog import SAMPLERS, SCHEDULES, SamplerSpec
from modules.sampling.denoisers import denoise_for
from modules.sampling.discrete import DiscreteSchedule
from modules.sampling.noise import ImageNoise, NoiseRequest
from modules.sampling.plan import txt2img_run
from modules.sampling.types import Denoise
from recipes.scenes.captions import plain_pair_caption
from recipes.scenes.forms import Mask, Pixels, best_fit, best_overlap, drawn_form, form_in
from recipes.scenes.layout import PAIR_RADII, SIZE_PX, Shape, ShapesScene, random_pair
from recipes.scenes.model import SceneModel, load_model
from recipes.scenes.palette import COLORS
from recipes.scenes.preview import decode
from recipes.scenes.scoring import MIN_PART_OVERLAP, ColorPrompt, background_color, color_prompts, shape_color
from recipes.scenes.tokens import tokenize

CHECKPOINT = Path(__file__).resolve().parent.parent / "models" / "Stable-diffusion" / "featherweight-scenes.safetensors"
STEPS = 20
COUNT = 8  # images of one shape, and of two
PAIRS_SEED = 7
RADIUS_STEP_PX = 0.5


class Guided:
    """Classifier-free guidance around a `Denoise` of twice the batch; counts its calls."""

    def __init__(self, denoise: Denoise, cfg_scale: float) -> None:
        self._denoise = denoise
        self._cfg_scale = cfg_scale
        self._uncond = torch.empty(0)
        self.calls = 0

    def __call__(self, x: Tensor, sigma: Tensor, /) -> Tensor:
        self.calls += 1
        cond, self._uncond = self._denoise(torch.cat([x, x]), torch.cat([sigma, sigma])).chunk(2)
        return self._uncond + self._cfg_scale * (cond - self._uncond)

    def uncond_denoised(self) -> Tensor:
        return self._uncond


def sample(
    model: SceneModel, context: Tensor, seeds: tuple[int, ...], spec: SamplerSpec, steps: int, cfg_scale: float
) -> tuple[list[Pixels], int]:
    """Images of the prompts of `context` [2n, 77, width], whose second half is empty prompts; and the model calls."""

    def predict(x: Tensor, t: Tensor) -> Tensor:
        noise: Tensor = model.unet(x, t, encoder_hidden_states=context).sample
        return noise

    schedule = DiscreteSchedule(model.alphas_cumprod)
    noise = ImageNoise(NoiseRequest(shape=(4, SIZE_PX // 8, SIZE_PX // 8), seeds=seeds))
    run = txt2img_run(spec, SCHEDULES.get("automatic"), steps, schedule)
    guided = Guided(denoise_for(spec, predict, schedule), cfg_scale * spec.cfg_scale_multiplier)
    first = run.start(noise.first())
    latents = run.run(guided, first, run.step_noise(noise), lambda info: None)
    images = decode(model.vae, latents / model.scale_factor).permute(0, 2, 3, 1).numpy()
    return list(images), guided.calls


def pair_scenes(count: int = COUNT, seed: int = PAIRS_SEED) -> list[ShapesScene]:
    """Scenes with two shapes, drawn once and for all from `seed`."""
    rng = Random(seed)
    return [random_pair(rng) for _ in range(count)]


def pair_overlap(image: Pixels, scene: ShapesScene) -> float:
    """The worse of the overlaps of the two shapes with their ideal forms; 0 where the background has another color."""
    if background_color(image) != scene.background:
        return 0.0
    names = list(COLORS)
    table = np.array([COLORS[name] for name in names], dtype=np.float64)
    nearest = ((image[:, :, None].astype(np.float64) - table) ** 2).sum(-1).argmin(-1)
    return min(
        best_overlap([nearest == names.index(shape.color)], [[form] for form in _forms(shape.kind, shape.size)])
        for shape in scene.shapes
    )


@cache
def _forms(kind: str, size: str) -> list[Mask]:
    low, high = PAIR_RADII[size]
    radii = np.arange(low, high + RADIUS_STEP_PX / 2, RADIUS_STEP_PX)
    middle = Shape(kind=kind, color="black", size=size, x=SIZE_PX / 2, y=SIZE_PX / 2, radius=0)
    return [drawn_form(replace(middle, radius=float(radius))) for radius in radii]


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.samplers", description=__doc__)
    parser.add_argument("--cfg-scales", type=float, nargs="+", default=[3.0, 6.0, 7.0])
    parser.add_argument("--samplers", nargs="+", default=list(SAMPLERS), choices=list(SAMPLERS), metavar="NAME")
    arguments = parser.parse_args()

    model = load_model(CHECKPOINT)
    model.unet.eval()
    model.text.eval()
    prompts, pairs = color_prompts(COUNT), pair_scenes()
    texts = [prompt.text for prompt in prompts] + [plain_pair_caption(scene) for scene in pairs]
    context = model.text(tokenize([*texts, *[""] * len(texts)])).last_hidden_state
    seeds = tuple(prompt.seed for prompt in prompts) * 2
    for cfg_scale in arguments.cfg_scales:
        for name in arguments.samplers:
            images, calls = sample(model, context, seeds, SAMPLERS.get(name), STEPS, cfg_scale)
            row = {"sampler": name, "cfg_scale": cfg_scale, "calls": calls, **scored(images, prompts, pairs)}
            print(row, flush=True)
            others = [row for row in read_result("samplers").get("rows", []) if _place(row) != (cfg_scale, name)]
            rows = sorted([*others, row], key=_place)
            write_result("samplers", {"steps": STEPS, "images_each": COUNT, "texts": texts, "rows": rows})
    head = ("sampler", "cfg_scale", "calls", "one_right", "one_overlap", "two_right", "two_overlap")
    print_table(head, [[row[key] for key in head] for row in read_result("samplers")["rows"]])


def scored(images: list[Pixels], prompts: list[ColorPrompt], pairs: list[ShapesScene]) -> dict[str, float]:
    """What of the images, first those of `prompts`, then those of `pairs`, is as asked."""
    first, rest = images[: len(prompts)], images[len(prompts) :]
    one = [
        (background_color(image), shape_color(image)) == (prompt.background, prompt.color)
        for prompt, image in zip(prompts, first, strict=True)
    ]
    forms = [
        best_fit(form_in(image), prompt.shape, prompt.size).overlap
        for prompt, image in zip(prompts, first, strict=True)
    ]
    two = [pair_overlap(image, scene) for scene, image in zip(pairs, rest, strict=True)]
    return {
        "one_right": sum(one),
        "one_overlap": round(float(np.median(forms)), 3),
        "two_right": sum(value >= MIN_PART_OVERLAP for value in two),
        "two_overlap": round(float(np.median(two)), 3),
    }


def _place(row: dict[str, Any]) -> tuple[float, str]:
    return float(row["cfg_scale"]), str(row["sampler"])


if __name__ == "__main__":
    main()
