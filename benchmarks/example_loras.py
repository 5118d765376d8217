"""How often the example LoRAs draw what they are for: of twelve images each, with seeds and prompts that are fixed.

Run `python -m benchmarks.example_loras [FOLDER ...]`: the shipped files, and folders with a `blueprint.safetensors` or
a `balloon.safetensors` of your own (`launch.py lora example NAME` makes them). A blueprint has paper of its blue at the
border and white lines; a balloon lies on the background that was asked for, in its color, wider above than below.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.report import print_table, write_result
from lib_training.preview import PreviewRenderer, PreviewSample
from recipes.loras.blueprint import PAPER
from recipes.loras.example import CONFIGS, LORAS, SHIPPED
from recipes.scenes.palette import COLORS
from recipes.scenes.scoring import background_color

SEEDS = (1, 2, 3)
SIDE_PX = 128
STEPS = 10
BORDER_PX = 6
SCENES = (
    "a large yellow circle on a red background",
    "a small blue star on a green background",
    "a white square on a black background",
    "sea at sunset with a sailboat",
)
BALLOONS = (("red", "white"), ("green", "pink"), ("blue", "yellow"), ("yellow", "black"))
Pixels = npt.NDArray[np.int32]  # [H, W, 3] in 0 to 255


def is_blueprint(image: Pixels) -> bool:
    """Whether the border is blue paper, and a part of the image white lines."""
    paper = np.median(image[:BORDER_PX].reshape(-1, 3), axis=0)
    lines = float((image.min(-1) > 170).mean())
    return bool(np.abs(paper - np.array(PAPER)).max() < 45) and 0.01 < lines < 0.3


def is_balloon(image: Pixels, color: str, background: str) -> bool:
    """Whether something large of the color, wider above its middle than below, is on the background."""
    near = np.abs(image - np.array(COLORS[color])).max(-1) < 60
    rows, columns = np.nonzero(near)
    if near.mean() <= 0.08 or background_color(image.astype(np.uint8)) != background:
        return False
    middle = int(np.median(rows))
    above, below = near[rows.min() : middle].any(0).sum(), near[middle : rows.max()].any(0).sum()
    return bool(above >= below) and int(columns.max() - columns.min()) > 40


def right_in(folder: Path) -> dict[str, int]:
    """For each example that the folder has, how many of its twelve images are right."""
    renderer = PreviewRenderer(SHIPPED, folder, CONFIGS, torch.device("cpu"))

    def drawn(prompt: str, seed: int) -> Pixels:
        sample = PreviewSample(prompt=prompt, seed=seed, side_px=SIDE_PX, steps=STEPS)
        return np.asarray(renderer.draw(sample)).astype(np.int32)

    found = {}
    if (folder / "blueprint.safetensors").is_file():
        prompts = [f"{scene}, blueprint <lora:blueprint:1>" for scene in SCENES]
        found["blueprint"] = sum(is_blueprint(drawn(prompt, seed)) for prompt in prompts for seed in SEEDS)
    if (folder / "balloon.safetensors").is_file():
        found["balloon"] = sum(
            is_balloon(drawn(f"a {color} balloon on a {ground} background <lora:balloon:1>", seed), color, ground)
            for color, ground in BALLOONS
            for seed in SEEDS
        )
    renderer.close()
    return found


def main() -> None:
    """Draw, count, print, write."""
    folders = {"shipped": LORAS, **{Path(name).name: Path(name) for name in sys.argv[1:]}}
    results = {name: right_in(folder) for name, folder in folders.items()}
    rows = [(name, example, f"{count} of 12") for name, found in results.items() for example, count in found.items()]
    print_table(("files", "example", "right"), rows)
    write_result("example_loras", {"steps": STEPS, "side_px": SIDE_PX, "right_of_12": results})


if __name__ == "__main__":
    main()
