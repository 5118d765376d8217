"""The colours of the images, by the names that the captions use (sRGB, 0 to 255)."""

Rgb = tuple[int, int, int]

COLOURS: dict[str, Rgb] = {
    "red": (220, 40, 40),
    "green": (40, 170, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 210, 40),
    "orange": (245, 140, 30),
    "purple": (140, 60, 190),
    "pink": (245, 130, 180),
    "cyan": (60, 200, 220),
    "white": (245, 245, 245),
    "black": (25, 25, 25),
    "gray": (130, 130, 130),
    "brown": (130, 80, 40),
}

SKIES: dict[str, Rgb] = {"day": (120, 190, 245), "sunset": (250, 140, 80), "night": (20, 25, 60)}

LANDS: dict[str, Rgb] = {
    "sea": (30, 100, 180),
    "meadow": (70, 160, 70),
    "desert": (225, 190, 110),
    "snow": (240, 245, 250),
}

SUN: Rgb = (255, 225, 90)
MOON: Rgb = (240, 240, 210)
STARLIGHT: Rgb = (240, 240, 240)
MOUNTAIN: Rgb = (110, 110, 125)
LEAVES: Rgb = (25, 110, 50)
WOOD: Rgb = (110, 70, 40)
DOOR: Rgb = (80, 45, 20)
SAIL: Rgb = (245, 245, 245)


def nearest_colour(rgb: tuple[float, float, float]) -> str:
    """The name of the palette colour with the smallest squared distance to `rgb` (0 to 255)."""
    return min(COLOURS, key=lambda name: sum((a - b) ** 2 for a, b in zip(COLOURS[name], rgb, strict=True)))
