"""An object that the bundled model has never seen: a hot-air balloon, over plain colors and landscapes."""

from dataclasses import replace
from math import sqrt
from random import Random

from PIL import Image, ImageDraw

from recipes.loras.example import EXAMPLES, CaptionedImage, Example
from recipes.scenes.captions import describe
from recipes.scenes.images import draw
from recipes.scenes.layout import SIZE_PX, Landscape, ShapesScene, random_landscape, random_scene
from recipes.scenes.palette import COLORS, DOOR, WOOD, Rgb

WORD = "balloon"
SCALE = 4
WORDINGS = 4
ORDINARY_SHARE = 0.2  # of the images show no balloon, so that the rest of the model stays as it is
LANDSCAPE_SHARE = 0.4
SHOULDER = 0.35  # below this height, in radii, the envelope narrows
MOUTH = 1.25  # and here it ends


def draw_balloon(image: Image.Image, color: Rgb, stripe: Rgb, x: float, y: float, radius: float) -> Image.Image:
    """`image` with a balloon whose envelope has its centre at (x, y), in pixels; the basket ends 1.85 radii below."""
    layer = Image.new("RGBA", (SIZE_PX * SCALE, SIZE_PX * SCALE), (0, 0, 0, 0))
    pen = ImageDraw.Draw(layer)
    heights = [-1 + (1 + MOUTH) * i / 80 for i in range(81)]
    for left, right, fill in ((-1.0, -0.38, color), (-0.38, 0.38, stripe), (0.38, 1.0, color)):
        outline = [(x + left * _half_width(t) * radius, y + t * radius) for t in heights]
        outline += [(x + right * _half_width(t) * radius, y + t * radius) for t in reversed(heights)]
        pen.polygon([(px * SCALE, py * SCALE) for px, py in outline], fill=fill)
    for side in (-1, 1):
        rope = (x + side * 0.2 * radius, y + 1.2 * radius, x + side * 0.2 * radius, y + 1.45 * radius)
        pen.line([value * SCALE for value in rope], fill=DOOR, width=6)
    basket = (x - 0.26 * radius, y + 1.42 * radius, x + 0.26 * radius, y + 1.85 * radius)
    pen.rectangle([value * SCALE for value in basket], fill=WOOD)
    small = layer.resize((SIZE_PX, SIZE_PX), Image.Resampling.LANCZOS)
    return Image.alpha_composite(image.convert("RGBA"), small).convert("RGB")


def draw_scene_with_balloon(rng: Random) -> CaptionedImage:
    """A balloon before a plain background or in a landscape's sky; now and then an ordinary scene without one."""
    if rng.random() < ORDINARY_SHARE:
        scene = random_scene(rng)
        return CaptionedImage(draw(scene), tuple(describe(scene, rng) for _ in range(WORDINGS)))
    if rng.random() < LANDSCAPE_SHARE:
        return _over_landscape(rng)
    return _over_color(rng)


def _half_width(height: float) -> float:
    """Of the envelope, in radii, at a height in radii from -1 (top) to `MOUTH`: round above, straight below."""
    if height < SHOULDER:
        return sqrt(max(0.0, 1 - height * height))
    return sqrt(1 - SHOULDER**2) * (1 - 0.75 * (height - SHOULDER) / (MOUTH - SHOULDER))


def _over_color(rng: Random) -> CaptionedImage:
    background, color = rng.sample(list(COLORS), 2)
    radius = rng.uniform(29, 36)
    x, y = SIZE_PX / 2 + rng.uniform(-12, 12), 64 - 0.42 * radius + rng.uniform(-6, 6)
    plain = draw(ShapesScene(background=background, shapes=()))
    image = draw_balloon(plain, COLORS[color], _stripe(color), x, y, radius)
    endings = (f" on a {background} background", f", {background} background", f" on a {background} background")
    return CaptionedImage(image, tuple(f"a {color} {WORD}{ending}" for ending in endings))


def _over_landscape(rng: Random) -> CaptionedImage:
    land = _with_free_sky(random_landscape(rng), rng)
    color = rng.choice([name for name in COLORS if name not in ("black", "brown")])
    radius = rng.uniform(23, 28)
    x, y = rng.uniform(36, 92), radius + rng.uniform(4, 10)
    image = draw_balloon(draw(land), COLORS[color], _stripe(color), x, y, radius)
    captions = []
    for _ in range(WORDINGS):
        place = describe(land, rng)
        captions.append(f"{place} and a {color} {WORD}" if " with " in place else f"{place} with a {color} {WORD}")
    return CaptionedImage(image, tuple(captions))


def _with_free_sky(land: Landscape, rng: Random) -> Landscape:
    """Mostly nothing but the land: where the balloon flies there is no sun behind it."""
    keeps = rng.random() < 0.3
    return replace(
        land,
        sky_body=None,
        house=None,
        peaks=land.peaks if keeps else (),
        trees=land.trees if keeps else (),
        sailboat=land.sailboat if keeps else None,
    )


def _stripe(color: str) -> Rgb:
    return COLORS["red"] if color in ("white", "gray") else COLORS["white"]


EXAMPLES.add(
    "balloon",
    Example(
        draw=draw_scene_with_balloon,
        description="A hot-air balloon in any color: over a plain background, or in the sky of a landscape.",
        activation=WORD,
        images=512,
        preset="concept",
        preview_prompt="a red balloon on a white background",
        changes={
            "adapter": {"rank": 8, "conv_rank": 4, "text_rank": 8},
            "training": {"steps": 200, "batch": 8, "learning_rate": 1.5e-3, "text_learning_rate": 7.5e-4},
            "loss": {"noise_offset": 0.1},
        },
        preview_seed=2,
    ),
)
