"""What img2img starts from, out of a body: images decoded with limits, mask and numbers checked before a job begins."""

from enum import IntEnum
from typing import TypeVar

from modules.api.fetching import fetch, is_url
from modules.api.schemas import ImageBody
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.encode import decode_image
from modules.images.reading import read_image
from modules.images.resize import ResizeMode
from modules.processing.start import FromImage, Mask, MaskedContent, SourceImage
from modules.settings.values import Settings

E = TypeVar("E", bound=IntEnum)


def start_from(body: ImageBody, settings: Settings) -> FromImage:
    """The start of an img2img body; the settings say whether images may be fetched from URLs. Raises
    `UnknownNameError` (404, as the reference UI) where there is no image, and `InvalidValueError` for anything that is
    none, or a value that is not allowed."""
    if not body.init_images:
        raise UnknownNameError("Init image not found: give at least one image as base64 text in init_images.")
    if body.latent_mask and not body.mask:
        raise InvalidValueError("latent_mask says how a mask is used while sampling; give the mask itself in mask.")
    return FromImage(
        images=tuple(_source(text, f"init_images[{index}]", settings) for index, text in enumerate(body.init_images)),
        denoising_strength=body.value("denoising_strength"),
        resize_mode=_member(ResizeMode, "resize_mode", body.value("resize_mode")),
        image_cfg_scale=body.image_cfg_scale,
        initial_noise_multiplier=body.initial_noise_multiplier,
        mask=_mask(body, settings) if body.mask else None,
    )


def _mask(body: ImageBody, settings: Settings) -> Mask:
    assert body.mask is not None
    both = body.mask_blur
    return Mask(
        image=_source(body.mask, "mask", settings),
        blur_x=body.value("mask_blur_x") if both is None else both,
        blur_y=body.value("mask_blur_y") if both is None else both,
        round=body.value("mask_round"),
        fill=_member(MaskedContent, "inpainting_fill", body.value("inpainting_fill")),
        full_resolution=body.value("inpaint_full_res"),
        padding=body.value("inpaint_full_res_padding"),
        invert=bool(body.value("inpainting_mask_invert")),
        latent=_source(body.latent_mask, "latent_mask", settings) if body.latent_mask else None,
    )


def _source(text: str, what: str, settings: Settings) -> SourceImage:
    if is_url(text):
        return SourceImage.of(read_image(fetch(text, what, settings), what))
    return SourceImage.of(decode_image(text, what))


def _member(kind: type[E], name: str, value: int) -> E:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(str(item.value) for item in kind)
        raise InvalidValueError(f"{name} is {value}; allowed are {allowed}.") from None
