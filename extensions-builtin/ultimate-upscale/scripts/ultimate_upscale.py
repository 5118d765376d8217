"""Ultimate SD upscale: the image is enlarged by an upscaler and redrawn tile by tile, each with the pixels around it as
context, so that it goes on from those that are already redrawn; the seams may then be redrawn once more.

Script name, arguments and their order are those that clients of the extension of this name send.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.masks import flattened
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.script import Script

TITLE = "Ultimate SD upscale"
REDRAWS = ("Linear", "Chess", "None")
SEAM_FIXES = ("None", "Band pass", "Half tile offset pass", "Half tile offset pass + intersections")
TARGETS = ("From img2img2 settings", "Custom size", "Scale from image size")
ORIGINAL = 1  # masked content
MAX_SIDE_PX = 16384
SIZE_STEP_PX = 64  # of a size that is scaled from the image's
LATENT_PX = 8  # crops have whole latent units
BLUR_REACH = 2.5  # standard deviations up to which a blurred mask is not zero


@dataclass(frozen=True)
class Patch:
    """A part of the image to redraw: its box in pixels, and where in it how much (255 is redrawn)."""

    left: int
    top: int
    mask: Image.Image


@dataclass(frozen=True)
class Look:
    """How patches are redrawn: blur of their masks, context around them (pixels), denoising strength."""

    blur: int
    padding: int
    strength: float

    def room(self, patch: tuple[int, int], image: tuple[int, int]) -> tuple[int, int]:
        """Width and height of what the model sees for a patch of this size: with context, and the mask's blur."""
        around = max(self.padding, math.ceil(BLUR_REACH * self.blur))
        across, down = (
            min(whole, math.ceil((side + 2 * around) / LATENT_PX) * LATENT_PX)
            for side, whole in zip(patch, image, strict=True)
        )
        return across, down


