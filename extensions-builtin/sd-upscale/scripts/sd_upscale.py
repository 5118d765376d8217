"""SD upscale: the image is enlarged by an upscaler, cut into tiles of the job's width and height that overlap, each is
made anew by img2img, and they are joined with fading borders."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.masks import flattened
from modules.processing.record.result import ImageRole
from modules.scripts.processing import (
    Processed,
    StableDiffusionProcessing,
    StableDiffusionProcessingImg2Img,
    copy_of,
    process_images,
)
from modules.scripts.script import Script

MAX_SIDE_PX = 16384


@dataclass(frozen=True)
class Tiles:
    """How an image of `size` is covered by tiles: their left and top edges."""

    size: tuple[int, int]
    tile: tuple[int, int]
    lefts: tuple[int, ...]
    tops: tuple[int, ...]
    overlap: int

    @classmethod
    def of(cls, size: tuple[int, int], tile: tuple[int, int], overlap: int) -> Tiles:
        """Evenly spread, so that neighbours overlap by at least `overlap` pixels. Raises `InvalidValueError` for tiles
        that are larger than the image, and for an overlap that leaves nothing of a tile."""
        if tile[0] > size[0] or tile[1] > size[1]:
            raise InvalidValueError(
                f"SD upscale: the enlarged image has {size[0]}x{size[1]} pixels, a tile {tile[0]}x{tile[1]}. Make "
                "width and height smaller, or scale by more."
            )
        if not 0 <= overlap < min(tile):
            raise InvalidValueError(f"SD upscale: the tile overlap is {overlap}; allowed is 0 to {min(tile) - 1}.")
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


class SdUpscale(Script):
    """The script."""

    def title(self) -> str:
        return "SD upscale"

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        info = gr.HTML(
            "<p>Enlarges the image by the scale, and makes it anew in tiles of the selected width and height.</p>"
        )
        overlap = gr.Slider(0, 256, value=64, step=16, label="Tile overlap", elem_id="script_sd_upscale_overlap")
        scale = gr.Slider(1, 4, value=2, step=0.05, label="Scale Factor", elem_id="script_sd_upscale_scale_factor")
        upscaler = gr.Dropdown(
            self.program.pixel_upscalers(),
            value="None",
            type="index",
            label="Upscaler",
            elem_id="script_sd_upscale_upscaler_index",
        )
        self.infotext_fields = [
            (overlap, "SD upscale overlap"),
            (scale, "SD upscale scale"),
            (upscaler, "SD upscale upscaler"),
        ]
        return [info, overlap, upscaler, scale]

    def expected_cells(self, p: StableDiffusionProcessing, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        assert isinstance(p, StableDiffusionProcessingImg2Img)
        tiles = _tiles(p, int(args[1]), self._name(args[2]), float(args[3]))
        return math.ceil(len(tiles.places) / p.batch_size) * p.n_iter

    def run(
        self,
        p: StableDiffusionProcessing,
        _: Any = None,
        overlap: int = 64,
        upscaler: int | str = 0,
        scale_factor: float = 2.0,
    ) -> Processed:
        assert isinstance(p, StableDiffusionProcessingImg2Img)
        name = self._name(upscaler)
        tiles = _tiles(p, int(overlap), name, float(scale_factor))
        image = flattened(p.init_images[0], p.settings.img2img.img2img_background_color)
        work = tiles.cut(self.program.enlarge(image, name, tiles.size, p.settings))
        job = copy_of(p)
        job.extra_generation_params |= {
            "SD upscale overlap": int(overlap),
            "SD upscale upscaler": name,
            "SD upscale scale": scale_factor,
        }
        job.n_iter = 1
        job.do_not_save_samples = job.do_not_save_grid = True
        wholes = []
        for number in range(p.n_iter):
            job.seed = p.seed + number
            runs = []
            for begin in range(0, len(work), p.batch_size):
                job.init_images = work[begin : begin + p.batch_size]
                job.batch_size = len(job.init_images)
                runs.append(process_images(job))
                if runs[-1].interrupted:
                    return Processed.joined([*wholes, *runs])
                job.seed += 1
            made = [image.image for run in runs for image in run.generated if image.kind is ImageRole.SAMPLE]
            whole = Processed.joined(runs)
            whole.generated = [replace(whole.generated[0], image=tiles.joined(made))]
            wholes.append(whole)
        result = Processed.joined(wholes)
        p.save_samples(result)
        return result

    def _name(self, upscaler: int | str) -> str:
        """An upscaler by its place in the list or its name. Raises `InvalidValueError`."""
        names = self.program.pixel_upscalers()
        if isinstance(upscaler, int) and 0 <= upscaler < len(names):
            return names[upscaler]
        for name in names:
            if name.lower() == str(upscaler).lower():
                return name
        raise InvalidValueError(f"SD upscale: there is no upscaler {upscaler!r}. Known: {', '.join(names)}.")


def _tiles(p: StableDiffusionProcessingImg2Img, overlap: int, upscaler: str, scale: float) -> Tiles:
    """As in the reference UI, no upscaler means that the image keeps its size."""
    scale = 1.0 if upscaler == "None" else scale
    width, height = p.init_images[0].size
    size = (int(width * scale), int(height * scale))
    if not 1 <= max(size) <= MAX_SIDE_PX:
        raise InvalidValueError(f"SD upscale: {size[0]}x{size[1]} pixels; allowed are {MAX_SIDE_PX} a side.")
    return Tiles.of(size, (p.width // 8 * 8, p.height // 8 * 8), overlap)
