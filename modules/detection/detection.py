"""Detections in an image."""

from dataclasses import dataclass

from PIL import Image, ImageDraw


@dataclass(frozen=True, eq=False)
class Detection:
    """`box`: left, top, right, bottom in pixels, within the image. `score` 0 to 1. `outline` is a mask ("L", 255: the
    thing) of the image's size, where the detector gives one."""

    box: tuple[float, float, float, float]
    score: float
    label: str = ""
    outline: Image.Image | None = None

    @property
    def area_px(self) -> float:
        """Area of the box."""
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])

    def mask(self, size_px: tuple[int, int]) -> Image.Image:
        """The outline, or else the box, as a mask ("L") of the image's size."""
        if self.outline is not None:
            return self.outline
        drawn = Image.new("L", size_px)
        ImageDraw.Draw(drawn).rectangle([round(value) for value in self.box], fill=255)
        return drawn
