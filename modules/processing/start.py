"""What a request starts from: noise alone, or images of the user's with or without a mask. Frozen, nothing computed.

Images are equal when their contents are, so a request that holds some can be compared and used in the key of a cache.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from io import BytesIO
from typing import Annotated

from PIL import Image

from modules.errors import InvalidValueError
from modules.images.masks import blur_mask, to_mask
from modules.images.resize import ResizeMode
from modules.processing.parameters import Control, Infotext, Parameter, Section, Slider, Tab, check_values, rows_of

MASK_PREFIX = "mask_"
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
    blur_x: Annotated[
        int,  # standard deviation in pixels; the form sets both directions
        Parameter(
            low=0,
            high=MAX_BLUR_PX,
            control=Control(
                elem_id="{tab}_mask_blur",
                label="Mask blur",
                section=Section.MASK,
                slider=Slider(lowest=0, highest=64, step=1),
            ),
            infotext=Infotext(key="Mask blur"),
            tabs=Tab.IMG2IMG,
        ),
    ] = 4
    blur_y: Annotated[int, Parameter(low=0, high=MAX_BLUR_PX, tabs=Tab.IMG2IMG)] = 4
    round: bool = True  # to fully masked or not at all, in latent units
    invert: Annotated[
        bool,
        Parameter(
            control=Control(
                elem_id="{tab}_mask_mode",
                label="Mask mode",
                section=Section.MASK,
                line=1,
                labels=("Inpaint masked", "Inpaint not masked"),
            ),
            infotext=Infotext(key="Mask mode"),
            tabs=Tab.IMG2IMG,
        ),
    ] = False
    fill: Annotated[
        MaskedContent,
        Parameter(
            control=Control(
                elem_id="{tab}_inpainting_fill",
                label="Masked content",
                section=Section.MASK,
                line=2,
                labels=("fill", "original", "latent noise", "latent nothing"),
            ),
            infotext=Infotext(key="Masked content"),
            tabs=Tab.IMG2IMG,
        ),
    ] = MaskedContent.ORIGINAL
    full_resolution: Annotated[
        bool,  # only the masked region is made, in the size of the request
        Parameter(
            control=Control(
                elem_id="{tab}_inpaint_full_res",
                label="Inpaint area",
                section=Section.MASK,
                line=3,
                labels=("Whole picture", "Only masked"),
            ),
            infotext=Infotext(key="Inpaint area"),
            tabs=Tab.IMG2IMG,
        ),
    ] = False
    padding: Annotated[
        int,  # pixels around that region
        Parameter(
            low=0,
            high=MAX_PADDING_PX,
            title="only masked padding",
            control=Control(
                elem_id="{tab}_inpaint_full_res_padding",
                label="Only masked padding, pixels",
                section=Section.MASK,
                line=3,
                slider=Slider(lowest=0, highest=256, step=4),
            ),
            infotext=Infotext(key="Masked area padding"),
            tabs=Tab.IMG2IMG,
        ),
    ] = 32

    def __post_init__(self) -> None:
        check_values(self, MASK_PREFIX)


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
    denoising_strength: Annotated[
        float,
        Parameter(
            low=0,
            high=1,
            control=Control(
                elem_id="{tab}_denoising_strength",
                label="Denoising strength",
                section=Section.IMAGE,
                line=1,
                slider=Slider(lowest=0, highest=1, step=0.01),
            ),
            infotext=Infotext(key="Denoising strength"),
            tabs=Tab.IMG2IMG,
        ),
    ] = 0.75
    resize_mode: Annotated[
        ResizeMode,
        Parameter(
            control=Control(
                elem_id="resize_mode",
                label="Resize mode",
                section=Section.IMAGE,
                labels=("Just resize", "Crop and resize", "Resize and fill", "Just resize (latent upscale)"),
            ),
            tabs=Tab.IMG2IMG,
        ),
    ] = ResizeMode.JUST_RESIZE
    image_cfg_scale: Annotated[
        float | None,
        Parameter(
            low=0,
            high=100,
            title="image CFG scale",
            control=Control(
                elem_id="{tab}_image_cfg_scale",
                label="Image CFG Scale",
                section=Section.IMAGE,
                line=1,
                hint="For models that edit images (instruct-pix2pix)",
                slider=Slider(lowest=0, highest=3, step=0.05),
                value=1.5,
            ),
            infotext=Infotext(key="Image CFG scale"),
            tabs=Tab.IMG2IMG,
        ),
    ] = None
    initial_noise_multiplier: Annotated[float | None, Parameter(low=0, high=10, tabs=Tab.IMG2IMG)] = None
    mask: Mask | None = None

    def __post_init__(self) -> None:
        if not self.images:
            raise InvalidValueError("There is no image to start from; give one in init_images.")
        check_values(self)


IMAGE_ROWS = rows_of(FromImage)
MASK_ROWS = rows_of(Mask, MASK_PREFIX)
"""The rows of what an image starts from; not in the table of `modules.processing.request`, since a request may start
from noise."""

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
