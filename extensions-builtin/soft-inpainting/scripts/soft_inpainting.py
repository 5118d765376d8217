"""Soft inpainting: a mask's grey values say how strongly a place is repainted, and the result is blended with the
original where it did not change.

At each model call the kept latents fade out with the noise level (schedule bias, preservation strength), blended so
that their length is kept (transition contrast boost). At the end the overlay of original pixels is thinned where the
latents moved far (difference threshold and contrast, mask influence). Fields and formulas are those of the reference
UI 1.8 and its documentation (AUTOMATIC1111/stable-diffusion-webui pull request 14208).
"""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageFilter, ImageOps

from modules import scripts
from modules.scripts.job import ImageJob

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

TITLE = "Soft Inpainting"
KEYS = (
    "Soft inpainting schedule bias",
    "Soft inpainting preservation strength",
    "Soft inpainting transition contrast boost",
    "Soft inpainting mask influence",
    "Soft inpainting difference threshold",
    "Soft inpainting difference contrast",
)
ENABLED_KEY = "Soft inpainting enabled"
NEVER_ZERO = 1e-5
KERNEL_RADIUS = 2  # latent units
KERNEL_DEVIATION = 1.5
ANTIALIAS_PX = 4


@dataclass(frozen=True)
class Options:
    """The numbers of the form, in its order."""

    schedule_bias: float = 1.0
    preservation: float = 0.5
    contrast_boost: float = 4.0
    mask_influence: float = 0.0
    threshold: float = 0.5
    contrast: float = 2.0


class SoftInpainting(scripts.Script):
    """The script; takes part in jobs with a mask."""

    def title(self) -> str:
        return TITLE

    def show(self, is_img2img: bool) -> object:
        return scripts.AlwaysVisible if is_img2img else False

    def ui(self, is_img2img: bool) -> list[Any]:
        import gradio as gr

        usual = Options()
        enabled = gr.Checkbox(False, label="Soft inpainting", elem_id="soft_inpainting_enabled")
        sliders = [
            gr.Slider(
                0,
                8,
                value=usual.schedule_bias,
                step=0.1,
                label="Schedule bias",
                elem_id="mask_blend_power",
                info="Above 1: original content is preserved earlier in the schedule; below 1: later",
            ),
            gr.Slider(
                0,
                8,
                value=usual.preservation,
                step=0.05,
                label="Preservation strength",
                elem_id="mask_blend_scale",
                info="How strongly partly masked content is preserved",
            ),
            gr.Slider(
                1,
                32,
                value=usual.contrast_boost,
                step=0.5,
                label="Transition contrast boost",
                elem_id="mask_blend_offset",
                info="Keeps contrast where original and new content are mixed",
            ),
            gr.Slider(
                0,
                1,
                value=usual.mask_influence,
                step=0.05,
                label="Mask influence",
                elem_id="composite_mask_influence",
                info="0: only the difference decides what is put back; 1: the mask as well",
            ),
            gr.Slider(
                0,
                8,
                value=usual.threshold,
                step=0.25,
                label="Difference threshold",
                elem_id="composite_difference_threshold",
                info="How much the image may change before original pixels are no longer put back",
            ),
            gr.Slider(
                0,
                8,
                value=usual.contrast,
                step=0.25,
                label="Difference contrast",
                elem_id="composite_difference_contrast",
                info="How sharply original pixels give way at that threshold",
            ),
        ]
        self.infotext_fields = [
            (
                enabled,
                lambda fields: str(fields.get(ENABLED_KEY)) == "True" if "Denoising strength" in fields else None,
            ),
            *zip(sliders, KEYS, strict=True),
        ]
        return [enabled, *sliders]

    def process(self, p: Any, enabled: bool = False, *numbers: float) -> None:
        if not _applies(p, enabled):
            return
        p.mask_round = False
        p.extra_generation_params[ENABLED_KEY] = True
        p.extra_generation_params |= dict(zip(KEYS, astuple(_options(numbers)), strict=True))

    def on_mask_blend(self, p: Any, mba: Any, enabled: bool = False, *numbers: float) -> None:
        if not _applies(p, enabled):
            return
        if mba.is_final_blend:  # the pixels are blended instead
            mba.blended_latent = mba.current_latent
            return
        options = _options(numbers)
        opacity = painted_at(mba.nmask, float(mba.sigma[0]), options)
        mba.blended_latent = mixed(mba.init_latent, mba.current_latent, opacity, options.contrast_boost)

    def post_sample(self, p: Any, ps: Any, enabled: bool = False, *numbers: float) -> None:
        if not _applies(p, enabled) or p.nmask is None or not p.overlay_images:
            return
        import torch

        distances = torch.linalg.vector_norm((ps.samples - p.init_latent).float(), dim=1)
        options = _options(numbers)
        for index, distance in enumerate(distances):
            changed = changed_mask(distance.cpu().numpy(), p.nmask[0].float().cpu().numpy(), options)
            p.overlay_images[index] = thinned(p.overlay_images[index], changed, p.paste_to, (p.width, p.height))


