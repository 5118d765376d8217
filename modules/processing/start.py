"""What a request starts from: noise alone, or images of the user's with or without a mask. Frozen, nothing computed.

Images are equal when their contents are, so a request that holds some can be compared and used in the key of a cache.
"""

from __future__ import annotations

import base64
import hashlib
import math
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO

from PIL import Image

from modules.errors import InvalidValueError
from modules.images.masks import blur_mask, to_mask
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
        """Take the hash of an image; the caller must not change the image afterwards. Modes that a PNG does not hold
        (CMYK, floating point) become RGB."""
        if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            image = _in_8_bits(image)
        header = f"{image.mode} {image.width}x{image.height}\n".encode()
        return cls(image, hashlib.sha256(header + image.tobytes()).hexdigest())

    def to_text(self) -> str:
        """The image as base64 text of a PNG, for the record of a job."""
        file = BytesIO()
        self.image.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> SourceImage:
        """The inverse of `to_text`."""
        image = Image.open(BytesIO(base64.b64decode(text)))
        image.load()
        return cls.of(image)


def _in_8_bits(image: Image.Image) -> Image.Image:
    """An image of 16 or 32 bits a channel, or of another color model, as RGB in 8 bits."""
    if image.mode.startswith("I;16") or image.mode == "I":
        return image.point(lambda value: value / 256).convert("L").convert("RGB")
    return image.convert("RGB")


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
    latent: SourceImage | None = None  # in place of `image` while sampling, as it is: neither inverted nor blurred

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

    `images` holds one image for all of a batch, or one per image. `image_cfg_scale` says how strongly a model that
    edits images follows them; None or 1: it is guided by the prompt alone. `initial_noise_multiplier` scales the first
    noise; None: the setting's.
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


def check_start(start: FromImage, batch_size: int) -> None:
    """Raise `InvalidValueError` for what can be known before a job runs: a number of images that does not go with the
    batch, and a mask that marks nothing."""
    count = len(start.images)
    if count not in (1, batch_size):
        raise InvalidValueError(
            f"There are {count} images to start from and {batch_size} to make; give one, or one for each."
        )
    if start.mask is not None:
        whole_mask(start.mask, start.images[0].image.size)


def whole_mask(mask: Mask, size_px: tuple[int, int]) -> Image.Image:
    """The mask ("L", 255 is painted anew) over the first image, inverted and blurred as asked. One of another size is
    stretched where only the masked area is made, since that is found in the image's own pixels. Raises
    `InvalidValueError` where nothing would be painted."""
    found = to_mask(mask.image.image, mask.round)
    if mask.full_resolution and found.size != size_px:
        found = found.resize(size_px)
    if mask.invert:
        found = found.point(lambda value: 255 - value)
    if found.getbbox() is None:
        raise InvalidValueError(
            "The mask is empty: it marks nothing to paint. Paint the part that should change, or choose the other mask "
            "mode."
        )
    return blur_mask(found, mask.blur_x, mask.blur_y)
