"""Outpainting mk2: one side after the other, the image grows by a strip that is inpainted from noise with its own
spectrum, so that the model finds colors and detail of the right scale there."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from modules.errors import InvalidValueError
from modules.images.grid import image_grid
from modules.images.masks import flattened
from modules.processing.request.result import ImageRole
from modules.scripts.job import ImageJob, Job, Processed
from modules.scripts.script import Script

TITLE = "Outpainting mk2"
DIRECTIONS = ("left", "right", "up", "down")
ORIGINAL = 1  # masked content
STEP_PX = 64
MAX_PIXELS = 4096
MAX_EXPONENT = 4.0
INSET_PER_BLUR = 4  # pixels that the mask reaches into the image, per unit of the field
SIGMA_PER_BLUR = 2  # of the mask's blur: at the strip, two deviations away, hardly anything of the noise is left

Pixels = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Noise that is put into a strip: see `matched_noise`."""

    exponent: float
    color_variation: float


class OutpaintingMk2(Script):
    """The script."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return is_img2img

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        prefix = "script_outpainting_mk_2"
        return [
            gr.HTML("<p>Works best with many steps (80 to 100), Euler a and a denoising strength of 0.8.</p>"),
            gr.Slider(8, 256, value=128, step=8, label="Pixels to expand", elem_id=f"{prefix}_pixels"),
            gr.Slider(0, 64, value=8, step=1, label="Mask blur", elem_id=f"{prefix}_mask_blur"),
            gr.CheckboxGroup(
                list(DIRECTIONS), value=list(DIRECTIONS), label="Outpainting direction", elem_id=f"{prefix}_direction"
            ),
            gr.Slider(
                0,
                MAX_EXPONENT,
                value=1.0,
                step=0.01,
                label="Fall-off exponent (lower=higher detail)",
                elem_id=f"{prefix}_noise_q",
            ),
            gr.Slider(0, 1, value=0.05, step=0.01, label="Color variation", elem_id=f"{prefix}_color_variation"),
        ]

    def expected_cells(self, p: Job, *args: Any) -> int:
        """How many runs are coming, for the progress bar."""
        return max(1, len(set(args[3]))) * p.n_iter

    def run(
        self,
        p: Job,
        _: Any = None,
        pixels: int = 128,
        mask_blur: int = 8,
        direction: list[str] | tuple[str, ...] = DIRECTIONS,
        noise_q: float = 1.0,
        color_variation: float = 0.05,
    ) -> Processed:
        assert isinstance(p, ImageJob)
        noise = Noise(float(noise_q), float(color_variation))
        _check(int(pixels), int(mask_blur), direction, noise)
        image = flattened(p.init_images[0], p.settings.img2img.img2img_background_color)
        margins = margins_of(image.size, int(pixels), direction)
        job = p.replace()
        job.n_iter = 1
        job.resize_mode = 0
        job.inpainting_fill = ORIGINAL
        job.inpaint_full_res = False
        job.inpainting_mask_invert = 0
        job.do_not_save_samples = job.do_not_save_grid = True
        wholes: list[Processed] = []
        for number in range(p.n_iter):
            job.seed = p.seed + number * p.batch_size
            images = [image] * p.batch_size
            runs: list[Processed] = []
            for side, count in margins.items():
                runs.append(_grow(images, side, count, int(mask_blur), (p.width, p.height), noise, job))
                if runs[-1].interrupted:
                    return Processed.joined([*wholes, *runs])
                images = runs[-1].images
            whole = Processed.joined(runs)
            told = runs[0].generated
            whole.generated = [replace(first, image=made) for first, made in zip(told, images, strict=True)]
            wholes.append(whole)
        result = Processed.joined(wholes)
        p.save_samples(result)
        if len(result.images) > 1:
            result.put_grid(image_grid(result.images, math.isqrt(len(result.images))))
            p.save_grids(result)
            if not p.settings.gallery.return_grid:
                result.generated.pop(0)
        return result


def margins_of(size: tuple[int, int], pixels: int, directions: list[str] | tuple[str, ...]) -> dict[str, int]:
    """Return by how many pixels each of the sides grows: what was asked for, and more, in equal shares, up to a side
    that is a multiple of 64."""
    found: dict[str, int] = {}
    for length, sides in zip(size, (("left", "right"), ("up", "down")), strict=True):
        asked = [side for side in sides if side in directions]
        if asked:
            more = math.ceil((length + pixels * len(asked)) / STEP_PX) * STEP_PX - length
            found |= {side: more // len(asked) for side in asked}
            found[asked[-1]] = more - more // len(asked) * (len(asked) - 1)
    return found


def _grow(
    images: list[Image.Image],
    side: str,
    pixels: int,
    blur: int,
    size: tuple[int, int],
    noise: Noise,
    job: ImageJob,
) -> Processed:
    """The images grown at one side. Only the part near that side, as long as the job's width or height, is given to the
    model; that has the whole other dimension, up to a multiple of 8."""
    is_across = side in ("left", "right")
    width, height = images[0].size
    grown = (width + pixels, height) if is_across else (width, height + pixels)
    place = (pixels if side == "left" else 0, pixels if side == "up" else 0)
    length = min(max((size[0] if is_across else size[1]) // 8 * 8, _up(pixels + STEP_PX)), _up(grown[not is_across]))
    window = (length, _up(height)) if is_across else (_up(width), length)
    left = grown[0] - window[0] if side == "right" else 0
    top = grown[1] - window[1] if side == "down" else 0
    reach, sigma = INSET_PER_BLUR * blur, SIGMA_PER_BLUR * blur
    canvases = [
        matched_noise(image, grown, place, reach, noise, seed=job.seed + number) for number, image in enumerate(images)
    ]
    job.init_images = [_window(canvas, left, top, window) for canvas in canvases]
    job.width, job.height = window
    job.mask_blur_x, job.mask_blur_y = (sigma, 0) if is_across else (0, sigma)
    job.image_mask = _window(_mask(grown, place, images[0].size, reach), left, top, window)
    job.latent_mask = _window(_mask(grown, place, images[0].size, reach // 2), left, top, window)
    run = job.make()
    if run.interrupted:
        return run
    made = [image for image in run.generated if image.role is ImageRole.SAMPLE]
    for canvas, image in zip(canvases, made, strict=True):
        canvas.paste(image.image, (left, top))
    run.generated = [replace(image, image=canvas, path=None) for image, canvas in zip(made, canvases, strict=True)]
    return run


def _up(length: int) -> int:
    return math.ceil(length / 8) * 8


def _window(image: Image.Image, left: int, top: int, size: tuple[int, int]) -> Image.Image:
    """A part of an image, its border repeated where the part is larger."""
    pixels = np.asarray(image)
    rows = np.arange(top, top + size[1]).clip(0, image.height - 1)
    columns = np.arange(left, left + size[0]).clip(0, image.width - 1)
    return Image.fromarray(pixels[rows][:, columns])


def _mask(size: tuple[int, int], place: tuple[int, int], kept: tuple[int, int], reach: int) -> Image.Image:
    """White where the canvas is painted: the new strip, and `reach` pixels of the image beside it."""
    mask = Image.new("L", size, 255)
    left, top = (start + (reach if start else 0) for start in place)
    right = place[0] + kept[0] - (reach if place[0] + kept[0] < size[0] else 0)
    bottom = place[1] + kept[1] - (reach if place[1] + kept[1] < size[1] else 0)
    if left < right and top < bottom:
        mask.paste(0, (left, top, right, bottom))
    return mask


def matched_noise(
    image: Image.Image, size: tuple[int, int], place: tuple[int, int], fade_px: int, noise: Noise, seed: int
) -> Image.Image:
    """The image [RGB] at `place` of a canvas of `size`, the rest of which is noise shaped to the image.

    With F the Fourier transform of a color of the image (its mean taken off, under a Hann window, at the canvas's size)
    and n white noise of unit variance, the noise of that color is the inverse transform of |F|^exponent * n^ / |n^|:
    an exponent of 1 gives the image's own spectrum, a lower one a flatter one, with more detail. n is
    (1 - v) * g + v * c, where g is common to all colors, c is not, and v is the color variation. The values are then
    replaced, rank by rank, by those of the image, so that both have one histogram. Over `fade_px` beside the image it
    begins as the image's repeated border.
    """
    pixels = np.asarray(image, dtype=np.float64)
    random = np.random.default_rng(seed)
    height, width = size[1], size[0]
    window = np.hanning(image.height + 2)[1:-1, None] * np.hanning(image.width + 2)[1:-1]
    common = random.standard_normal((height, width))
    rows = (np.arange(height) - place[1]).clip(0, image.height - 1)
    columns = (np.arange(width) - place[0]).clip(0, image.width - 1)
    canvas = pixels[rows][:, columns]
    distance = np.maximum(
        np.abs(np.arange(height) - place[1] - rows)[:, None], np.abs(np.arange(width) - place[0] - columns)[None, :]
    )
    share = np.clip(distance / (fade_px + 1), 0, 1)
    for color in range(3):
        values = pixels[..., color]
        spectrum = np.abs(np.fft.rfft2((values - values.mean()) * window, s=(height, width)))
        drawn = (1 - noise.color_variation) * common
        drawn = drawn + noise.color_variation * random.standard_normal((height, width))
        phases = np.fft.rfft2(drawn)
        shaped = np.fft.irfft2(spectrum**noise.exponent * phases / np.maximum(np.abs(phases), 1e-12), s=(height, width))
        canvas[..., color] += (_with_histogram(shaped, values) - canvas[..., color]) * share
    return Image.fromarray(np.rint(canvas).clip(0, 255).astype(np.uint8))


def _with_histogram(values: Pixels, of: Pixels) -> Pixels:
    """The values replaced by those of another image that have the same rank."""
    ranks = np.empty(values.size)
    ranks[np.argsort(values, axis=None)] = np.linspace(0, 1, values.size)
    levels = np.sort(of, axis=None)
    found: Pixels = np.interp(ranks, np.linspace(0, 1, levels.size), levels).reshape(values.shape)
    return found


def _check(pixels: int, blur: int, directions: list[str] | tuple[str, ...], noise: Noise) -> None:
    if not directions or any(name not in DIRECTIONS for name in directions):
        raise InvalidValueError(f"{TITLE}: choose at least one direction of: {', '.join(DIRECTIONS)}.")
    if not 1 <= pixels <= MAX_PIXELS:
        raise InvalidValueError(f"{TITLE}: pixels to expand is {pixels}; allowed is 1 to {MAX_PIXELS}.")
    if not 0 <= blur <= 64:
        raise InvalidValueError(f"{TITLE}: mask blur is {blur}; allowed is 0 to 64.")
    if not 0 <= noise.exponent <= MAX_EXPONENT:
        raise InvalidValueError(f"{TITLE}: the fall-off exponent is {noise.exponent}; allowed is 0 to {MAX_EXPONENT}.")
    if not 0 <= noise.color_variation <= 1:
        raise InvalidValueError(f"{TITLE}: color variation is {noise.color_variation}; allowed is 0 to 1.")
