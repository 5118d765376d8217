"""Names that extensions import from `modules.processing`: jobs, their results, and what makes images of them."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

from PIL import Image

from compat.facades.refusal import lazy
from compat.processing import (
    Processed,
    StableDiffusionProcessing,
    StableDiffusionProcessingImg2Img,
    StableDiffusionProcessingTxt2Img,
    fixed_seed,
    process_images,
)
from modules.errors import FeatherweightError
from modules.images.color_correction import color_target, corrected
from modules.images.infotext import format_infotext, order_fields
from modules.processing.record.describe import schedule_label
from modules.scripts.job import Job

__all__ = [
    "Processed",
    "StableDiffusionProcessing",
    "StableDiffusionProcessingImg2Img",
    "StableDiffusionProcessingTxt2Img",
    "apply_color_correction",
    "apply_overlay",
    "create_infotext",
    "fix_seed",
    "get_fixed_seed",
    "process_images",
    "process_images_inner",
    "program_version",
    "setup_color_correction",
]

opt_C = 4  # noqa: N816 - their names: channels of a latent, and pixels that one stands for
opt_f = 8


def process_images_inner(p: Job) -> Any:
    """Make images as `process_images` does."""
    return p.make()


def get_fixed_seed(seed: Any) -> int:
    """The seed, or a drawn one for -1, None and ""."""
    return fixed_seed(seed)


def fix_seed(p: StableDiffusionProcessing) -> None:
    """Draw the job's seeds where none is given."""
    p.fix_seeds()


def program_version() -> str:
    """The version of the program."""
    from modules.version import PROGRAM_VERSION

    return PROGRAM_VERSION


def create_infotext(
    p: StableDiffusionProcessing,
    all_prompts: list[str],
    all_seeds: list[int],
    all_subseeds: list[int],
    comments: Any = None,
    iteration: int = 0,
    position_in_batch: int = 0,
    use_main_prompt: bool = False,
    index: int | None = None,
    all_negative_prompts: list[str] | None = None,
    all_hr_prompts: Any = None,
    all_hr_negative_prompts: Any = None,
) -> str:
    """The infotext of an image that an extension saves itself: prompts, the parameters of the job, its
    `extra_generation_params`. Images that the program saves have more."""
    at = iteration * p.batch_size + position_in_batch if index is None else index
    negatives = all_negative_prompts or p.all_negative_prompts or [p.negative_prompt]
    prompt = p.main_prompt if use_main_prompt else _entry(all_prompts, at, p.prompt)
    try:
        sampler = p.to_request().sampler
        schedule: str | None = schedule_label(sampler, p.to_request().scheduler)
    except FeatherweightError:
        sampler, schedule = p.sampler_name, None
    strength = getattr(p, "denoising_strength", None)
    fields: dict[str, Any] = {
        "Steps": p.steps,
        "Sampler": sampler,
        "Schedule type": schedule,
        "CFG scale": p.cfg_scale,
        "Seed": _entry(all_seeds, at, p.seed),
        "Size": f"{p.width}x{p.height}",
        "Model hash": p.sd_model_hash or None,
        "Model": p.sd_model_name or None,
        "Variation seed": _entry(all_subseeds, at, p.subseed) if p.subseed_strength else None,
        "Variation seed strength": p.subseed_strength or None,
        "Denoising strength": strength if strength is not None and (p.enable_hr or hasattr(p, "init_images")) else None,
        **{key: str(value) for key, value in p.extra_generation_params.items() if value is not None},
        "Version": program_version(),
    }
    return format_infotext(prompt, _entry(negatives, at, p.negative_prompt), order_fields(fields))


def _entry(values: Any, index: int, default: Any) -> Any:
    return values[index] if values and 0 <= index < len(values) else default


def setup_color_correction(image: Image.Image) -> Any:
    """Return what `apply_color_correction` needs of the image whose colors are wanted."""
    return color_target(image)


def apply_color_correction(correction: Any, original_image: Image.Image) -> Image.Image:
    """The image with the colors of another one."""
    return corrected(original_image.convert("RGB"), correction)


def apply_overlay(image: Image.Image, paste_loc: tuple[int, int, int, int] | None, overlay: Image.Image | None) -> Any:
    """The image under what a mask keeps, placed into the whole where `paste_loc` (left, top, width, height) says."""
    if overlay is None:
        return image
    if paste_loc is not None:
        left, top, width, height = paste_loc
        whole = Image.new("RGBA", overlay.size)
        whole.paste(image.resize((width, height), Image.Resampling.LANCZOS), (left, top))
        image = whole
    image = image.convert("RGBA")
    image.alpha_composite(overlay)
    return image.convert("RGB")


def create_binary_mask(image: Image.Image, round: bool = True) -> Image.Image:
    """The mask ("L") in an image: its transparency, else its luminance."""
    from modules.images.masks import to_mask

    return to_mask(image, round)


def uncrop(image: Image.Image, dest_size: tuple[int, int], paste_loc: tuple[int, int, int, int]) -> Image.Image:
    """A part put back into an empty image of the whole's size."""
    left, top, width, height = paste_loc
    whole = Image.new("RGBA", dest_size)
    whole.paste(image.resize((width, height), Image.Resampling.LANCZOS), (left, top))
    return whole


def old_hires_fix_first_pass_dimensions(width: int, height: int) -> tuple[int, int]:
    """The first pass's size where the sliders mean the last one's."""
    pixels = 512 * 512
    scale = math.sqrt(pixels / (width * height))
    return math.ceil(scale * width / 64) * 64, math.ceil(scale * height / 64) * 64


_INSIDE = "process_images(p) makes images; on_cfg_denoiser and its like change what a model gives."
_REASONS = {
    **dict.fromkeys(
        (
            "decode_first_stage",
            "decode_latent_batch",
            "create_random_tensors",
            "get_correct_sampler",
            "samples_to_images_tensor",
            "images_tensor_to_samples",
        ),
        _INSIDE,
    ),
    **dict.fromkeys(
        ("txt2img_image_conditioning", "get_conds_with_caching", "DecodedSamples", "approximation_indexes"), _INSIDE
    ),
}


def _imported(name: str) -> Any:
    """A module that extensions take from here instead of importing it."""
    return lambda: import_module(name)


def _shared(name: str) -> Any:
    return lambda: getattr(import_module("compat.facades.shared"), name)


_LAZY: dict[str, Any] = {
    **{name: _shared(name) for name in ("opts", "state", "cmd_opts")},
    **{name: _imported(f"modules.{name}") for name in ("shared", "devices", "sd_samplers", "sd_models", "scripts")},
    **{name: _imported(f"modules.{name}") for name in ("images", "prompt_parser", "masking", "errors")},
    "np": _imported("numpy"),
    "slerp": lambda: import_module("compat.facades.rng").slerp,
    "random": _imported("random"),
    "os": _imported("os"),
    "Image": lambda: Image,
}
__getattr__ = lazy("processing", _LAZY, _REASONS)
