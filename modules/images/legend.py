"""A grid with legends: what its columns and rows stand for, written above and next to it."""

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw, ImageFont

from modules.errors import InvalidValueError
from modules.settings.values import Settings

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

PADDING_PX = 8
SMALLEST_FONT_PX = 8
MAX_FONT_PX = 30
WIDEST_LABEL = 0.75  # of a cell's width: the column that the rows' labels get


@dataclass(frozen=True)
class LegendStyle:
    """Colors as "#rrggbb", and a font file; without one a plain font that Pillow brings."""

    ink: str = "#000000"
    paper: str = "#ffffff"
    font_file: str = ""

    @classmethod
    def of(cls, settings: Settings) -> "LegendStyle":
        """As the settings for grids say."""
        return cls(settings.saving.grid_text_active_color, settings.saving.grid_background_color, settings.saving.font)

    def font(self, size_px: float) -> Font:
        """The font at a size; raises `InvalidValueError` for a file that is none."""
        if not self.font_file:
            return ImageFont.load_default(size_px)
        try:
            return ImageFont.truetype(self.font_file, size_px)
        except OSError as error:
            raise InvalidValueError(
                f"The font {self.font_file!r} cannot be used: {error}. Choose a TrueType file, or none, in Settings > "
                "Saving images/grids."
            ) from error


PLAIN = LegendStyle()


def grid_with_legend(
    cells: Sequence[Sequence[Image.Image | None]],
    columns: Sequence[str],
    rows: Sequence[str],
    margin_px: int = 0,
    title: str = "",
    style: LegendStyle = PLAIN,
) -> Image.Image:
    """Rows of images (None: empty) with labels; empty labels take no room. Sizes are those of the largest image."""
    images = [cell for row in cells for cell in row if cell is not None]
    if not images:
        raise ValueError("a grid needs at least one image")
    width = max(image.width for image in images)
    height = max(image.height for image in images)
    font = style.font(min(max(SMALLEST_FONT_PX, width // 10), MAX_FONT_PX))
    draw = ImageDraw.Draw(Image.new("RGB", (1, 1)))
    left = 0
    if any(rows):
        widest = max(draw.textlength(word, font=font) for label in rows for word in label.split() or [""])
        left = int(max(width * WIDEST_LABEL, min(widest + 2 * PADDING_PX, width * 1.5)))
    wrapped = [_wrapped(draw, label, font, width) for label in columns]
    top = max((_height(draw, text, font) for text in wrapped if text), default=0)
    head = _height(draw, title, font) if title else 0
    across = left + len(columns) * width + (len(columns) - 1) * margin_px
    down = head + top + len(rows) * height + (len(rows) - 1) * margin_px
    sheet = Image.new("RGB", (across, down), style.paper)
    draw = ImageDraw.Draw(sheet)
    if title:
        draw.text((across / 2, head / 2), title, style.ink, font, anchor="mm", align="center")
    for column, text in enumerate(wrapped):
        x = left + column * (width + margin_px)
        draw.multiline_text((x + width / 2, head + top / 2), text, style.ink, font, anchor="mm", align="center")
    for number, label in enumerate(rows):
        y = head + top + number * (height + margin_px)
        if label:
            text = _wrapped(draw, label, font, left)
            draw.multiline_text((left / 2, y + height / 2), text, style.ink, font, anchor="mm", align="center")
        for column, image in enumerate(cells[number]):
            if image is not None:
                x = left + column * (width + margin_px)
                sheet.paste(image, (x + (width - image.width) // 2, y + (height - image.height) // 2))
    return sheet


def _height(draw: ImageDraw.ImageDraw, text: str, font: Font) -> int:
    box = draw.multiline_textbbox((0, 0), text, font=font)
    return int(box[3] - box[1]) + 3 * PADDING_PX


def _wrapped(draw: ImageDraw.ImageDraw, text: str, font: Font, width: int) -> str:
    """Broken at blanks, and inside of words that are wider than a cell."""
    room = width - 2 * PADDING_PX
    lines: list[str] = []
    for word in text.split():
        candidate = f"{lines[-1]} {word}" if lines else word
        if lines and draw.textlength(candidate, font=font) <= room:
            lines[-1] = candidate
            continue
        while draw.textlength(word, font=font) > room and len(word) > 1:
            fits = next(n for n in range(len(word), 0, -1) if n == 1 or draw.textlength(word[:n], font=font) <= room)
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    return "\n".join(lines)
