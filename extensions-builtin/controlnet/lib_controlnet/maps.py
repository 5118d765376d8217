"""From a unit to its control map: which image counts, what the module makes of it, and how it comes to a size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from lib_controlnet.fitting import fitted, pixel_perfect
from lib_controlnet.job import Detect, Job
from lib_controlnet.pixels import Pixels, as_rgb
from lib_controlnet.preprocessors import INPAINTING, Module
from lib_controlnet.resize_mode import ResizeMode
from lib_controlnet.units import Given, Unit
from modules.errors import InvalidValueError
from modules.images.masks import blur_mask, grown_to_aspect, masked_area
from modules.images.resize import ResizeMode as ImageResizeMode
from modules.images.resize import resize_image

EMPTY, FULL = 5, 250
MODES = (ResizeMode.JUST_RESIZE, ResizeMode.CROP, ResizeMode.FILL, ResizeMode.CROP)
"""Of the numbers of the request's own resize mode."""


@dataclass(frozen=True, eq=False)
class ControlMap:
    """Map that the module has made [H,W,3], or [H,W,4] with the mask, before it is fitted to an image. `shown` is what
    callers see of it where that is not the fitted map: the image of an IP-adapter. `masks_itself`: the job has a mask
    of its own, by which it keeps what is not painted."""

    pixels: Pixels
    resize_mode: ResizeMode
    masks_itself: bool = False

    def fitted(self, width: int, height: int) -> npt.NDArray[Any]:
        """In the size of an image in pixels. A map with a mask is floating point, neither rounded nor cut off."""
        pixels = self.pixels.astype(np.float32) if self.pixels.shape[2] == 4 else self.pixels
        return fitted(pixels, self.resize_mode, width, height)


def control_map(
    unit: Unit, p: Any, is_img2img: bool, name: str, find: Callable[[Sequence[str]], Path], detect: Detect
) -> ControlMap:
    """The map of a unit for a job; `find` and `detect` are those of `Job`. Raises `InvalidValueError` where there is no
    image, and what the module raises."""
    size = (p.width // 8 * 8, p.height // 8 * 8)
    mode, own = unit.resize_mode, not unit.images
    masks_itself = is_img2img and p.image_mask is not None and unit.module.name == "inpaint_only"
    if unit.images:
        given = unit.images[0]
    elif is_img2img and p.init_images:
        given = Given(np.asarray(p.init_images[0].convert("RGBA" if "A" in p.init_images[0].mode else "RGB")))
        mode = MODES[int(p.resize_mode)]
        if unit.module.name in INPAINTING and p.image_mask is not None:
            given = Given(given.image, np.asarray(request_mask(p)))
            given.check(name)
    else:
        raise InvalidValueError(
            f"{name} has no image to follow. Give it one; only in img2img the start image stands in for a missing one."
        )
    image = with_mask(unit.module, given, own)
    if is_img2img and p.image_mask is not None and p.inpaint_full_res and unit.inpaint_crop:
        image = cropped(image, p, mode, size)
    side = pixel_perfect(image, mode, *size) if unit.pixel_perfect else int(unit.processor_res)
    job = Job(image, side, unit.threshold_a, unit.threshold_b, seed_of(p), find, detect=detect)
    return ControlMap(made_with_mask(unit.module, job), mode, masks_itself)


def made_with_mask(module: Module, job: Job) -> Pixels:
    """Return what a module makes of a job's image; a mask in its fourth channel goes beside the map."""
    made = module.run(replace(job, image=job.image[:, :, :3]))
    return np.concatenate([made, job.image[:, :, 3:]], axis=2) if job.image.shape[2] == 4 else made


def with_mask(module: Module, given: Given, is_of_job: bool = False) -> Pixels:
    """The image that a module works on. A module that takes masks gets it as a fourth channel; for others a mask that
    is neither empty nor full takes the image's place. `is_of_job`: it is the job's own image."""
    image, mask = as_rgb(given.image), given.mask
    if module.keeps_mask:
        if mask is None and is_of_job and not module.name.startswith("inpaint"):
            return image
        channel = np.zeros(image.shape[:2], np.uint8) if mask is None else mask
        return np.concatenate([image, channel[:, :, None]], axis=2)
    if mask is None or (mask <= EMPTY).all() or (mask >= FULL).all():
        return image
    return as_rgb(mask)


def images_after_first(unit: Unit) -> list[Pixels]:
    """The further images of an IP-adapter, with their masks."""
    return [with_mask(unit.module, given) for given in unit.images[1:]]


def request_mask(p: Any) -> Image.Image:
    """The mask of an img2img job, inverted and blurred as the job does it; white is painted."""
    mask = p.image_mask.convert("L")
    if int(p.inpainting_mask_invert):
        mask = mask.point(lambda value: 255 - value)
    return blur_mask(mask, p.mask_blur_x, p.mask_blur_y)


def cropped(image: Pixels, p: Any, mode: ResizeMode, size: tuple[int, int]) -> Pixels:
    """The part of a control image that belongs to the masked area of a job that paints only that."""
    mask = request_mask(p)
    area = masked_area(mask, p.inpaint_full_res_padding)
    if area is None:
        return image
    area = grown_to_aspect(area, size, mask.size)
    number = ImageResizeMode(list(ResizeMode).index(mode))
    parts = []
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[:, :, channel])).convert("RGB")
        whole = resize_image(plane, mask.width, mask.height, number)
        part = resize_image(
            whole.crop((area.left, area.top, area.right, area.bottom)), *size, ImageResizeMode.RESIZE_AND_FILL
        )
        parts.append(np.asarray(part)[:, :, 0])
    return np.stack(parts, axis=2)


def seed_of(p: Any) -> int:
    """Return the seed of what is random in a module."""
    subseed = p.seed if p.subseed < 0 or not p.subseed_strength else p.subseed
    return int(max(p.seed, 0) + max(subseed, 0)) % 2**32


def shown(pixels: npt.NDArray[Any]) -> Image.Image:
    """A map as callers get it back; a mask shows as half transparent."""
    if pixels.shape[2] == 4:
        halved = np.dstack([pixels[:, :, :3], 255 - pixels[:, :, 3] // 2])
        return Image.fromarray(halved.clip(0, 255).astype(np.uint8), "RGBA")
    return Image.fromarray(np.ascontiguousarray(pixels), "RGB")
