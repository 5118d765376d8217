"""A face-like drawing, which the detector takes for a face."""

from PIL import Image, ImageDraw, ImageFilter

FINE = 3  # drawn larger, then made smaller


def face_drawing(side_px: int = 256) -> Image.Image:
    """A face in the middle of a square image."""
    image = Image.new("RGB", (side_px * FINE, side_px * FINE), (120, 150, 180))
    pen = ImageDraw.Draw(image)
    unit = side_px * FINE / 256

    def oval(left: int, top: int, right: int, bottom: int, color: tuple[int, int, int]) -> None:
        pen.ellipse([left * unit, top * unit, right * unit, bottom * unit], fill=color)

    def line(points: list[int], width: int, color: tuple[int, int, int]) -> None:
        pen.line([value * unit for value in points], fill=color, width=int(width * unit))

    pen.rectangle([90 * unit, 190 * unit, 166 * unit, 256 * unit], fill=(205, 160, 130))
    oval(58, 24, 198, 226, (70, 45, 30))
    oval(66, 48, 190, 232, (224, 178, 148))
    for left in (84, 140):
        oval(left, 104, left + 32, 122, (245, 245, 245))
        oval(left + 8, 104, left + 25, 122, (60, 40, 30))
    line([80, 94, 118, 90], 5, (60, 40, 30))
    line([138, 90, 176, 94], 5, (60, 40, 30))
    pen.polygon([(126 * unit, 112 * unit), (114 * unit, 152 * unit), (142 * unit, 152 * unit)], fill=(200, 150, 120))
    oval(116, 144, 126, 156, (150, 100, 80))
    oval(131, 144, 141, 156, (150, 100, 80))
    oval(100, 172, 156, 192, (170, 70, 70))
    line([100, 182, 156, 182], 2, (110, 40, 40))
    soft = image.filter(ImageFilter.GaussianBlur(3 * unit))
    return soft.resize((side_px, side_px), Image.Resampling.BOX)
