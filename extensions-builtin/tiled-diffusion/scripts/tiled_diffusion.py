"""Tiled diffusion: the denoiser works on tiles of the latents, whose predictions are put together at every step.

MultiDiffusion averages them (Bar-Tal et al. 2023, arXiv:2302.08113), Mixture of Diffusers weighs them by a Gaussian
around the middle of each tile (Jiménez 2023, arXiv:2302.02412). Arguments and infotexts are those of the extension
"Tiled Diffusion"; Forge's built-in "MultiDiffusion Integrated" gives fewer, in pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from modules.errors import InvalidValueError
from modules.processing.request.model_use import OUTSIDE, Window
from modules.scripts.fields import Field, FieldScript, switch

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import ConditionedDenoise, ModelUse

TITLE, FORGE = "Tiled Diffusion", "MultiDiffusion Integrated"
MULTI, MIXTURE = "MultiDiffusion", "Mixture of Diffusers"
VARIANCE = 0.01
LATENT_PX = 8
LEADING, REGION = 21, 10
"""Arguments before those of the regions, and of one region."""
REGIONS_ON = 18
NOISE_INVERSION_ON = 12
LEAST_BESIDE_OVERLAP = 4
PLACES = {
    **{"enabled": 0, "method": 1, "overwrite_size": 2, "keep_size": 3, "width": 4, "height": 5},
    **{"tile_width": 6, "tile_height": 7, "overlap": 8, "batch": 9, "upscaler": 10, "factor": 11},
}
"""Where the extension's arguments have the rows."""
INFO = {"method": "Method", "tile_width": "Tile tile width", "tile_height": "Tile tile height"} | {
    "overlap": "Tile Overlap",
    "batch": "Tile batch size",
}
"""What an image records, in one field."""


def _cells(name: str, label: str, default: int, low: int, high: int) -> Field:
    elem_id = f"tiled_diffusion_{name}"
    return Field(
        name=name, label=label, default=default, elem_id=elem_id, low=min(low, 4), high=high, slider_low=low, step=1
    )


