"""Captioned images: the same from the same seed, and captions that say what is drawn."""

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

from recipes.scenes.captions import describe, plain_caption, plain_pair_caption
from recipes.scenes.images import draw
from recipes.scenes.layout import (
    SHAPES,
    SIZE_PX,
    House,
    Landscape,
    Shape,
    ShapesScene,
    random_landscape,
    random_pair,
    random_single,
)
from recipes.scenes.palette import COLORS, LANDS, SKIES, nearest_color
from recipes.scenes.pool import scene_of_seed
from recipes.scenes.scoring import LANDSCAPE_PROMPTS, background_color, color_prompts, seen_in_landscape, shape_color


def test_drawing_is_deterministic_by_seed() -> None:
    first, captions = scene_of_seed(7)
    again, captions_again = scene_of_seed(7)
    assert captions == captions_again
    assert draw(first).tobytes() == draw(again).tobytes()
    assert draw(scene_of_seed(8)[0]).tobytes() != draw(first).tobytes()


@pytest.mark.parametrize("kind", SHAPES)
def test_shape_has_its_color_and_the_corners_the_background(kind: str) -> None:
    shape = Shape(kind=kind, color="red", size="", x=64, y=64, radius=32)
    pixels = np.asarray(draw(ShapesScene(background="cyan", shapes=(shape,))))
    assert tuple(pixels[2, 2]) == COLORS["cyan"]
    assert tuple(pixels[64, 64 + (26 if kind == "ring" else 0)]) == COLORS["red"]
    assert background_color(pixels) == "cyan"
    assert shape_color(pixels) == "red"


@pytest.mark.parametrize("seed", range(12))
def test_captions_of_shapes_name_what_the_pixels_show(seed: int) -> None:
    rng = Random(seed)
    scene = random_single(rng)
    words = describe(scene, rng).replace(",", "").split()
    pixels = np.asarray(draw(scene))
    assert scene.shapes[0].kind in words
    assert {background_color(pixels), shape_color(pixels)} == {word for word in words if word in COLORS}


def test_pair_keeps_left_to_right() -> None:
    rng = Random(3)
    scene = random_pair(rng)
    left, right = scene.shapes
    caption = describe(scene, rng)
    assert left.x < right.x
    assert caption.index(f"{left.color} {left.kind}") < caption.index(f"{right.color} {right.kind}")


@pytest.mark.parametrize("seed", range(12))
def test_landscape_caption_matches_sky_and_land(seed: int) -> None:
    rng = Random(seed)
    scene = random_landscape(rng)
    caption = describe(scene, rng)
    pixels = np.asarray(draw(scene))
    assert scene.land in caption
    assert scene.time in caption
    assert tuple(pixels[SIZE_PX - 2, 2]) == LANDS[scene.land]
    assert tuple(np.median(pixels[:12].reshape(-1, 3), axis=0)) == SKIES[scene.time]
    assert ("sailboat" in caption) == (scene.sailboat is not None)
    assert ("house" in caption) == (scene.house is not None)


def test_nothing_stands_in_a_bare_landscape() -> None:
    caption = describe(Landscape(land="sea", time="night", horizon=80), Random(0))
    assert caption in {f"{place}sea at night" for place in ("", "the ")}


def test_plain_caption_leaves_out_the_plain_size() -> None:
    assert plain_caption("", "red", "circle", "blue") == "a red circle on a blue background"
    assert plain_caption("", "orange", "star", "blue") == "an orange star on a blue background"
    assert plain_caption("large", "orange", "star", "orange") == "a large orange star on an orange background"


def test_plain_caption_of_two_shapes() -> None:
    star = Shape(kind="star", color="green", size="", x=36, y=60, radius=25)
    heart = Shape(kind="heart", color="orange", size="small", x=92, y=60, radius=17)
    scene = ShapesScene(background="gray", shapes=(star, heart))
    assert plain_pair_caption(scene) == "a green star and a small orange heart on a gray background"


def test_color_prompts_are_fixed_and_cover_all_shapes() -> None:
    prompts = color_prompts()
    assert prompts == color_prompts()
    assert len(prompts) == 96
    assert {prompt.shape for prompt in prompts} == set(SHAPES)
    assert all(prompt.color != prompt.background for prompt in prompts)


def test_nearest_color_knows_its_own_palette() -> None:
    assert all(nearest_color(rgb) == name for name, rgb in COLORS.items())


def test_nothing_standing_out_is_no_shape() -> None:
    assert shape_color(np.full((128, 128, 3), 130, dtype=np.uint8)) == "none"


def _snow_night(**parts: Any) -> Landscape:
    house = House(color="red", roof="black", x=40, base=98, width=35)
    trees = ((90.0, 100.0, 34.0), (112.0, 104.0, 30.0))
    whole = Landscape(land="snow", time="night", horizon=84, sky_body=(90, 25), trees=trees, house=house)
    return replace(whole, **parts)


def test_a_landscape_with_all_that_was_asked_is_right() -> None:
    seen = seen_in_landscape(draw(_snow_night()), LANDSCAPE_PROMPTS[1])
    assert seen.right
    assert min(seen.overlaps.values()) > 0.85 and set(seen.overlaps) == {"moon", "house"}


@pytest.mark.parametrize("missing", [{"sky_body": None}, {"house": None}, {"trees": ()}, {"time": "day"}])
def test_a_landscape_that_lacks_something_is_wrong(missing: dict[str, Any]) -> None:
    assert not seen_in_landscape(draw(_snow_night(**missing)), LANDSCAPE_PROMPTS[1]).right


def test_a_landscape_with_something_of_another_color_is_wrong() -> None:
    image = draw(_snow_night())
    image.paste((255, 0, 255), (0, 60, 40, 90))
    seen = seen_in_landscape(image, LANDSCAPE_PROMPTS[1])
    assert seen.foreign > 0.05 and not seen.right
