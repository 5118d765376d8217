"""Poor man's outpainting: the image on a larger canvas whose sides are multiples of 64 pixels, of which each tile that
touches what was added is inpainted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from PIL import Image, ImageDraw

from modules.errors import InvalidValueError
from modules.images.masks import flattened
from modules.images.overlapping import Tiles
from modules.processing.request.result import ImageRole
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.script import Script

TITLE = "Poor man's outpainting"
DIRECTIONS = ("left", "right", "up", "down")
CONTENTS = ("fill", "original", "latent noise", "latent nothing")
STEP_PX = 64
MAX_PIXELS = 4096


class PoorMansOutpainting(Script):
    """The script."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = "script_poor_man_s_outpainting"
        return [
            gr.Slider(8, 256, value=128, step=8, label="Pixels to expand", elem_id=f"{prefix}_pixels"),
            gr.Slider(0, 64, value=4, step=1, label="Mask blur", elem_id=f"{prefix}_mask_blur"),
            gr.Radio(
                list(CONTENTS), value="fill", type="index", label="Masked content", elem_id=f"{prefix}_inpainting_fill"
            ),
            gr.CheckboxGroup(
                list(DIRECTIONS), value=list(DIRECTIONS), label="Outpainting direction", elem_id=f"{prefix}_direction"
            ),
        ]

    def run(
        self,
        p: Job,
        pixels: int = 128,
        mask_blur: int = 4,
        inpainting_fill: int | str = 0,
        direction: list[str] | tuple[str, ...] = DIRECTIONS,
    ) -> Processed:
        assert isinstance(p, ImageJob)
        image = flattened(p.init_images[0], p.settings.img2img.img2img_background_color)
        left, right, up, down = margins_of(image.size, int(pixels), direction)
        size = (image.width + left + right, image.height + up + down)
        tiles = Tiles.of(size, (p.width // 8 * 8, p.height // 8 * 8), int(pixels), TITLE)
        canvas = Image.new("RGB", size)
        canvas.paste(image, (left, up))
        kept = (left, up, size[0] - right, size[1] - down)
        masks = tiles.cut(_mask(size, kept, 2 * mask_blur))
        latent_masks = tiles.cut(_mask(size, kept, mask_blur // 2))
        job = p.replace()
        job.mask_blur = 2 * mask_blur
        job.inpainting_fill = _content(inpainting_fill)
        job.inpaint_full_res = False
        job.inpainting_mask_invert = 0
        job.do_not_save_samples = job.do_not_save_grid = True
        job.batch_size = job.n_iter = 1
        work = tiles.cut(canvas)
        runs: list[Processed] = []
        width, height = tiles.tile
        for number, (x, y) in enumerate(tiles.places):
            if x >= left and y >= up and x + width <= kept[2] and y + height <= kept[3]:
                continue  # nothing of it was added
            job.init_images, job.image_mask, job.latent_mask = [work[number]], masks[number], latent_masks[number]
            runs.append(job.make())
            if runs[-1].interrupted:
                return Processed.joined(runs)
            job.seed += 1
            (work[number],) = [made.image for made in runs[-1].generated if made.role is ImageRole.SAMPLE]
        whole = Processed.joined(runs)
        whole.generated = [replace(whole.generated[0], image=tiles.joined(work), path=None)]
        p.save_samples(whole)
        return whole


def margins_of(
    size: tuple[int, int], pixels: int, directions: list[str] | tuple[str, ...]
) -> tuple[int, int, int, int]:
    """Return what is added left, right, above and below: the pixels asked for, and more up to a side that is a multiple
    of 64, in the same shares. Raises `InvalidValueError`."""
    unknown = [name for name in directions if name not in DIRECTIONS]
    if unknown or not directions:
        raise InvalidValueError(f"{TITLE}: choose at least one direction of: {', '.join(DIRECTIONS)}.")
    if not 1 <= pixels <= MAX_PIXELS:
        raise InvalidValueError(f"{TITLE}: pixels to expand is {pixels}; allowed is 1 to {MAX_PIXELS}.")
    found: list[int] = []
    for side, (near, far) in zip(size, (("left", "right"), ("up", "down")), strict=True):
        asked = [pixels if name in directions else 0 for name in (near, far)]
        more = math.ceil((side + sum(asked)) / STEP_PX) * STEP_PX - side
        if not any(asked):
            found += [0, more]
            continue
        before = asked[0] * more // sum(asked)
        found += [before, more - before]
    return found[0], found[1], found[2], found[3]


def _mask(size: tuple[int, int], kept: tuple[int, int, int, int], inset_px: int) -> Image.Image:
    """White where the canvas is painted: around what is kept, and at the sides that grew so far into it. What is kept
    reaches one pixel further to the right and below, as the reference UI draws it."""
    left, top, right, bottom = kept
    mask = Image.new("L", size, 255)
    inner = (
        left + (inset_px if left else 0),
        top + (inset_px if top else 0),
        right - (inset_px if right < size[0] else 0),
        bottom - (inset_px if bottom < size[1] else 0),
    )
    if inner[0] < inner[2] and inner[1] < inner[3]:
        ImageDraw.Draw(mask).rectangle(inner, fill=0)  # the last column and row count
    return mask


def _content(chosen: int | str) -> int:
    if isinstance(chosen, int) and 0 <= chosen < len(CONTENTS):
        return chosen
    if chosen not in CONTENTS:
        raise InvalidValueError(f"{TITLE}: the masked content {chosen!r} is none of: {', '.join(CONTENTS)}.")
    return CONTENTS.index(str(chosen))