def _applies(p: Any, enabled: bool) -> bool:
    return bool(enabled) and isinstance(p, ImageJob) and p.image_mask is not None


def _options(numbers: tuple[float, ...]) -> Options:
    return Options(*(float(number) for number in numbers))


def painted_at(painted: Tensor, sigma: float, options: Options) -> Tensor:
    """How much of each latent unit is new at a noise level: `painted` [C,h,w] in 0 to 1, to a power that grows with the
    level, so that the original is taken in late."""
    found: Tensor = painted ** (sigma**options.schedule_bias * options.preservation)
    return found


def mixed(original: Tensor, new: Tensor, opacity: Tensor, contrast_boost: float) -> Tensor:
    """Latents [B,C,h,w] mixed by `opacity` (1: new), in the length that lies between their lengths: a plain mean of
    unlike latents is too short, and shows as a grey edge. `contrast_boost` 1 is the mean of both lengths, larger values
    come near to the longer one. Computed in float64, since powers of lengths leave float16 and float32, and on the CPU,
    since Apple's and some of Intel's GPUs have no float64."""
    import torch

    share, old, changed = (part.cpu().double() for part in (opacity[:1], original, new))
    mean = torch.lerp(old, changed, share)
    lengths = [torch.linalg.vector_norm(latent, dim=1, keepdim=True) for latent in (old, changed)]
    powers = [length**contrast_boost for length in lengths]
    wanted = torch.lerp(powers[0], powers[1], share) ** (1 / contrast_boost)
    now = torch.linalg.vector_norm(mean, dim=1, keepdim=True) + NEVER_ZERO
    found: Tensor = mean * (wanted / now)
    return found.to(new)


def changed_mask(distance: Any, painted: Any, options: Options) -> Any:
    """How far a place has changed, [h,w] in 0 to 1: from the distance of its latents before and after, without outliers
    and smoothed, against a threshold that rises where the mask keeps more."""
    smooth = _percentiles(_percentiles(distance, 0.9, 1.0), 0.25, 0.75)
    influence = options.mask_influence
    kept = 1 - np.clip(painted, 0, 1) ** (influence / 2)
    kept = 0.5 * (1 - influence) + kept * influence
    half = options.threshold * kept / (1 + NEVER_ZERO - kept)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nan_to_num(smooth / half, nan=0.0, posinf=float(np.finfo(np.float32).max))
        same = 1 / (1 + ratio**options.contrast)
    return 1 - same**3 * (same * (same * 6 - 15) + 10)  # smootherstep, Perlin 2002


def _percentiles(values: Any, low: float, high: float) -> Any:
    """For each place the mean of what lies between two weighted percentiles of its neighbours; the weights are those of
    a Gaussian."""
    span = range(-KERNEL_RADIUS, KERNEL_RADIUS + 1)
    offsets = [(y, x) for y in span for x in span if x * x + y * y <= KERNEL_RADIUS**2]
    padded = np.pad(values.astype(np.float64), KERNEL_RADIUS, constant_values=np.nan)
    height, width = values.shape
    around = np.stack([padded[KERNEL_RADIUS + y :, KERNEL_RADIUS + x :][:height, :width] for y, x in offsets])
    gaussian = np.array([np.exp(-(x * x + y * y) / (2 * KERNEL_DEVIATION**2)) for y, x in offsets])
    weights = np.where(np.isnan(around), 0.0, gaussian[:, None, None])
    order = np.argsort(np.nan_to_num(around, nan=np.inf), axis=0)
    sorted_values = np.nan_to_num(np.take_along_axis(around, order, axis=0))
    sorted_weights = np.take_along_axis(weights, order, axis=0)
    ends = np.cumsum(sorted_weights, axis=0)
    total = ends[-1]
    starts = ends - sorted_weights
    least = gaussian.max()  # so that a narrow band still holds the weight of the place itself
    first = np.minimum(low * total, total - least)
    last = np.maximum(high * total, first + least)
    inside = np.clip(np.minimum(ends, last) - np.maximum(starts, first), 0, None)
    return (inside * sorted_values).sum(axis=0) / inside.sum(axis=0)


def thinned(
    overlay: Image.Image, changed: Any, paste_to: tuple[int, int, int, int] | None, size_px: tuple[int, int]
) -> Image.Image:
    """The overlay [RGBA] without what has changed; `paste_to` (left, top, width, height) is the part of it that was
    made."""
    mask = Image.fromarray((changed * 255).clip(0, 255).astype(np.uint8)).resize(size_px, Image.Resampling.LANCZOS)
    mask = mask.filter(ImageFilter.GaussianBlur(ANTIALIAS_PX))
    if paste_to is not None:
        left, top, width, height = paste_to
        whole = Image.new("L", overlay.size)
        whole.paste(mask.resize((width, height), Image.Resampling.LANCZOS), (left, top))
        mask = whole
    elif mask.size != overlay.size:
        mask = mask.resize(overlay.size, Image.Resampling.LANCZOS)
    kept = Image.new("RGBa", overlay.size)
    kept.paste(overlay.convert("RGBA").convert("RGBa"), mask=ImageOps.invert(mask))
    return kept.convert("RGBA")
