"""A style: every scene as a white drawing of its edges on blue paper."""

from random import Random

import numpy as np
from PIL import Image, ImageFilter

from recipes.loras.example import EXAMPLES, CaptionedImage, Example
from recipes.scenes.captions import describe
from recipes.scenes.images import draw
from recipes.scenes.layout import random_scene
from recipes.scenes.palette import Rgb

WORD = "blueprint"
PAPER: Rgb = (25, 70, 160)
LINE: Rgb = (245, 245, 245)
EDGE = 40  # the sum of differences in red, green and blue from which two pixels are apart
LINE_PX = 5
WORDINGS = 4


def as_blueprint(image: Image.Image) -> Image.Image:
    """The edges of an RGB image, `LINE_PX` wide, on plain paper; lines at the image's border are left out."""
    values = np.asarray(image).astype(np.int32)
    edges = np.zeros(values.shape[:2], dtype=bool)
    right, below = (np.abs(np.diff(values, axis=axis)).sum(axis=-1) > EDGE for axis in (1, 0))
    edges[:, :-1] |= right
    edges[:-1, :] |= below
    mask = Image.fromarray(edges.astype(np.uint8) * 255).filter(ImageFilter.MaxFilter(LINE_PX))
    paper = Image.new("RGB", image.size, PAPER)
    paper.paste(LINE, mask=mask.filter(ImageFilter.GaussianBlur(0.7)))
    return paper


def draw_blueprint(rng: Random) -> CaptionedImage:
    """A scene of the bundled model in this style, with its own captions and the style's word."""
    scene = random_scene(rng)
    captions = tuple(f"{describe(scene, rng)}, {WORD}" for _ in range(WORDINGS))
    return CaptionedImage(as_blueprint(draw(scene)), captions)


EXAMPLES.add(
    "blueprint",
    Example(
        draw=draw_blueprint,
        description="Everything as white lines on blue paper.",
        activation=WORD,
        images=512,
        preset="style",
        preview_prompt="a large star on a red background, blueprint",
        changes={
            "adapter": {"rank": 8, "conv_rank": 4, "text_rank": 4},
            "training": {"steps": 400, "batch": 12, "learning_rate": 2e-3, "text_learning_rate": 1e-3},
            "loss": {"noise_offset": 0.1},
        },
    ),
)
