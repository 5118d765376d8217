"""The colors of the images, by the names that the captions use (sRGB, 0 to 255); those that the captioner looks for
are its own."""

from modules.captioning.scenes import COLORS, LANDS, MOON, THINGS, Rgb

__all__ = ("COLORS", "LANDS", "MOON", "Rgb")

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
