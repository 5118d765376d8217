"""An image cut into tiles that overlap, and put together again with fading borders, by the reference UI's rules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

from modules.errors import InvalidValueError


@dataclass(frozen=True)
class Tiles:
    """How an image of `size` is covered by tiles: their left and top edges."""

    size: tuple[int, int]
    tile: tuple[int, int]
    lefts: tuple[int, ...]
    tops: tuple[int, ...]
    overlap: int

    @classmethod
    def of(cls, size: tuple[int, int], tile: tuple[int, int], overlap: int, title: str) -> Tiles:
        """Evenly spread, so that neighbours overlap by at least `overlap` pixels. Raises `InvalidValueError` for tiles
        that are larger than the image, and for an overlap that leaves nothing of a tile; `title` says who asks."""
        if tile[0] > size[0] or tile[1] > size[1]:
            raise InvalidValueError(
                f"{title}: the image would have {size[0]}x{size[1]} pixels, a tile of it {tile[0]}x{tile[1]}. Make "
                "width and height smaller, or the image larger."
            )
        if not 0 <= overlap < min(tile):
            raise InvalidValueError(
                f"{title}: tiles of {tile[0]}x{tile[1]} pixels can overlap by 0 to {min(tile) - 1} pixels, not by "
                f"{overlap}. Choose a smaller overlap, or a larger tile or image."
            )
        lefts, tops = (_starts(*sides, overlap) for sides in zip(size, tile, strict=True))
        return cls(size, tile, lefts, tops, overlap)

    @property
    def places(self) -> list[tuple[int, int]]:
        """Row by row."""
        return [(left, top) for top in self.tops for left in self.lefts]

    def cut(self, image: Image.Image) -> list[Image.Image]:
        """The tiles, row by row."""
        width, height = self.tile
        return [image.crop((left, top, left + width, top + height)) for left, top in self.places]

    def joined(self, tiles: list[Image.Image]) -> Image.Image:
        """The image that they make: each tile fades in over its neighbours to the left and above."""
        width, height = self.tile
        across = self._fade(height, self.overlap)
        down = self._fade(self.size[0], self.overlap).transpose(Image.Transpose.TRANSPOSE)
        whole = Image.new("RGB", self.size)
        for number, top in enumerate(self.tops):
            row = Image.new("RGB", (self.size[0], height))
            for left, tile in zip(self.lefts, tiles[number * len(self.lefts) :], strict=False):
                mask = Image.new("L", (width, height), 255)
                if left > 0:
                    mask.paste(across, (0, 0))
                row.paste(tile, (left, 0), mask)
            mask = Image.new("L", row.size, 255)
            if top > 0:
                mask.paste(down, (0, 0))
            whole.paste(row, (0, top), mask)
        return whole

    @staticmethod
    def _fade(length: int, overlap: int) -> Image.Image:
        """A mask of `overlap` x `length` pixels that rises from left to right."""
        ramp = (np.arange(max(overlap, 0), dtype=np.float32) * 255 / max(overlap, 1)).astype(np.uint8)
        return Image.fromarray(np.tile(ramp, (length, 1)))


def _starts(size: int, tile: int, overlap: int) -> tuple[int, ...]:
    count = math.ceil((size - overlap) / (tile - overlap))
    step = (size - tile) / (count - 1) if count > 1 else 0
    return tuple(min(int(number * step), size - tile) for number in range(count))