class TiledDiffusion(FieldScript):
    """The script. Sizes are in cells of the latents, which are 8 pixels."""

    rows = (
        switch("tiled_diffusion"),
        Field(
            name="method", label="Method", default=MULTI, elem_id="tiled_diffusion_method", choices=(MULTI, MIXTURE)
        ),
        _cells("tile_width", "Tile width", 96, 16, 256),
        _cells("tile_height", "Tile height", 96, 16, 256),
        _cells("overlap", "Tile overlap", 48, 0, 256),
        _cells("batch", "Tile batch size", 4, 1, 64),
        Field(
            name="upscaler", label="Upscaler", default="None", elem_id="tiled_diffusion_upscaler",
            choices="upscalers", hint="img2img only: the image is enlarged first",
        ),
        Field(
            name="factor", label="Scale factor", default=2.0, elem_id="tiled_diffusion_scale_factor",
            low=1.0, high=8.0, step=0.05,
        ),
        Field(
            name="keep_size", label="Keep input image size", default=True, elem_id="tiled_diffusion_keep_size"
        ),
        Field(
            name="overwrite_size", label="Overwrite image size", default=False, elem_id="tiled_diffusion_overwrite"
        ),
        _cells("width", "Width", 1024, 64, 16384),
        _cells("height", "Height", 1024, 64, 16384),
    )  # fmt: skip
    hidden = ("overwrite_size", "width", "height")
    infotext_switch = TITLE
    other_titles = (FORGE,)

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Any:
        return partial(_pasted, INFO[row.name], row) if row.name in INFO else None

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """The extension's 21 arguments and those of its regions; Forge's six; or this script's own."""
        if title.lower() == FORGE.lower():
            return self.checked(_of_forge(args, title), title)
        if len(args) > len(self.rows) or (len(args) > 2 and isinstance(args[2], bool)):
            return self.checked(_of_extension(args, title), title)
        return self.checked(args, title)

    def process(self, p: Any, *args: Any) -> None:
        values = self.values(p, args)
        if values is None:
            return
        images = getattr(p, "init_images", None)
        if images:
            self._resize_start(p, values)
        elif values["overwrite_size"]:
            p.width, p.height = values["width"], values["height"]
        if len(Grid.of(p.width // LATENT_PX, p.height // LATENT_PX, values).windows) == 1 and not p.enable_hr:
            return
        info = {name: values[key] for key, name in INFO.items()}
        if images and values["upscaler"] != "None":
            info |= {"Upscaler": values["upscaler"], "Upscale factor": values["factor"]}
        p.extra_generation_params[TITLE] = info

    def _resize_start(self, p: Any, values: Mapping[str, Any]) -> None:
        """As the extension does: the image enlarged by the upscaler, and the job as large as the image."""
        first = p.init_images[0]
        if values["upscaler"] != "None" and values["factor"] > 1:
            if values["upscaler"] not in self.program.pixel_upscalers():
                known = ", ".join(self.program.pixel_upscalers())
                raise InvalidValueError(f"{TITLE}: there is no upscaler {values['upscaler']!r}; known: {known}.")
            size = tuple(round(side * values["factor"]) for side in first.size)
            p.init_images = [self.program.enlarge(each, values["upscaler"], size, p.settings) for each in p.init_images]
            first = p.init_images[0]
        if values["keep_size"]:
            p.width, p.height = (max(side // LATENT_PX * LATENT_PX, 64) for side in first.size)

    def on_model(self, p: Any, use: ModelUse, *args: Any) -> None:
        values = self.values(p, args)
        if values is not None:
            use.around_denoiser(lambda denoise: partial(in_tiles, denoise, use, values), OUTSIDE)


def _pasted(key: str, row: Field, parsed: Mapping[str, Any]) -> Any:
    import json

    try:
        info = json.loads(str(parsed.get(TITLE, "")))
    except ValueError:
        return None
    return info.get(key) if isinstance(info, dict) else None


def _of_extension(args: Sequence[Any], title: str) -> list[Any]:
    """In the order of the rows. Raises `InvalidValueError`, also for what is not made here."""
    given = list(args)
    if len(given) > LEADING and (len(given) - LEADING) % REGION:
        raise InvalidValueError(
            f"{title} takes {LEADING} arguments and {REGION} for each region; {len(given)} were given."
        )
    given += [None] * (LEADING - len(given))
    if bool(given[0]) and bool(given[NOISE_INVERSION_ON]):
        raise InvalidValueError(f"{title}: noise inversion is not supported. Switch it off.")
    if bool(given[0]) and bool(given[REGIONS_ON]):
        raise InvalidValueError(f"{title}: regions are not supported. Switch them off, or use Regional Prompter.")
    found = {name: given[place] for name, place in PLACES.items()}
    return [found.get(row.name) for row in TiledDiffusion.rows]


def _of_forge(args: Sequence[Any], title: str) -> list[Any]:
    """In the order of the rows; Forge's sizes are in pixels, and its job keeps its size."""
    if len(args) > 6:
        raise InvalidValueError(f"{title} takes 6 arguments, {len(args)} were given.")
    given: list[Any] = [*args, *[None] * (6 - len(args))]
    enabled, method, *rest = given
    sizes = [
        768 if rest[0] is None else rest[0],
        768 if rest[1] is None else rest[1],
        64 if rest[2] is None else rest[2],
    ]
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int | float):
            raise InvalidValueError(f"{title}: a size in pixels is {size!r}; allowed is a number.")
    cells = [int(size) // LATENT_PX for size in sizes]
    found: list[Any] = [enabled, method]
    return found + cells + [rest[3], None, None, False]


@dataclass(frozen=True)
class Grid:
    """How latents are covered by tiles."""

    windows: tuple[Window, ...]

    @classmethod
    def of(cls, width: int, height: int, values: Mapping[str, Any]) -> Grid:
        """For latents of this size, in cells."""
        tile_width, tile_height = min(values["tile_width"], width), min(values["tile_height"], height)
        most = max(min(tile_width, tile_height) - LEAST_BESIDE_OVERLAP, 0)
        overlap = max(0, min(values["overlap"], most))
        lefts, tops = _starts(width, tile_width, overlap), _starts(height, tile_height, overlap)
        return cls(tuple(Window(left, top, tile_width, tile_height) for top in tops for left in lefts))


def _starts(side: int, tile: int, overlap: int) -> list[int]:
    count = max(math.ceil((side - overlap) / (tile - overlap)), 1)
    step = (side - tile) / (count - 1) if count > 1 else 0.0
    return [min(int(number * step), side - tile) for number in range(count)]


def weights_of(window: Window, method: str, like: Tensor) -> Tensor:
    """How much each cell of a tile counts, [h,w]."""
    import torch

    if method == MULTI:
        return torch.ones(window.height, window.width, dtype=like.dtype, device=like.device)

    def bell(count: int, middle: float) -> Tensor:
        distance = torch.arange(count, dtype=torch.float64) - middle
        found: Tensor = torch.exp(-(distance**2) / window.width**2 / (2 * VARIANCE))
        return found / math.sqrt(2 * math.pi * VARIANCE)

    weights = torch.outer(bell(window.height, window.height / 2), bell(window.width, (window.width - 1) / 2))
    return weights.to(like.device, like.dtype)


def in_tiles(
    denoise: ConditionedDenoise, use: ModelUse, values: Mapping[str, Any], x: Tensor, sigma: Tensor, context: Any
) -> Tensor:
    """The prediction for latents [N,C,h,w], put together from those for tiles."""
    import torch

    rows, height, width = len(x), x.shape[-2], x.shape[-1]
    windows = Grid.of(width, height, values).windows
    if len(windows) == 1:
        return denoise(x, sigma, context)
    total, counts = torch.zeros_like(x), x.new_zeros(height, width)
    weights = weights_of(windows[0], values["method"], x)
    call = use.call
    for first in range(0, len(windows), values["batch"]):
        group = windows[first : first + values["batch"]]
        places = tuple(window for window in group for _ in range(rows))
        own = replace(call.rows(list(range(rows)) * len(group)), windows=places)
        with use.calling(own):
            parts = denoise(
                torch.cat([_cut(x, window) for window in group]),
                sigma.repeat(len(group)),
                _context(context, group, rows, (height, width)),
            )
        for window, part in zip(group, torch.split(parts, rows), strict=True):
            _cut(total, window).add_(part * weights)
            _cut(counts, window).add_(weights)
    return total / counts


def _cut(x: Tensor, window: Window) -> Tensor:
    return x[..., window.top : window.top + window.height, window.left : window.left + window.width]


def _context(context: Any, group: Sequence[Window], rows: int, size: tuple[int, int]) -> Any:
    """What the tiles of a group are given: maps over the latents cut up, all else repeated."""
    import torch

    def each(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(each(item) for item in value)
        if isinstance(value, Mapping):
            return {name: each(item) for name, item in value.items()}
        if not isinstance(value, torch.Tensor) or not value.ndim or len(value) != rows:
            return value
        if value.ndim < 4:
            return torch.cat([value] * len(group))
        across, down = size[1] / value.shape[-1], size[0] / value.shape[-2]
        scaled = [
            Window(*(round(side / by) for side, by in zip(window, (across, down) * 2, strict=True))) for window in group
        ]
        return torch.cat([_cut(value, window) for window in scaled])

    return replace(context, **{name: each(value) for name, value in vars(context).items()})


TiledDiffusion().add_axes("method", "tile_width", "tile_height", "overlap")
