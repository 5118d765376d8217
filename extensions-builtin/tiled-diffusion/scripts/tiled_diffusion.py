"""Tiled diffusion: the denoiser works on tiles of the latents, whose predictions are put together at every step.

MultiDiffusion averages them (Bar-Tal et al. 2023, arXiv:2302.08113), Mixture of Diffusers weighs them by a Gaussian
around the middle of each tile (Jiménez 2023, arXiv:2302.02412). Arguments and infotexts are those of the extension
"Tiled Diffusion"; Forge's built-in "MultiDiffusion Integrated" gives fewer, in pixels.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

FOLDER = str(Path(__file__).resolve().parents[1])
if FOLDER not in sys.path:
    sys.path.append(FOLDER)

from lib_tiled_diffusion.noise_inversion import Inversion  # noqa: E402

from modules.errors import InvalidValueError  # noqa: E402
from modules.processing.request.model_use import OUTSIDE, Window  # noqa: E402
from modules.scripts.fields import Field, FieldScript, switch, truths  # noqa: E402
from modules.system.bounded import read_json  # noqa: E402

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.processing.request.model_use import ConditionedDenoise, ModelCall, ModelUse

TITLE, FORGE = "Tiled Diffusion", "MultiDiffusion Integrated"
MULTI, MIXTURE = "MultiDiffusion", "Mixture of Diffusers"
VARIANCE = 0.01
LATENT_PX = 8
LEADING, REGION = 21, 10
"""Arguments before those of the regions, and of one region."""
REGIONS_ON, DRAWS_BACKGROUND, CAUSAL = 18, 19, 20
BACKGROUND, FOREGROUND = "Background", "Foreground"
MAX_REGIONS = 64
CHUNK = 77
"""Tokens of a chunk of the prompt."""
LEAST_BESIDE_OVERLAP = 4
PLACES = {
    **{"enabled": 0, "method": 1, "overwrite_size": 2, "keep_size": 3, "width": 4, "height": 5},
    **{"tile_width": 6, "tile_height": 7, "overlap": 8, "batch": 9, "upscaler": 10, "factor": 11},
    **{"inverts": 12, "inversion_steps": 13, "retouch": 14, "renoise_strength": 15, "renoise_kernel": 16},
}
"""Where the extension's arguments have the rows."""
INFO = {"method": "Method", "tile_width": "Tile tile width", "tile_height": "Tile tile height"} | {
    "overlap": "Tile Overlap",
    "batch": "Tile batch size",
}
INFO |= {"regions": "Region control", "draws_background": "Draw full canvas background"}
"""What an image records, in one field; the last two where there are regions."""
INVERSION_INFO = {"inverts": "NoiseInv", "inversion_steps": "NoiseInv Steps", "retouch": "NoiseInv Retouch"} | {
    "renoise_strength": "NoiseInv Renoise strength",
    "renoise_kernel": "NoiseInv Kernel size",
}
"""What it records besides where the noise is inverted."""
INVERTING_SAMPLER = "Euler"


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
            name="inverts", label="Noise inversion", default=False, elem_id="tiled_diffusion_noise_inverse",
            hint="img2img with Euler: starts from the noise that the image came from",
        ),
        Field(
            name="inversion_steps", label="Inversion steps", default=10, elem_id="tiled_diffusion_noise_inverse_steps",
            low=1, high=200, step=1,
        ),
        Field(
            name="retouch", label="Retouch", default=1.0, elem_id="tiled_diffusion_noise_inverse_retouch",
            low=1.0, high=100.0, step=0.1, hint="Above 1: less noise, a smoother image",
        ),
        Field(
            name="renoise_strength", label="Renoise strength", default=1.0,
            elem_id="tiled_diffusion_noise_inverse_renoise_strength", low=0.0, high=2.0, step=0.01,
        ),
        Field(
            name="renoise_kernel", label="Renoise kernel size", default=64,
            elem_id="tiled_diffusion_noise_inverse_renoise_kernel", low=2, high=512, step=1,
        ),
        Field(
            name="keep_size", label="Keep input image size", default=True, elem_id="tiled_diffusion_keep_size"
        ),
        Field(
            name="overwrite_size", label="Overwrite image size", default=False, elem_id="tiled_diffusion_overwrite"
        ),
        _cells("width", "Width", 1024, 64, 16384),
        _cells("height", "Height", 1024, 64, 16384),
        Field(
            name="regions", label="Regions as JSON", default="", elem_id="tiled_diffusion_regions",
            hint="What the image records: parts of the image with prompts of their own",
        ),
        Field(
            name="draws_background", label="Draw full canvas background", default=True,
            elem_id="tiled_diffusion_draw_background",
        ),
    )  # fmt: skip
    hidden = ("overwrite_size", "width", "height", "regions", "draws_background")
    infotext_switch = TITLE
    other_titles = (FORGE,)

    def title(self) -> str:
        return TITLE

    def pasting(self, row: Field) -> Any:
        known = INFO | INVERSION_INFO
        return partial(_pasted, known[row.name], row) if row.name in known else None

    def read_args(self, args: Sequence[Any], title: str) -> Sequence[Any]:
        """The extension's 21 arguments and those of its regions; Forge's six; or this script's own."""
        args = truths(args)
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
        inverts = bool(images) and values["inverts"]
        if inverts:
            p.sampler_name = INVERTING_SAMPLER
        if images:
            self._resize_start(p, values)
        elif values["overwrite_size"]:
            p.width, p.height = values["width"], values["height"]
        regions = regions_of(values["regions"])
        is_whole = len(Grid.of(p.width // LATENT_PX, p.height // LATENT_PX, values).windows) == 1
        if is_whole and not p.enable_hr and not regions and not inverts:
            return
        info = {name: values[key] for key, name in INFO.items() if key not in ("regions", "draws_background")}
        if regions:
            info |= {INFO["regions"]: read_json(values["regions"])}
            info |= {INFO["draws_background"]: values["draws_background"]}
        if images and values["upscaler"] != "None":
            info |= {"Upscaler": values["upscaler"], "Upscale factor": values["factor"]}
        if inverts:
            info |= {name: values[key] for key, name in INVERSION_INFO.items()}
        p.extra_generation_params[TITLE] = info

    def _resize_start(self, p: Any, values: Mapping[str, Any]) -> None:
        """Start as the extension does: the image enlarged by the upscaler, and the job as large as the image."""
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
            regions = RegionTexts.of(use, regions_of(values["regions"]))
            use.around_denoiser(lambda denoise: partial(in_tiles, denoise, use, values, regions), OUTSIDE)
            images = getattr(p, "init_images", None)
            if images and values["inverts"] and not use.facts.is_hires:
                before = p.before_sampling
                p.before_sampling = Inversion(
                    values,
                    use.facts.prompts,
                    use.facts.negative_prompts,
                    images[0],
                    lambda denoise: partial(averaged_tiles, denoise, values),
                    before.before if isinstance(before, Inversion) else before,
                )


def _pasted(key: str, row: Field, parsed: Mapping[str, Any]) -> Any:
    try:
        info = read_json(str(parsed.get(TITLE, "")))
    except ValueError:
        return None
    if not isinstance(info, dict):
        return None
    found = info.get(key)
    return json.dumps(found) if isinstance(found, dict) else found


def _of_extension(args: Sequence[Any], title: str) -> list[Any]:
    """In the order of the rows. Raises `InvalidValueError`, also for what is not made here."""
    given = list(args)
    if len(given) > LEADING and (len(given) - LEADING) % REGION:
        raise InvalidValueError(
            f"{title} takes {LEADING} arguments and {REGION} for each region; {len(given)} were given."
        )
    given += [None] * (LEADING - len(given))
    found = {name: given[place] for name, place in PLACES.items()}
    if bool(given[0]) and bool(given[REGIONS_ON]):
        if given[CAUSAL]:
            raise InvalidValueError(f"{title}: causal layers are not supported. Switch them off.")
        states = [given[first : first + REGION] for first in range(LEADING, len(given), REGION)]
        named = [dict(zip(REGION_KEYS, state, strict=True)) for state in states]
        enabled = {f"Region {number}": state for number, state in enumerate(named, start=1) if state["enable"]}
        found["regions"], found["draws_background"] = json.dumps(enabled), given[DRAWS_BACKGROUND]
        regions_of(found["regions"])
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


REGION_KEYS = ("enable", "x", "y", "w", "h", "prompt", "neg_prompt", "blend_mode", "feather_ratio", "seed")


@dataclass(frozen=True)
class Region:
    """A part of the image, in portions of its sides, whose texts are added to those of the image. One in the foreground
    lies over all else, with soft edges of `feather` times half its shorter side."""

    left: float
    top: float
    width: float
    height: float
    prompt: str
    negative: str
    is_foreground: bool
    feather: float

    def window(self, width: int, height: int) -> Window:
        """Its cells of latents of this size, at least one."""
        left, top = min(int(self.left * width), width - 1), min(int(self.top * height), height - 1)
        right, bottom = math.ceil((self.left + self.width) * width), math.ceil((self.top + self.height) * height)
        return Window(left, top, max(min(right, width) - left, 1), max(min(bottom, height) - top, 1))

    def edges(self, window: Window, like: Tensor) -> Tensor:
        """How much it covers each of its cells, [h,w]: rising from its edges."""
        import torch

        reach = int(min(window.width // 2, window.height // 2) * self.feather)
        if reach < 1:
            return torch.ones(window.height, window.width, dtype=like.dtype, device=like.device)
        rows, columns = torch.arange(window.height), torch.arange(window.width)
        down = torch.minimum(rows, window.height - 1 - rows)
        across = torch.minimum(columns, window.width - 1 - columns)
        inside = torch.minimum(down[:, None], across[None]).clamp(max=reach)
        return ((inside / reach) ** 2).to(like)


def regions_of(text: str) -> list[Region]:
    """The regions in JSON. Raises `InvalidValueError`."""
    if not text:
        return []
    try:
        found = read_json(text)
        states = [state for state in found.values() if state.get("enable", True)]
        if len(states) > MAX_REGIONS:
            raise ValueError(f"{len(states)} regions, at most {MAX_REGIONS}")
        return [_region(state) for state in states]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidValueError(
            f"{TITLE}: the regions do not fit ({error}). Each has enable, x, y, w, h (0 to 1), prompt, neg_prompt, "
            f"blend_mode ({BACKGROUND} or {FOREGROUND}), feather_ratio (0 to 1), seed (-1)."
        ) from error


def _region(state: Mapping[str, Any]) -> Region:
    numbers = [float(state[key]) for key in ("x", "y", "w", "h")]
    feather = float(state.get("feather_ratio", 0.2))
    if not all(0 <= number <= 1 for number in (*numbers, feather)) or min(numbers[2:]) <= 0:
        raise ValueError("its place must be within the image, its feather ratio within 0 to 1")
    if state.get("blend_mode", BACKGROUND) not in (BACKGROUND, FOREGROUND):
        raise ValueError(f"blend_mode is {state['blend_mode']!r}")
    if int(state.get("seed", -1)) != -1:
        raise ValueError("a seed of a region is not supported, only -1")
    texts = str(state.get("prompt", "")), str(state.get("neg_prompt", ""))
    left, top, width, height = numbers
    is_foreground = state.get("blend_mode") == FOREGROUND
    return Region(left, top, width, height, *texts, is_foreground, feather)


@dataclass(frozen=True)
class RegionTexts:
    """Regions with the encoded texts of each: by region and image."""

    regions: tuple[Region, ...] = ()
    prompts: Mapping[tuple[int, int], Any] = field(default_factory=dict)
    negatives: Mapping[tuple[int, int], Any] = field(default_factory=dict)

    @classmethod
    def of(cls, use: ModelUse, regions: Sequence[Region]) -> RegionTexts:
        """Encode the image's texts with those of the regions."""
        if not regions:
            return cls()
        keys = [(place, image) for place in range(len(regions)) for image in range(len(use.facts.prompts))]
        prompts = [_joined(use.facts.prompts[image], regions[place].prompt) for place, image in keys]
        negatives = [_joined(use.facts.negative_prompts[image], regions[place].negative) for place, image in keys]
        encoded = use.encode(prompts, negatives)
        return cls(
            tuple(regions),
            dict(zip(keys, encoded.prompts, strict=True)),
            dict(zip(keys, encoded.negatives, strict=True)),
        )

    def context(self, place: int, call: ModelCall, context: Any, like: Tensor) -> Any:
        """Return what the rows of a call are given for a region, instead of their own texts."""
        import torch

        found = [
            self.negatives[place, image].at(call.step)
            if is_negative
            else self.prompts[place, image].at(call.step)[0][0]
            for image, is_negative in zip(call.images, call.is_negative, strict=True)
        ]
        longest = max(len(each.crossattn) for each in found)
        texts = [_repeated(each.crossattn, longest) for each in found]
        vectors = [each.vector for each in found]
        masks = [each.mask for each in found]
        return replace(
            context,
            crossattn=torch.stack([text.to(context.crossattn) for text in texts]),
            vector=None if vectors[0] is None else torch.stack([vector.to(like) for vector in vectors]),
            mask=None if masks[0] is None else torch.stack([mask.to(like.device) for mask in masks]),
        )


def _joined(text: str, more: str) -> str:
    return ", ".join(part for part in (text, more) if part.strip())


def _repeated(tokens: Tensor, length: int) -> Tensor:
    """An encoded text [K,W] in the length of a longer one: its last chunk once more."""
    import torch

    while len(tokens) < length:
        tokens = torch.cat([tokens, tokens[-min(CHUNK, length - len(tokens)) :]])
    return tokens


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
    denoise: ConditionedDenoise,
    use: ModelUse,
    values: Mapping[str, Any],
    regions: RegionTexts,
    x: Tensor,
    sigma: Tensor,
    context: Any,
) -> Tensor:
    """The prediction for latents [N,C,h,w], put together from those for tiles and for regions."""
    import torch

    rows, height, width = len(x), x.shape[-2], x.shape[-1]
    windows = Grid.of(width, height, values).windows
    if len(windows) == 1 and not regions.regions:
        return denoise(x, sigma, context)
    if regions.regions and not values["draws_background"]:
        windows = ()
    total, counts = torch.zeros_like(x), x.new_zeros(height, width)
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
        weights = weights_of(windows[0], values["method"], x)
        for window, part in zip(group, torch.split(parts, rows), strict=True):
            _cut(total, window).add_(part * weights)
            _cut(counts, window).add_(weights)
    over, covers, layers = torch.zeros_like(x), torch.zeros_like(counts), torch.zeros_like(counts)
    for place, region in enumerate(regions.regions):
        window = region.window(width, height)
        with use.calling(replace(call, windows=(window,) * rows)):
            own = _context(regions.context(place, call, context, x), [window], rows, (height, width))
            part = denoise(_cut(x, window), sigma, own)
        if region.is_foreground:
            edges = region.edges(window, x)
            _cut(over, window).add_(part)
            _cut(covers, window).add_(edges)
            _cut(layers, window).add_(1)
        else:
            weights = weights_of(window, values["method"], x)
            _cut(total, window).add_(part * weights)
            _cut(counts, window).add_(weights)
    found = torch.where(counts > 0, total / counts.clamp_min(1e-12), x)
    deep = layers.clamp_min(1)
    return found + (over / deep - found) * (covers / deep)


def averaged_tiles(denoise: Any, values: Mapping[str, Any], x: Tensor, sigma: Tensor) -> Tensor:
    """The prediction for latents [N,C,h,w] by a denoiser of whole batches, put together from those for tiles."""
    import torch

    windows = Grid.of(x.shape[-1], x.shape[-2], values).windows
    if len(windows) == 1:
        found: Tensor = denoise(x, sigma)
        return found
    total, counts = torch.zeros_like(x), x.new_zeros(x.shape[-2:])
    weights = weights_of(windows[0], values["method"], x)
    for window in windows:
        _cut(total, window).add_(denoise(_cut(x, window), sigma) * weights)
        _cut(counts, window).add_(weights)
    return total / counts


def _cut(x: Tensor, window: Window) -> Tensor:
    return x[..., window.top : window.top + window.height, window.left : window.left + window.width]


def _context(context: Any, group: Sequence[Window], rows: int, size: tuple[int, int]) -> Any:
    """Return what the tiles of a group are given: maps over the latents cut up, all else repeated."""
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
