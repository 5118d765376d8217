"""Several images as one: the grid of a job."""

import math
from collections.abc import Sequence

from PIL import Image

from modules.settings.values import Settings

_PIXELS_PER_MEGAPIXEL = 1_000_000


def grid_rows(count: int, settings: Settings, batch_size: int = 1) -> int:
    """How many rows a grid of `count` images has.

    The setting `n_rows` says it (0: the batch size); on automatic the grid is about square, or with
    `grid_prevent_empty_spots` as square as possible without a gap.
    """
    wanted = settings.saving.n_rows
    if wanted > 0:
        rows = wanted
    elif wanted == 0:
        rows = batch_size
    elif settings.saving.grid_prevent_empty_spots:
        rows = max(divisor for divisor in range(1, math.isqrt(count) + 1) if count % divisor == 0)
    else:
        rows = round(math.sqrt(count))
    return max(1, min(rows, count))


def image_grid(images: Sequence[Image.Image], rows: int) -> Image.Image:
    """The images row by row on black; each cell is as large as the largest image, smaller ones are centred.

    `images` must not be empty. Always RGB.
    """
    columns = math.ceil(len(images) / rows)
    cell_width = max(image.width for image in images)
    cell_height = max(image.height for image in images)
    grid = Image.new("RGB", (columns * cell_width, rows * cell_height), "black")
    for index, image in enumerate(images):
        row, column = divmod(index, columns)
        left = column * cell_width + (cell_width - image.width) // 2
        top = row * cell_height + (cell_height - image.height) // 2
        grid.paste(image, (left, top))
    return grid


def fits_grid(images: Sequence[Image.Image], settings: Settings) -> bool:
    """False if a grid of these images would have more megapixels than the setting `img_max_size_mp`."""
    pixels = sum(image.width * image.height for image in images)
    return pixels <= settings.saving.img_max_size_mp * _PIXELS_PER_MEGAPIXEL