@dataclass(frozen=True)
class Raster:
    """The tiles of an image; those at its right and lower border are cut."""

    size: tuple[int, int]
    tile: tuple[int, int]

    @property
    def columns(self) -> int:
        return math.ceil(self.size[0] / self.tile[0])

    @property
    def rows(self) -> int:
        return math.ceil(self.size[1] / self.tile[1])

    def tiles(self, redraw: str) -> list[Patch]:
        """All tiles in their order: row by row, or first those of one color of a chessboard and then the others."""
        if redraw == "None":
            return []
        width, height = self.tile
        places = [(x, y) for y in range(self.rows) for x in range(self.columns)]
        if redraw == "Chess":
            places.sort(key=lambda place: sum(place) % 2)
        return [Patch(x * width, y * height, self._cut(x * width, y * height, *self.tile)) for x, y in places]

    def seams(self, fix: str, width: int) -> list[list[Patch]]:
        """The patches over the borders of tiles, those of one size together. Their masks rise from the edges to the
        border that they cover."""
        across, down = self.tile
        if fix == "Band pass":
            half = width // 2
            upright = [
                self._faded(x * across - half, 0, np.tile(_hat(2 * half), (self.size[1], 1)))
                for x in range(1, self.columns)
            ]
            lying = [
                self._faded(0, y * down - half, np.tile(_hat(2 * half)[:, None], (1, self.size[0])))
                for y in range(1, self.rows)
            ]
            return [upright, lying]
        if fix == "None":
            return []
        hats = _hat(across)[None, :], _hat(down)[:, None]
        lying = [
            self._faded(x * across, y * down + down // 2, np.tile(hats[1], (1, across)))
            for y in range(self.rows - 1)
            for x in range(self.columns)
        ]
        upright = [
            self._faded(x * across + across // 2, y * down, np.tile(hats[0], (down, 1)))
            for y in range(self.rows)
            for x in range(self.columns - 1)
        ]
        if fix != SEAM_FIXES[3]:
            return [lying, upright]
        crossings = [
            self._faded(x * across + across // 2, y * down + down // 2, _cone(across, down))
            for y in range(self.rows - 1)
            for x in range(self.columns - 1)
        ]
        return [lying, upright, crossings]

    def _cut(self, left: int, top: int, width: int, height: int) -> Image.Image:
        """A white mask of the part that is inside of the image."""
        return Image.new("L", (min(width, self.size[0] - left), min(height, self.size[1] - top)), 255)

    def _faded(self, left: int, top: int, share: NDArray[np.float64]) -> Patch:
        """A patch whose mask is `share` [H,W] in 0 to 1, of which only the part inside of the image is left."""
        x, y = max(-left, 0), max(-top, 0)
        inside = share[y : self.size[1] - top, x : self.size[0] - left]
        return Patch(left + x, top + y, Image.fromarray(np.rint(inside * 255).astype(np.uint8)))


class UltimateUpscale(Script):
    """The script."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        def named(name: str) -> str:
            return f"script_ultimate_sd_upscale_{name}"

        info = gr.HTML("<p>Enlarges the image and redraws it tile by tile, each with its surroundings.</p>")
        target = gr.Dropdown(
            list(TARGETS), value=TARGETS[0], type="index", label="Target size type", elem_id=named("target_size_type")
        )
        custom_width = gr.Slider(
            64, 8192, value=2048, step=64, label="Custom width", elem_id=named("custom_width"), interactive=True
        )
        custom_height = gr.Slider(
            64, 8192, value=2048, step=64, label="Custom height", elem_id=named("custom_height"), interactive=True
        )
        custom_scale = gr.Slider(1, 16, value=2, step=0.01, label="Scale", elem_id=named("custom_scale"))
        upscaler = gr.Radio(
            self.program.pixel_upscalers(),
            value="None",
            type="index",
            label="Upscaler",
            elem_id=named("upscaler_index"),
        )
        redraw = gr.Dropdown(list(REDRAWS), value=REDRAWS[0], type="index", label="Type", elem_id=named("redraw_mode"))
        tile_width = gr.Slider(0, 2048, value=512, step=64, label="Tile width", elem_id=named("tile_width"))
        tile_height = gr.Slider(0, 2048, value=0, step=64, label="Tile height", elem_id=named("tile_height"))
        blur = gr.Slider(0, 64, value=8, step=1, label="Mask blur", elem_id=named("mask_blur"))
        padding = gr.Slider(0, 512, value=32, step=1, label="Padding", elem_id=named("padding"))
        fix = gr.Dropdown(
            list(SEAM_FIXES), value=SEAM_FIXES[0], type="index", label="Seams fix", elem_id=named("seams_fix_type")
        )
        fix_strength = gr.Slider(
            0, 1, value=0.35, step=0.01, label="Seams fix denoise", elem_id=named("seams_fix_denoise")
        )
        fix_width = gr.Slider(0, 128, value=64, step=1, label="Seams fix width", elem_id=named("seams_fix_width"))
        fix_blur = gr.Slider(0, 64, value=4, step=1, label="Seams fix mask blur", elem_id=named("seams_fix_mask_blur"))
        fix_padding = gr.Slider(0, 128, value=16, step=1, label="Seams fix padding", elem_id=named("seams_fix_padding"))
        save = gr.Checkbox(True, label="Save upscaled image", elem_id=named("save_upscaled_image"))
        save_fixed = gr.Checkbox(False, label="Save image with fixed seams", elem_id=named("save_seams_fix_image"))
        self.infotext_fields = [
            (upscaler, f"{TITLE} upscaler"),
            (tile_width, f"{TITLE} tile_width"),
            (tile_height, f"{TITLE} tile_height"),
            (blur, f"{TITLE} mask_blur"),
            (padding, f"{TITLE} padding"),
        ]
        tiles = [tile_width, tile_height, blur, padding]
        fixes = [fix_width, fix_strength, fix_padding]
        sizes = [target, custom_width, custom_height, custom_scale]
        return [info, *tiles, *fixes, upscaler, save, redraw, save_fixed, fix_blur, fix, *sizes]

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        assert isinstance(p, ImageJob)
        size = _target(p, args[14], int(args[15]), int(args[16]), float(args[17]))
        raster = Raster(size, _tile(int(args[1]), int(args[2])))
        seams = raster.seams(_one_of("seams fix", SEAM_FIXES, args[13]), int(args[5]))
        redrawn = raster.tiles(_one_of("type of redraw", REDRAWS, args[10]))
        return (len(redrawn) + sum(len(patches) for patches in seams)) * p.n_iter

    def run(
        self,
        p: Job,
        _: Any = None,
        tile_width: int = 512,
        tile_height: int = 0,
        mask_blur: int = 8,
        padding: int = 32,
        seams_fix_width: int = 64,
        seams_fix_denoise: float = 0.35,
        seams_fix_padding: int = 16,
        upscaler_index: int | str = 0,
        save_upscaled_image: bool = True,
        redraw_mode: int | str = 0,
        save_seams_fix_image: bool = False,
        seams_fix_mask_blur: int = 4,
        seams_fix_type: int | str = 0,
        target_size_type: int | str = 0,
        custom_width: int = 2048,
        custom_height: int = 2048,
        custom_scale: float = 2.0,
    ) -> Processed:
        assert isinstance(p, ImageJob)
        upscaler = _one_of("upscaler", tuple(self.program.pixel_upscalers()), upscaler_index)
        redraw = _one_of("type of redraw", REDRAWS, redraw_mode)
        fix = _one_of("seams fix", SEAM_FIXES, seams_fix_type)
        size = _target(p, target_size_type, int(custom_width), int(custom_height), float(custom_scale))
        raster = Raster(size, _tile(int(tile_width), int(tile_height)))
        if fix == "Band pass" and seams_fix_width < 2:
            raise InvalidValueError(
                f"{TITLE}: the seams fix width is {seams_fix_width}; a band needs 2 pixels or more."
            )
        rounds = [
            ([raster.tiles(redraw)], Look(int(mask_blur), int(padding), p.denoising_strength), save_upscaled_image)
        ]
        if fix != "None":
            look = Look(int(seams_fix_mask_blur), int(seams_fix_padding), float(seams_fix_denoise))
            rounds.append((raster.seams(fix, int(seams_fix_width)), look, save_seams_fix_image))
        rounds = [entry for entry in rounds if any(entry[0])]
        if not rounds:
            raise InvalidValueError(
                f"{TITLE}: nothing would be redrawn. Choose a type of redraw or a seams fix with more than one tile; "
                "to enlarge without redrawing, use the tab Extras."
            )
        image = flattened(p.init_images[0], p.settings.img2img.img2img_background_color)
        enlarged = self.program.enlarge(image, upscaler, size, p.settings)
        job = _prepared(p)
        job.extra_generation_params |= {
            f"{TITLE} upscaler": upscaler,
            f"{TITLE} tile_width": raster.tile[0],
            f"{TITLE} tile_height": raster.tile[1],
            f"{TITLE} mask_blur": int(mask_blur),
            f"{TITLE} padding": int(padding),
        }
        wholes: list[Processed] = []
        for number in range(p.n_iter):
            job.seed = p.seed + number
            canvas = enlarged.copy()
            for groups, look, is_saved in rounds:
                runs = list(_redrawn(canvas, groups, look, job))
                whole = Processed.joined(runs)
                whole.generated = _as_one(runs, canvas)
                if is_saved and not whole.interrupted:
                    p.save_samples(whole)
                wholes.append(whole)
                if whole.interrupted:
                    return Processed.joined(wholes)
        return Processed.joined(wholes)


def _prepared(p: ImageJob) -> ImageJob:
    """A copy of the job that redraws one patch under a mask."""
    job = p.replace()
    job.batch_size = job.n_iter = 1
    job.do_not_save_samples = job.do_not_save_grid = True
    job.resize_mode = 0
    job.latent_mask = None
    job.inpainting_fill = ORIGINAL
    job.inpaint_full_res = False
    job.inpainting_mask_invert = 0
    return job


def _redrawn(canvas: Image.Image, groups: list[list[Patch]], look: Look, job: ImageJob) -> Iterator[Processed]:
    """Redraw patches on the canvas, which is changed, one after the other; those of a group have crops of one size."""
    job.mask_blur, job.denoising_strength = look.blur, look.strength
    for patches in groups:
        largest = tuple(max((patch.mask.size[side] for patch in patches), default=0) for side in (0, 1))
        width, height = look.room((largest[0], largest[1]), canvas.size)
        for patch in patches:
            left = _placed(patch.left, patch.mask.width, width, canvas.width)
            top = _placed(patch.top, patch.mask.height, height, canvas.height)
            mask = Image.new("L", (width, height))
            mask.paste(patch.mask, (patch.left - left, patch.top - top))
            job.init_images = [canvas.crop((left, top, left + width, top + height))]
            job.image_mask, job.width, job.height = mask, width, height
            run = job.make()
            if not run.interrupted:
                (made,) = [image.image for image in run.generated if image.role is ImageRole.SAMPLE]
                # A model that takes fewer sizes may have made it a little smaller.
                fitting = made if made.size == mask.size else made.resize(mask.size, Image.Resampling.LANCZOS)
                canvas.paste(fitting, (left, top))
            yield run
            if run.interrupted:
                return


def _placed(start: int, length: int, room: int, whole: int) -> int:
    """Where a crop of `room` pixels begins that has a patch in its middle and does not leave the image."""
    return min(max(start - (room - length) // 2, 0), whole - room)


def _as_one(runs: list[Processed], canvas: Image.Image) -> list[GeneratedImage]:
    """Return what all runs together made, told as the first of them; nothing if not even that was finished."""
    made = [image for run in runs for image in run.generated if image.role is ImageRole.SAMPLE]
    return [replace(made[0], image=canvas.copy(), path=None)] if made else []


def _hat(length: int) -> NDArray[np.float64]:
    """[length] values that rise to 1 in the middle and fall again."""
    centers = (np.arange(length) + 0.5) / length
    hat: NDArray[np.float64] = 1 - np.abs(2 * centers - 1)
    return hat


def _cone(width: int, height: int) -> NDArray[np.float64]:
    """[height,width] values that fall from 1 in the middle to 0 at the ellipse inside of the box."""
    x, y = 1 - _hat(width), 1 - _hat(height)
    cone: NDArray[np.float64] = np.clip(1 - np.hypot(x[None, :], y[:, None]), 0, 1)
    return cone


def _one_of(what: str, names: tuple[str, ...], chosen: int | str) -> str:
    """A name by its place in the list or by itself, in any case. Raises `InvalidValueError`."""
    if isinstance(chosen, int) and 0 <= chosen < len(names):
        return names[chosen]
    for name in names:
        if name.lower() == str(chosen).lower():
            return name
    raise InvalidValueError(f"{TITLE}: the {what} {chosen!r} is none of: {', '.join(names)}.")


def _tile(width: int, height: int) -> tuple[int, int]:
    """A side of 0 is as long as the other."""
    tile = (width or height, height or width)
    if min(tile) < 64:
        raise InvalidValueError(f"{TITLE}: a tile has {tile[0]}x{tile[1]} pixels; allowed are 64 and more a side.")
    return tile


def _target(p: ImageJob, chosen: int | str, width: int, height: int, scale: float) -> tuple[int, int]:
    """Width and height of the result in pixels. A scaled size goes up to the next multiple of 64."""
    target = _one_of("target size type", TARGETS, chosen)
    if target == TARGETS[0]:
        size = (p.width // LATENT_PX * LATENT_PX, p.height // LATENT_PX * LATENT_PX)
    elif target == TARGETS[1]:
        size = (width, height)
    else:
        across, down = (math.ceil(side * scale / SIZE_STEP_PX) * SIZE_STEP_PX for side in p.init_images[0].size)
        size = (across, down)
    if not SIZE_STEP_PX <= min(size) <= max(size) <= MAX_SIDE_PX or any(side % LATENT_PX for side in size):
        raise InvalidValueError(
            f"{TITLE}: the result would have {size[0]}x{size[1]} pixels; allowed are multiples of {LATENT_PX} from "
            f"{SIZE_STEP_PX} to {MAX_SIDE_PX}."
        )
    return size
