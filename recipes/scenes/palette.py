"""The colors of the images, by the names that the captions use (sRGB, 0 to 255); those that the captioner looks for
are its own."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

Rgb = tuple[int, int, int]
CAPTIONS = "extensions-builtin/scene-captions/scripts/scene_captions.py"


def _captioner() -> ModuleType:
    """The extension that describes such images."""
    spec = spec_from_file_location("scene_captions", Path(__file__).parents[2] / CAPTIONS)
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_KNOWN = _captioner()
COLORS: dict[str, Rgb] = _KNOWN.COLORS
LANDS: dict[str, Rgb] = _KNOWN.LANDS
THINGS: dict[str, Rgb] = _KNOWN.THINGS
MOON: Rgb = _KNOWN.MOON
SKIES: dict[str, Rgb] = {"day": (120, 190, 245), "sunset": (250, 140, 80), "night": (20, 25, 60)}

SUN: Rgb = THINGS["sun"]
STARLIGHT: Rgb = (240, 240, 240)
MOUNTAIN: Rgb = THINGS["mountains"]
LEAVES: Rgb = THINGS["trees"]
WOOD: Rgb = (110, 70, 40)
DOOR: Rgb = (80, 45, 20)
SAIL: Rgb = (245, 245, 245)


def nearest_color(rgb: tuple[float, float, float]) -> str:
    """The name of the palette color with the smallest squared distance to `rgb` (0 to 255)."""
    return min(COLORS, key=lambda name: sum((a - b) ** 2 for a, b in zip(COLORS[name], rgb, strict=True)))
