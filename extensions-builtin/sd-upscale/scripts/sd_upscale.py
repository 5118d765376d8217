"""SD upscale: the image is enlarged by an upscaler, cut into tiles of the job's width and height that overlap, each is
made again by img2img, and they are joined with fading borders."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from modules.errors import InvalidValueError
from modules.images.masks import flattened
from modules.images.overlapping import Tiles
from modules.processing.request.result import ImageRole
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.script import Script

TITLE = "SD upscale"
MAX_SIDE_PX = 16384


class SdUpscale(Script):
    """The script."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        info = gr.HTML("<p>Enlarges the image by the scale and redraws it in tiles of the selected size.</p>")
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

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        assert isinstance(p, ImageJob)
        tiles = _tiles(p, int(args[1]), self._name(args[2]), float(args[3]))
        return math.ceil(len(tiles.places) / p.batch_size) * p.n_iter

    def run(
        self,
        p: Job,
        _: Any = None,
        overlap: int = 64,
        upscaler: int | str = 0,
        scale_factor: float = 2.0,
    ) -> Processed:
        assert isinstance(p, ImageJob)
        name = self._name(upscaler)
        tiles = _tiles(p, int(overlap), name, float(scale_factor))
        image = flattened(p.init_images[0], p.settings.img2img.img2img_background_color)
        work = tiles.cut(self.program.enlarge(image, name, tiles.size, p.settings))
        job = p.replace()
        job.extra_generation_params |= {
            "SD upscale overlap": int(overlap),
            "SD upscale upscaler": name,
            "SD upscale scale": scale_factor,
        }
        job.n_iter = 1
        job.do_not_save_samples = job.do_not_save_grid = True
        wholes: list[Processed] = []
        for number in range(p.n_iter):
            job.seed = p.seed + number
            runs = []
            for begin in range(0, len(work), p.batch_size):
                job.init_images = work[begin : begin + p.batch_size]
                job.batch_size = len(job.init_images)
                runs.append(job.make())
                if runs[-1].interrupted:
                    return Processed.joined([*wholes, *runs])
                job.seed += 1
            made = [image.image for run in runs for image in run.generated if image.role is ImageRole.SAMPLE]
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


def _tiles(p: ImageJob, overlap: int, upscaler: str, scale: float) -> Tiles:
    """Lay tiles; as in the reference UI, without an upscaler the image keeps its size."""
    scale = 1.0 if upscaler == "None" else scale
    width, height = p.init_images[0].size
    size = (int(width * scale), int(height * scale))
    if not 1 <= max(size) <= MAX_SIDE_PX:
        raise InvalidValueError(f"SD upscale: {size[0]}x{size[1]} pixels; allowed are {MAX_SIDE_PX} a side.")
    return Tiles.of(size, (p.width // 8 * 8, p.height // 8 * 8), overlap, TITLE)
