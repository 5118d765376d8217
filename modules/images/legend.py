"""A grid with legends: what its columns and rows stand for, written above and next to it.

Sizes, colors and the font are those of the reference UI, so that the same grid has the same size.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from modules.errors import InvalidValueError
from modules.settings.values import Settings

FONT_FILE = Path(__file__).parent / "fonts" / "Roboto-Regular.ttf"
"""By Christian Robertson for Google, Apache License 2.0."""
FONT_SHARE = 25  # of a cell's width and height together is the size of the font
STRIKE_PX = 4
MAX_MARGIN_PX = 500


@dataclass(frozen=True)
class LegendStyle:
    """Colors as "#rrggbb", and a font file; "": Roboto. `notice`: why it is Roboto although the settings name another
    file."""

    ink: str = "#000000"
    faint_ink: str = "#999999"
    paper: str = "#ffffff"
    font_file: str = ""
    notice: str = ""

    @classmethod
    def of(cls, settings: Settings) -> "LegendStyle":
        """Read the settings for grids. A font that cannot be used is replaced: a grid is worth more than its font."""
        saving = settings.saving
        colors = saving.grid_text_active_color, saving.grid_text_inactive_color, saving.grid_background_color
        try:
            cls(font_file=saving.font).font(FONT_SHARE)
        except OSError as error:
            notice = (
                f"The font {saving.font!r} cannot be used: {error}. Legends are in Roboto; choose a TrueType file, or "
                "none, in Settings > Saving images/grids."
            )
            return cls(*colors, notice=notice)
        return cls(*colors, saving.font)

    def font(self, size_px: int) -> ImageFont.FreeTypeFont:
        """The font at a size. Raises OSError for a file that is none."""
        return ImageFont.truetype(self.font_file or str(FONT_FILE), max(1, size_px))


PLAIN = LegendStyle()


@dataclass(frozen=True)
class LegendLine:
    """A line of a label; what is not active in its column or row is faint and struck through."""

    text: str
    is_active: bool = True


Label = str | Sequence[LegendLine]


@dataclass(frozen=True)
class _Line:
    """A line as it is drawn: no wider than its column, with its size in pixels."""

    text: str
    is_active: bool
    width: int
    height: int


class _Writer:
    """Breaks, measures and draws labels in one size of the font."""

    def __init__(self, size_px: int, style: LegendStyle) -> None:
        self._style, self._size_px = style, size_px
        self._font = style.font(size_px)
        self._measure = ImageDraw.Draw(Image.new("RGB", (1, 1)))
        self.spacing = size_px // 2

    def lines(self, label: Label, room: int) -> list[_Line]:
        """The lines of a label, broken at blanks so that they fit into `room` pixels."""
        given = [LegendLine(label)] if isinstance(label, str) else label
        return [self._line(text, line.is_active) for line in given for text in self._broken(line.text, room)]

    def height(self, lines: Sequence[_Line]) -> int:
        """Return the height of lines above each other."""
        return sum(line.height + self.spacing for line in lines) - self.spacing

    def draw(self, draw: ImageDraw.ImageDraw, lines: Sequence[_Line], middle: tuple[float, float], room: int) -> None:
        """Lines around a point; one that is a single long word gets a smaller font."""
        x, y = middle[0], middle[1] - self.height(lines) / 2
        for line in lines:
            ink = self._style.ink if line.is_active else self._style.faint_ink
            font, center = self._fitting(line.text, room), y + line.height / 2
            draw.text((x, center), line.text, ink, font, anchor="mm")
            if not line.is_active:
                half = line.width // 2
                draw.line((x - half, center, x + half, center), ink, STRIKE_PX)
            y += line.height + self.spacing

    def _broken(self, text: str, room: int) -> list[str]:
        lines = [""]
        for word in text.split():
            longer = f"{lines[-1]} {word}".strip()
            if self._measure.textlength(longer, self._font) <= room:
                lines[-1] = longer
            else:
                lines.append(word)
        return lines

    def _line(self, text: str, is_active: bool) -> _Line:
        left, top, right, bottom = self._measure.textbbox((0, 0), text, self._font)
        return _Line(text, is_active, int(right - left), int(bottom - top))

    def _fitting(self, text: str, room: int) -> ImageFont.FreeTypeFont:
        font, size_px = self._font, self._size_px
        while size_px > 1 and self._measure.textlength(text, font) > room:
            size_px -= 1
            font = self._style.font(size_px)
        return font


def checked_margin(value: object) -> int:
    """The pixels between the cells of a grid, as a script was given them. Raises `InvalidValueError`."""
    try:
        margin_px = int(str(value or 0))
    except ValueError:
        margin_px = -1
    if not 0 <= margin_px <= MAX_MARGIN_PX:
        raise InvalidValueError(f"Grid margins (px): {value!r} is no whole number from 0 to {MAX_MARGIN_PX}.")
    return margin_px


def grid_with_legend(
    cells: Sequence[Sequence[Image.Image | None]],
    columns: Sequence[Label],
    rows: Sequence[Label],
    margin_px: int = 0,
    style: LegendStyle = PLAIN,
) -> Image.Image:
    """Rows of images (None: empty) with labels; where all are empty they take no room. Cells are as large as the
    largest image."""
    images = [cell for row in cells for cell in row if cell is not None]
    if not images:
        raise ValueError("a grid needs at least one image")
    width = max(image.width for image in images)
    height = max(image.height for image in images)
    writer = _Writer((width + height) // FONT_SHARE, style)
    left = width * 3 // 4 if any(_words(label) for label in rows) else 0
    heads = [writer.lines(label, width) for label in columns]
    sides = [writer.lines(label, left) for label in rows]
    top = 0
    if any(_words(label) for label in columns):
        top = max(writer.height(lines) for lines in heads) + writer.spacing * 2
    size = (
        left + len(columns) * width + (len(columns) - 1) * margin_px,
        top + len(rows) * height + (len(rows) - 1) * margin_px,
    )
    sheet = Image.new("RGB", size, style.paper)
    for row, images_of_row in enumerate(cells):
        for column, image in enumerate(images_of_row):
            if image is not None:
                x = left + column * (width + margin_px) + (width - image.width) // 2
                y = top + row * (height + margin_px) + (height - image.height) // 2
                sheet.paste(image, (x, y))
    draw = ImageDraw.Draw(sheet)
    for column, lines in enumerate(heads):
        if top:
            writer.draw(draw, lines, (left + column * (width + margin_px) + width / 2, top / 2), width)
    for row, lines in enumerate(sides):
        if left:
            writer.draw(draw, lines, (left / 2, top + row * (height + margin_px) + height / 2), left)
    return sheet


def _words(label: Label) -> str:
    return label if isinstance(label, str) else "".join(line.text for line in label)
