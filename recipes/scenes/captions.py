"""Words for a scene. One scene has several right captions; training sees them all, so prompts need no exact wording."""

from random import Random

from recipes.scenes.layout import House, Landscape, Scene, Shape, ShapesScene

_TIMES = {
    "day": ("by day", "at day", "during the day"),
    "sunset": ("at sunset",),
    "night": ("at night",),
}


def describe(scene: Scene, rng: Random) -> str:
    """A caption of `scene`; which wording is taken is drawn from `rng`."""
    return _describe_shapes(scene, rng) if isinstance(scene, ShapesScene) else _describe_landscape(scene, rng)


def plain_caption(size: str, color: str, shape: str, background: str) -> str:
    """The standard wording: "a [size] [color] [shape] on a [color] background" (`size` may be empty)."""
    thing = " ".join(word for word in (size, color, shape) if word)
    return f"{_article(thing)} {thing} on {_article(background)} {background} background"


def plain_pair_caption(scene: ShapesScene) -> str:
    """The same for two shapes: "a [size] [color] [shape] and a [size] [color] [shape] on a [color] background"."""
    things = (" ".join(word for word in (one.size, one.color, one.kind) if word) for one in scene.shapes)
    shapes = " and ".join(f"{_article(thing)} {thing}" for thing in things)
    return f"{shapes} on {_article(scene.background)} {scene.background} background"


def _article(words: str) -> str:
    return "an" if words[0] in "aeiou" else "a"


def _loose_article(words: str, rng: Random) -> str:
    """Mostly right, sometimes plain "a", as people and form letters write it."""
    return _article(words) if rng.random() < 0.6 else "a"


def _describe_shape(shape: Shape, rng: Random) -> str:
    thing = " ".join(word for word in (shape.size, shape.color, shape.kind) if word)
    return f"{_loose_article(thing, rng)} {thing}"


def _describe_shapes(scene: ShapesScene, rng: Random) -> str:
    things = " and ".join(_describe_shape(shape, rng) for shape in scene.shapes)
    background = scene.background
    wording = rng.random()
    if wording < 0.72:
        return f"{things} on {_loose_article(background, rng)} {background} background"
    if wording < 0.92:
        return f"{things}, {background} background"
    return f"{things} on {background}"


def _describe_house(house: House, rng: Random) -> str:
    body = f"{_loose_article(house.color, rng)} {house.color} house"
    return f"{body} with {_loose_article(house.roof, rng)} {house.roof} roof"


def _describe_landscape(scene: Landscape, rng: Random) -> str:
    parts = []
    if scene.house is not None:
        parts.append(_describe_house(scene.house, rng))
    if scene.sailboat is not None:
        parts.append("a sailboat")
    if scene.peaks:
        parts.append("mountains")
    if scene.trees:
        parts.append("trees")
    if scene.sky_body is not None:
        body = "moon" if scene.time == "night" else "sun"
        parts.append(rng.choice((body, f"the {body}")))
    if rng.random() < 0.3:
        rng.shuffle(parts)
    place = f"{rng.choice(('', '', 'the ' if scene.land in ('sea', 'snow') else 'a '))}{scene.land}"
    start = f"{place} {rng.choice(_TIMES[scene.time])}"
    if not parts:
        return start
    if len(parts) > 1 and rng.random() < 0.5:
        parts[-2:] = [f"{parts[-2]} and {parts[-1]}"]
    return f"{start} with {', '.join(parts)}"
