"""What a request starts from: noise alone, or images of the user's with or without a mask. Frozen, nothing computed.

Images are equal when their contents are, so a request that holds some can be compared and used in the key of a cache.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field
from enum import IntEnum

from PIL import Image

from modules.errors import InvalidValueError
from modules.images.resize import ResizeMode

MAX_BLUR_PX = 1024
MAX_PADDING_PX = 4096


@dataclass(frozen=True)
class SourceImage:
    """An image that the user gave, and the sha256 of its pixels, mode and size. Only the hash counts for equality."""

    image: Image.Image = field(compare=False, repr=False)
    sha256: str

    @classmethod
    def of(cls, image: Image.Image) -> SourceImage:
        """Take the hash of an image; the caller must not change the image afterwards."""
        header = f"{image.mode} {image.width}x{image.height}\n".encode()
        return cls(image, hashlib.sha256(header + image.tobytes()).hexdigest())


class MaskedContent(IntEnum):
    """What lies under the mask before sampling, with the numbers of the API field `inpainting_fill`."""

    FILL = 0  # the colors around it, blurred
    ORIGINAL = 1
    LATENT_NOISE = 2
    LATENT_NOTHING = 3


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Where the image may change: white in `image`, or black with `invert`."""

    image: SourceImage
    blur_x: int = 4  # standard deviation in pixels
    blur_y: int = 4
    round: bool = True  # to fully masked or not at all, in latent units
    fill: MaskedContent = MaskedContent.ORIGINAL
    full_resolution: bool = False  # only the masked region is made, in the size of the request
    padding: int = 32  # pixels around that region
    invert: bool = False

    def __post_init__(self) -> None:
        for name, value, high in (
            ("mask blur x", self.blur_x, MAX_BLUR_PX),
            ("mask blur y", self.blur_y, MAX_BLUR_PX),
            ("only masked padding", self.padding, MAX_PADDING_PX),
        ):
            if not 0 <= value <= high:
                raise InvalidValueError(f"{name} is {value!r}; allowed is 0 to {high}.")


@dataclass(frozen=True)
class FromNoise:
    """Nothing but noise: txt2img."""


@dataclass(frozen=True, kw_only=True)
class FromImage:
    """Images that are noised as far as `denoising_strength` says, and sampled from there: img2img and inpainting.

    `images` holds one image for all of a batch, or one per image. `image_cfg_scale` is for models that are guided by
    the image as well; None for the default. `initial_noise_multiplier` scales the first noise; None: the setting's.
    """

    images: tuple[SourceImage, ...]
    denoising_strength: float = 0.75
    resize_mode: ResizeMode = ResizeMode.JUST_RESIZE
    image_cfg_scale: float | None = None
    initial_noise_multiplier: float | None = None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        if not self.images:
            raise InvalidValueError("There is no image to start from; give one in init_images.")
        for name, value, high in (
            ("denoising strength", self.denoising_strength, 1.0),
            ("image CFG scale", self.image_cfg_scale, 100.0),
            ("initial noise multiplier", self.initial_noise_multiplier, 10.0),
        ):
            if value is not None and not (math.isfinite(value) and 0 <= value <= high):
                raise InvalidValueError(f"{name} is {value!r}; allowed is 0 to {high}.")


RequestStart = FromNoise | FromImage
