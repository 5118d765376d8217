"""The test of the control net: 32 edge images with prompts for colors, and whether an image has the form and both."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from recipes.scenes.captions import plain_caption
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, Shape, ShapesScene, random_single
from recipes.scenes.palette import COLORS
from recipes.scenes.scoring import background_color, shape_color

CASES = 32
MIN_OVERLAP = 0.7
BORDER_PX = 6


@dataclass(frozen=True)
class ControlCase:
    """One case: `scene` is what the edges are of, the prompt names other colors and no form."""

    scene: ShapesScene
    color: str
    background: str
    seed: int

    @property
    def prompt(self) -> str:
        return plain_caption("", self.color, "shape", self.background)

    @property
    def shape(self) -> Shape:
        return self.scene.shapes[0]

    def control_image(self) -> Image.Image:
        """What the preprocessor is given: the scene in its own colors."""
        return draw(self.scene)


def control_cases(count: int = CASES, seed: int = 4242) -> list[ControlCase]:
    """Every form equally often, sizes, places and colors drawn once and for all from `seed`."""
    rng = Random(seed)
    cases = []
    for number in range(count):
        scene = random_single(rng)
        shape = replace(scene.shapes[0], kind=SHAPES[number % len(SHAPES)])
        color, background = rng.sample(list(COLORS), 2)
        cases.append(ControlCase(replace(scene, shapes=(shape,)), color, background, 3000 + number))
    return cases


def drawn_form(shape: Shape) -> NDArray[np.bool_]:
    """Where a shape is, [128, 128]."""
    black = replace(shape, color="black")
    found: NDArray[np.bool_] = np.asarray(draw(ShapesScene(background="white", shapes=(black,))).convert("L")) < 128
    return found


def form_in(image: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """What stands out of the background, [height, width]: nearer to the middle color of what is far from it."""
    border = np.ones(image.shape[:2], dtype=bool)
    border[BORDER_PX:-BORDER_PX, BORDER_PX:-BORDER_PX] = False
    values = image.astype(np.float64)
    background = np.median(values[border], axis=0)
    distance = np.linalg.norm(values - background, axis=2)
    far: NDArray[np.bool_] = distance >= max(30.0, 0.6 * float(np.percentile(distance, 98)))
    if not far.any():
        return far
    color = np.median(values[far], axis=0)
    found: NDArray[np.bool_] = np.linalg.norm(values - color, axis=2) < distance
    return found


def overlap(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> float:
    """Intersection over union."""
    union = int((first | second).sum())
    return int((first & second).sum()) / union if union else 0.0


def judged(case: ControlCase, image: Image.Image) -> dict[str, Any]:
    """Whether an image has the form of the edges and the colors of the prompt. The form is right where it overlaps that
    of the edges by `MIN_OVERLAP`, and more than any other form of the same size and place would."""
    pixels = np.asarray(image.convert("RGB"))
    found = form_in(pixels)
    overlaps = {kind: overlap(found, drawn_form(replace(case.shape, kind=kind))) for kind in SHAPES}
    own = overlaps[case.shape.kind]
    return {
        "overlap": round(own, 3),
        "form": own >= MIN_OVERLAP and own == max(overlaps.values()),
        "colors": background_color(pixels) == case.background and shape_color(pixels) == case.color,
    }
