"""The test of the control net: 32 edge images with prompts for colors, and whether an image has the form and both."""

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
from PIL import Image

from recipes.scenes.captions import plain_caption
from recipes.scenes.forms import drawn_form, form_in, overlap
from recipes.scenes.images import draw
from recipes.scenes.layout import SHAPES, Shape, ShapesScene, random_single
from recipes.scenes.palette import COLORS
from recipes.scenes.scoring import background_color, shape_color

CASES = 32
MIN_OVERLAP = 0.7


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
