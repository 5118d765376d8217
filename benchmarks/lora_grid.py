"""The two example LoRAs on the bundled model, alone and together, in 16 bit and in two 8-bit formats: for the eye.

Run `python -m benchmarks.lora_grid [--output docs/images/lora-grid.png]`. The rows of a prompt are the precisions, the
columns are base, style, object, both; every image has the same seed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from lib_training.preview import PreviewRenderer, PreviewSample
from modules.settings.values import Settings
from recipes.loras.example import CONFIGS, LORAS, SHIPPED
from recipes.scenes.layout import SIZE_PX

ROOT = Path(__file__).resolve().parent.parent
STYLE, OBJECT = "<lora:blueprint:1>", "<lora:balloon:1>"
COLUMNS = (
    ("base", "", ""),
    ("style", STYLE, ", blueprint"),
    ("object", OBJECT, ""),
    ("both", STYLE + OBJECT, ", blueprint"),
)
ROWS: tuple[tuple[str, dict[str, str]], ...] = (
    ("16 bit", {}),
    ("fp8 row", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn_row"}),
    ("fp8 plain", {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"}),
)
PROMPTS = ("a red balloon on a white background", "a large yellow heart on a purple background")
SEED, STEPS = 7, 20
MARGIN_PX, HEAD_PX, GAP_PX = 66, 18, 4


def draw_grid(renderer: PreviewRenderer, prompts: Sequence[str], seed: int) -> dict[tuple[str, str, str], Image.Image]:
    """The images by prompt, precision and column. One precision after the other: each loads the model once."""
    images = {}
    for row, changes in ROWS:
        settings = Settings().with_changes(changes)
        for prompt in prompts:
            for column, tags, word in COLUMNS:
                text = f"{prompt}{word} {tags}"
                drawing = PreviewSample(prompt=text, seed=seed, side_px=SIZE_PX, steps=STEPS, settings=settings)
                images[prompt, row, column] = renderer.draw(drawing)
    return images


def as_sheet(images: dict[tuple[str, str, str], Image.Image], prompts: Sequence[str]) -> Image.Image:
    """All images with the names of rows and columns; two prompts stand side by side."""
    step = SIZE_PX + GAP_PX
    block = (MARGIN_PX + len(COLUMNS) * step, 2 * HEAD_PX + len(ROWS) * step)
    sheet = Image.new("RGB", (2 * block[0], -(-len(prompts) // 2) * block[1]), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, prompt in enumerate(prompts):
        left, top = number % 2 * block[0], number // 2 * block[1]
        pen.text((left + MARGIN_PX, top + 1), prompt, fill="black", font=font)
        for i, (column, _, _) in enumerate(COLUMNS):
            pen.text((left + MARGIN_PX + i * step, top + HEAD_PX), column, fill="gray", font=font)
        for j, (row, _) in enumerate(ROWS):
            y = top + 2 * HEAD_PX + j * step
            pen.text((left + 4, y + SIZE_PX // 2), row, fill="gray", font=font)
            for i, (column, _, _) in enumerate(COLUMNS):
                sheet.paste(images[prompt, row, column], (left + MARGIN_PX + i * step, y))
    return sheet


def levels_apart(one: Image.Image, other: Image.Image) -> float:
    """The mean difference of two images in levels of 255."""
    return float(np.abs(np.asarray(one).astype(np.int32) - np.asarray(other).astype(np.int32)).mean())


def main() -> None:
    """Draw, write, and say how far apart the images are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lora_grid", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images" / "lora-grid.png")
    parser.add_argument("--loras", type=Path, default=LORAS)
    parser.add_argument("--seed", type=int, default=SEED)
    arguments = parser.parse_args()
    renderer = PreviewRenderer(SHIPPED, arguments.loras, CONFIGS, torch.device("cpu"))
    images = draw_grid(renderer, PROMPTS, arguments.seed)
    renderer.close()
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    as_sheet(images, PROMPTS).save(arguments.output)
    for column, _, _ in COLUMNS:
        changed = np.mean([levels_apart(images[p, "16 bit", column], images[p, "16 bit", "base"]) for p in PROMPTS])
        line = f"{column:8} changes the 16-bit image by {changed:5.1f} levels"
        for row, _ in ROWS[1:]:
            apart = np.mean([levels_apart(images[p, row, column], images[p, "16 bit", column]) for p in PROMPTS])
            line += f"; {row} is {apart:4.1f} from 16 bit"
        print(line)


if __name__ == "__main__":
    main()
