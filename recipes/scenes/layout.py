"""What is in an image and where, before it is drawn or described: drawn at random from a seed.

Coordinates are pixels of a 128x128 image, y downward.
"""

from dataclasses import dataclass
from random import Random

from recipes.scenes.palette import COLORS

SIZE_PX = 128
SHAPES = ("circle", "square", "triangle", "star", "heart", "diamond", "ring", "cross")
SIZES = ("small", "", "large")  # "" is the plain size, which a caption does not mention
HOUSE_COLORS = ("red", "blue", "white", "yellow", "orange", "pink", "brown", "purple", "gray")
ROOF_COLORS = ("red", "blue", "black", "brown", "purple", "green", "orange", "gray")

SINGLE_SHARE = 0.62  # of all images show one shape
PAIR_SHARE = 0.10  # show two shapes; the rest are landscapes

SINGLE_RADII = {"small": (19.5, 22.5), "": (30.5, 35.0), "large": (42.5, 46.0)}
PAIR_RADII = {"small": (16.0, 18.5), "": (24.0, 27.5)}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """One shape: `radius` is that of the circle around it."""

    kind: str
    color: str
    size: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True, kw_only=True)
class ShapesScene:
    """One or two shapes, left to right, on a plain background of another color."""

    background: str
    shapes: tuple[Shape, ...]


@dataclass(frozen=True, kw_only=True)
class House:
    """A house whose body stands on `base`, with a roof of another color."""

    color: str
    roof: str
    x: float
    base: float
    width: float


@dataclass(frozen=True, kw_only=True)
class Landscape:
    """A landscape: `land` under a sky at `time`, and what stands in it (None or empty: not there)."""

    land: str
    time: str
    horizon: float
    sky_body: tuple[float, float] | None = None  # centre of the sun, or at night of the moon
    stars: tuple[tuple[float, float], ...] = ()
    peaks: tuple[tuple[float, float, float], ...] = ()  # x, y of the peak, half width of the foot
    trees: tuple[tuple[float, float, float], ...] = ()  # x, y of the foot, height
    house: House | None = None
    sailboat: tuple[float, float] | None = None  # x, y of the waterline


Scene = ShapesScene | Landscape


def random_scene(rng: Random) -> Scene:
    """A scene of the training mixture: mostly one shape, some pairs, some landscapes."""
    share = rng.random()
    if share < SINGLE_SHARE:
        return random_single(rng)
    if share < SINGLE_SHARE + PAIR_SHARE:
        return random_pair(rng)
    return random_landscape(rng)


def random_single(rng: Random) -> ShapesScene:
    """One shape near the middle."""
    background, color = rng.sample(list(COLORS), 2)
    size = rng.choice(SIZES)
    radius = rng.uniform(*SINGLE_RADII[size])
    reach = min(15.0, 61.0 - radius)
    centre = SIZE_PX / 2
    x, y = centre + rng.uniform(-reach, reach), centre + rng.uniform(-reach, reach)
    shape = Shape(kind=rng.choice(SHAPES), color=color, size=size, x=x, y=y, radius=radius)
    return ShapesScene(background=background, shapes=(shape,))


def random_pair(rng: Random) -> ShapesScene:
    """Two shapes of different kind or color, one in each half."""
    background, left, right = rng.sample(list(COLORS), 3)
    shapes = []
    for color, middle in ((left, 36.0), (right, 92.0)):
        size = rng.choice(("small", ""))
        radius = rng.uniform(*PAIR_RADII[size])
        x, y = middle + rng.uniform(-5, 5), 60 + rng.uniform(-10, 14)
        shapes.append(Shape(kind=rng.choice(SHAPES), color=color, size=size, x=x, y=y, radius=radius))
    return ShapesScene(background=background, shapes=tuple(shapes))


def random_landscape(rng: Random) -> Landscape:
    """A landscape; trees and a house stand on land only, a sailboat at sea only."""
    land = rng.choice(("sea", "meadow", "desert", "snow"))
    time = rng.choice(("day", "sunset", "night"))
    horizon = rng.uniform(76, 92)
    on_land = land != "sea"
    return Landscape(
        land=land,
        time=time,
        horizon=horizon,
        sky_body=(rng.uniform(20, 108), rng.uniform(18, 38)) if rng.random() < 0.8 else None,
        stars=_random_stars(rng, horizon) if time == "night" else (),
        peaks=_random_peaks(rng, horizon) if rng.random() < 0.35 else (),
        trees=_random_trees(rng, horizon) if on_land and rng.random() < 0.4 else (),
        house=_random_house(rng, horizon) if on_land and rng.random() < 0.45 else None,
        sailboat=(rng.uniform(28, 100), horizon + rng.uniform(12, 20)) if not on_land and rng.random() < 0.55 else None,
    )


def _random_stars(rng: Random, horizon: float) -> tuple[tuple[float, float], ...]:
    return tuple((rng.uniform(0, SIZE_PX), rng.uniform(0, horizon - 3)) for _ in range(36))


def _random_peaks(rng: Random, horizon: float) -> tuple[tuple[float, float, float], ...]:
    count = rng.randint(2, 3)
    step = SIZE_PX / count
    return tuple(
        (step * (i + rng.uniform(0.25, 0.75)), horizon - rng.uniform(30, 46), rng.uniform(32, 50)) for i in range(count)
    )


def _random_trees(rng: Random, horizon: float) -> tuple[tuple[float, float, float], ...]:
    count = rng.randint(2, 4)
    trees = [(rng.uniform(12, 116), horizon + rng.uniform(5, 20), rng.uniform(26, 36)) for _ in range(count)]
    return tuple(sorted(trees, key=lambda tree: tree[1]))


def _random_house(rng: Random, horizon: float) -> House:
    color = rng.choice(HOUSE_COLORS)
    roof = rng.choice([name for name in ROOF_COLORS if name != color])
    return House(
        color=color, roof=roof, x=rng.uniform(30, 98), base=horizon + rng.uniform(10, 18), width=rng.uniform(32, 38)
    )
