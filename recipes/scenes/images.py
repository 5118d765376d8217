"""Draws scenes with Pillow: at three times the size, then reduced with Lanczos, so that edges are smooth."""

from math import cos, pi, sin

from PIL import Image, ImageDraw

from recipes.scenes.layout import SIZE_PX, House, Landscape, Scene, Shape, ShapesScene
from recipes.scenes.palette import (
    COLORS,
    DOOR,
    LANDS,
    LEAVES,
    MOON,
    MOUNTAIN,
    SAIL,
    SKIES,
    STARLIGHT,
    SUN,
    WOOD,
    Rgb,
)

SCALE = 3
Point = tuple[float, float]


class _Canvas:
    """A drawing surface addressed in pixels of the final image."""

    def __init__(self, color: Rgb) -> None:
        self._image = Image.new("RGB", (SIZE_PX * SCALE, SIZE_PX * SCALE), color)
        self._draw = ImageDraw.Draw(self._image)

    def polygon(self, points: list[Point], color: Rgb) -> None:
        self._draw.polygon([(x * SCALE, y * SCALE) for x, y in points], fill=color)

    def rectangle(self, left: float, top: float, right: float, bottom: float, color: Rgb) -> None:
        self._draw.rectangle((left * SCALE, top * SCALE, right * SCALE, bottom * SCALE), fill=color)

    def circle(self, x: float, y: float, radius: float, color: Rgb) -> None:
        box = ((x - radius) * SCALE, (y - radius) * SCALE, (x + radius) * SCALE, (y + radius) * SCALE)
        self._draw.ellipse(box, fill=color)

    def finished(self) -> Image.Image:
        return self._image.resize((SIZE_PX, SIZE_PX), Image.Resampling.LANCZOS)


def draw(scene: Scene) -> Image.Image:
    """The 128x128 RGB image of `scene`; the same scene gives the same pixels."""
    if isinstance(scene, ShapesScene):
        background = COLORS[scene.background]
        canvas = _Canvas(background)
        for shape in scene.shapes:
            _draw_shape(canvas, shape, background)
    else:
        canvas = _Canvas(SKIES[scene.time])
        _draw_landscape(canvas, scene)
    return canvas.finished()


def _draw_shape(canvas: _Canvas, shape: Shape, background: Rgb) -> None:
    color, x, y, r = COLORS[shape.color], shape.x, shape.y, shape.radius
    if shape.kind in ("circle", "ring"):
        canvas.circle(x, y, r, color)
        if shape.kind == "ring":
            canvas.circle(x, y, 0.65 * r, background)
    elif shape.kind == "cross":
        canvas.rectangle(x - r, y - 0.36 * r, x + r, y + 0.36 * r, color)
        canvas.rectangle(x - 0.36 * r, y - r, x + 0.36 * r, y + r, color)
    else:
        canvas.polygon([(x + r * dx, y + r * dy) for dx, dy in _OUTLINES[shape.kind]], color)


def _corners(count: int, radius: float = 1.0, turn: float = 0.0) -> list[Point]:
    """Corners of a regular polygon, the first on top when `turn` (in radians) is 0."""
    angles = [turn + 2 * pi * i / count for i in range(count)]
    return [(radius * sin(angle), -radius * cos(angle)) for angle in angles]


def _star() -> list[Point]:
    outer, inner = _corners(5), _corners(5, radius=0.42, turn=pi / 5)
    return [point for pair in zip(outer, inner, strict=True) for point in pair]


def _heart() -> list[Point]:
    angles = [2 * pi * i / 60 for i in range(60)]
    return [(sin(t) ** 3, -(13 * cos(t) - 5 * cos(2 * t) - 2 * cos(3 * t) - cos(4 * t)) / 16 - 0.15) for t in angles]


_OUTLINES: dict[str, list[Point]] = {
    "square": [(-0.82, -0.82), (0.82, -0.82), (0.82, 0.82), (-0.82, 0.82)],
    "triangle": _corners(3),
    "star": _star(),
    "heart": _heart(),
    "diamond": [(0, -1), (0.72, 0), (0, 1), (-0.72, 0)],
}


def _draw_landscape(canvas: _Canvas, scene: Landscape) -> None:
    for x, y in scene.stars:
        canvas.circle(x, y, 0.7, STARLIGHT)
    if scene.sky_body is not None:
        x, y = scene.sky_body
        canvas.circle(x, y, 8.5 if scene.time == "night" else 11, MOON if scene.time == "night" else SUN)
    for x, y, half in scene.peaks:
        canvas.polygon([(x, y), (x + half, scene.horizon), (x - half, scene.horizon)], MOUNTAIN)
    canvas.rectangle(0, scene.horizon, SIZE_PX, SIZE_PX, LANDS[scene.land])
    if scene.house is not None:
        _draw_house(canvas, scene.house)
    for x, y, height in scene.trees:
        _draw_tree(canvas, x, y, height)
    if scene.sailboat is not None:
        _draw_sailboat(canvas, *scene.sailboat)


def _draw_house(canvas: _Canvas, house: House) -> None:
    half, top = house.width / 2, house.base - 0.7 * house.width
    canvas.rectangle(house.x - half, top, house.x + half, house.base, COLORS[house.color])
    roof = [(house.x - half - 4, top), (house.x + half + 4, top), (house.x, top - 0.5 * house.width)]
    canvas.polygon(roof, COLORS[house.roof])
    canvas.rectangle(house.x - 4, house.base - 12, house.x + 4, house.base, DOOR)


def _draw_tree(canvas: _Canvas, x: float, y: float, height: float) -> None:
    canvas.rectangle(x - 2, y - 0.3 * height, x + 2, y, WOOD)
    for bottom, top, half in ((0.2, 0.75, 0.3), (0.5, 1.0, 0.24)):
        triangle = [(x - half * height, y - bottom * height), (x + half * height, y - bottom * height)]
        canvas.polygon([*triangle, (x, y - top * height)], LEAVES)


def _draw_sailboat(canvas: _Canvas, x: float, y: float) -> None:
    canvas.polygon([(x - 15, y - 8), (x + 15, y - 8), (x + 10, y), (x - 10, y)], WOOD)
    canvas.polygon([(x + 1, y - 34), (x + 1, y - 10), (x + 15, y - 10)], SAIL)
