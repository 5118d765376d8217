"""The start of a request: noise alone, or the user's images with or without a mask. Frozen, nothing computed.

Images are equal when their contents are, so a request that holds some can be compared and used in the key of a cache.
"""

import base64
import hashlib
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from io import BytesIO
from typing import Annotated, Self

from PIL import Image, ImageOps

from modules.errors import InvalidValueError
from modules.images.masks import blur_mask, to_mask
from modules.images.outpaint import Margins
from modules.images.reading import in_8_bits
from modules.images.resize import ResizeMode
from modules.processing.request.parameters import (
    Control,
    Infotext,
    Option,
    Parameter,
    ParameterAxis,
    Section,
    Slider,
    Tab,
    check_values,
    rows_of,
)

MAX_BLUR_PX = 1024
MAX_PADDING_PX = 4096
MAX_OUTPAINT_PX = 2048
OUTPAINT_STEP_PX = 8  # the least size of a latent unit
MASK_PREFIX = "mask_"
HASH_CHARS = 12
REFERENCE_PIXELS = 1024 * 1024
"""A reference image is shown with at most so many."""
FITTED_MULTIPLE, NEARLY = 16, 0.92
"""Pixels that the sides of a reference are multiples of which is fitted into an image; share of each side from which on
it is cut to the whole image instead."""
MAX_REFERENCES = 9


@dataclass(frozen=True)
class SourceImage:
    """An image that the user gave, and the sha256 of its pixels, mode and size. Only the hash counts for equality."""

    image: Image.Image = field(compare=False, repr=False)
    sha256: str

    @cached_property
    def pixel_hash(self) -> str:
        """Return the name of the image in an infotext: the first digits of the sha256 of its pixels as RGBA and of its
        size, so that a copy in another mode or format has the same."""
        header = f"{self.image.width}x{self.image.height}\n".encode()
        return hashlib.sha256(header + self.image.convert("RGBA").tobytes()).hexdigest()[:HASH_CHARS]

    @classmethod
    def of(cls, image: Image.Image) -> Self:
        """Take the hash of an image; the caller must not change the image afterwards. Modes that a PNG does not hold
        (CMYK, floating point) become RGB."""
        if image.mode not in ("1", "L", "LA", "P", "RGB", "RGBA"):
            image = in_8_bits(image).convert("RGB")
        header = f"{image.mode} {image.width}x{image.height}\n".encode()
        return cls(image, hashlib.sha256(header + image.tobytes()).hexdigest())

    def to_text(self) -> str:
        """The image as base64 text of a PNG, for the record of a job."""
        file = BytesIO()
        self.image.save(file, "PNG")
        return base64.b64encode(file.getvalue()).decode("ascii")

    @classmethod
    def from_text(cls, text: str) -> Self:
        """The inverse of `to_text`."""
        image = Image.open(BytesIO(base64.b64decode(text)))
        image.load()
        return cls.of(image)


class MaskedContent(IntEnum):
    """The content under the mask before sampling, with the numbers of the API field `inpainting_fill`."""

    FILL = 0  # the colors around it, blurred
    ORIGINAL = 1
    LATENT_NOISE = 2
    LATENT_NOTHING = 3


@dataclass(frozen=True, kw_only=True)
class Mask:
    """Where the image may change: white in `image`, or black with `invert`. The order of the fields is their order in
    an infotext."""

    image: SourceImage
    invert: Annotated[
        bool,
        Parameter(
            control=Control(
                elem_id="{tab}_mask_mode",
                help="Whether to change the painted part or everything else.",
                label="Mask mode",
                section=Section.MASK,
                line=1,
                labels=("Inpaint masked", "Inpaint not masked"),
            ),
            api="inpainting_mask_invert",
            api_default=0,
            infotext=Infotext(key="Mask mode", written=lambda mask: mask.invert),
            option=Option(name="--mask-invert", help="black in the mask is painted"),
        ),
    ] = False
    blur_x: Annotated[
        int,  # standard deviation in pixels; the form sets both directions
        Parameter(
            low=0,
            high=MAX_BLUR_PX,
            control=Control(
                elem_id="{tab}_mask_blur",
                help="How soft the border of the mask is, in pixels. Larger: smoother joins; smaller: sharper.",
                label="Mask blur",
                section=Section.MASK,
                slider=Slider(lowest=0, highest=64, step=1),
            ),
            api="mask_blur_x",
            infotext=Infotext(key="Mask blur x", written=lambda mask: mask.blur is None),
        ),
    ] = 4
    blur_y: Annotated[
        int,
        Parameter(
            low=0,
            high=MAX_BLUR_PX,
            api="mask_blur_y",
            infotext=Infotext(key="Mask blur y", written=lambda mask: mask.blur is None),
        ),
    ] = 4
    full_resolution: Annotated[
        bool,  # only the masked region is made, in the size of the request
        Parameter(
            control=Control(
                elem_id="{tab}_inpaint_full_res",
                help="Only masked: the painted part is made at full size and put back, for fine detail.",
                label="Inpaint area",
                section=Section.MASK,
                line=3,
                labels=("Whole picture", "Only masked"),
            ),
            api="inpaint_full_res",
            api_default=True,
            infotext=Infotext(key="Inpaint area", written=lambda mask: mask.full_resolution),
            option=Option(name="--only-masked", help="make only the masked area, in the size of the image"),
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
                help="How much around the mask the model sees. Larger: fits better; smaller: more detail.",
                label="Only masked padding, pixels",
                section=Section.MASK,
                line=3,
                slider=Slider(lowest=0, highest=256, step=4),
            ),
            api="inpaint_full_res_padding",
            api_default=0,
            infotext=Infotext(key="Masked area padding", written=lambda mask: mask.full_resolution),
            option=Option(name="--only-masked-padding", metavar="PIXELS", help="around that area, default: 32"),
        ),
    ] = 32
    fill: Annotated[
        MaskedContent,
        Parameter(
            control=Control(
                elem_id="{tab}_inpainting_fill",
                help="What is under the mask at the start. Original keeps shapes; noise and nothing invent new ones.",
                label="Masked content",
                section=Section.MASK,
                line=2,
                labels=("fill", "original", "latent noise", "latent nothing"),
            ),
            api="inpainting_fill",
            api_default=0,
            infotext=Infotext(key="Masked content", written=lambda mask: mask.fill is not MaskedContent.ORIGINAL),
            option=Option(name="--masked-content", metavar="WORD"),
        ),
    ] = MaskedContent.ORIGINAL
    round: Annotated[
        bool,  # to fully masked or not at all, in latent units
        Parameter(
            api="mask_round",
            infotext=Infotext(key="Mask round", written=lambda mask: not mask.round),
        ),
    ] = True
    latent: SourceImage | None = None  # instead of `image` while sampling, as it is: neither inverted nor blurred

    def __post_init__(self) -> None:
        check_values(self, MASK_PREFIX)

    @property
    def blur(self) -> int | None:
        """The blur that an infotext gives as "Mask blur"; None where two numbers say it, or that there is none."""
        return self.blur_x if self.blur_x == self.blur_y else None


@dataclass(frozen=True)
class FromNoise:
    """Nothing but noise: txt2img. Models that edit are shown `references`."""

    references: tuple[SourceImage, ...] = ()

    def __post_init__(self) -> None:
        _check_references(self.references)


def _outpaint(side: str, grows: str, help: str, line: int = 0) -> Parameter:
    """Return the row of the pixels that are added on one side."""
    name = f"outpaint_{side}"
    return Parameter(
        low=0,
        high=MAX_OUTPAINT_PX,
        control=Control(
            elem_id=f"{{tab}}_{name}",
            help=help,
            label=f"Outpaint {side}",
            section=Section.OUTPAINT,
            line=line,
            slider=Slider(lowest=0, highest=512, step=OUTPAINT_STEP_PX),
        ),
        api=name,
        infotext=Infotext(key=f"Outpaint {side}", written=lambda start: getattr(start, name) > 0),
        option=Option(name=f"--outpaint-{side}", metavar="PIXELS", help=f"grow the image {grows}"),
        needs_memory=True,
    )


@dataclass(frozen=True, kw_only=True)
class FromImage:
    """Images that are noised as far as `denoising_strength` says, and sampled from there: img2img and inpainting.

    `images` holds one image for all of a batch, or one per image; models that edit are shown `references` besides,
    whatever is made. `image_cfg_scale` says how strongly a model that
    edits images follows them; None or 1: it is guided by the prompt alone. `initial_noise_multiplier` scales the first
    noise; None: the setting's.
    `outpaint_...` grow the canvas around the images, which are kept as they are.
    """

    images: tuple[SourceImage, ...]
    denoising_strength: Annotated[
        float,
        Parameter(
            low=0,
            high=1,
            title="denoising strength",
            control=Control(
                elem_id="{tab}_denoising_strength",
                help="How much the image changes. 0: not at all; 1: nothing is left of it. 0.3 to 0.7 is usual.",
                label="Denoising strength",
                section=Section.IMAGE,
                line=1,
                slider=Slider(lowest=0, highest=1, step=0.01),
            ),
            api="denoising_strength",
            infotext=Infotext(key="Denoising strength", written=lambda start: True),
            option=Option(name="--denoising-strength", metavar="SHARE", help="0 to 1, default: 0.75"),
        ),
    ] = 0.75
    resize_mode: Annotated[
        ResizeMode,
        Parameter(
            control=Control(
                elem_id="resize_mode",
                help="What happens when the image has another shape: stretch it, cut it, or fill what is missing.",
                label="Resize mode",
                section=Section.IMAGE,
                labels=("Just resize", "Crop and resize", "Resize and fill", "Just resize (latent upscale)"),
            ),
            api="resize_mode",
            api_default=0,
            infotext=Infotext(key="Resize mode", written=lambda start: start.resize_mode is not ResizeMode.JUST_RESIZE),
            option=Option(name="--resize-mode", metavar="WORDS", help='such as "Crop and resize"'),
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
                help="How closely the result follows the image. Higher: closer to the image; lower: freer.",
                label="Image CFG Scale",
                section=Section.IMAGE,
                line=1,
                hint="For models that edit images (instruct-pix2pix)",
                slider=Slider(lowest=0, highest=3, step=0.05),
                value=1.5,
            ),
            api="image_cfg_scale",
            infotext=Infotext(key="Image CFG scale"),
            option=Option(name="--image-cfg-scale", metavar="SCALE", help="of models that edit images"),
            axis=ParameterAxis(label="Image CFG Scale"),
        ),
    ] = None
    initial_noise_multiplier: Annotated[
        float | None,
        Parameter(
            low=0,
            high=10,
            api="initial_noise_multiplier",
            infotext=Infotext(key="Noise multiplier", is_pasted=False),
            option=Option(name="--noise-multiplier", metavar="FACTOR", help="of the first noise, default: 1"),
            axis=ParameterAxis(label="Initial noise multiplier"),
        ),
    ] = None
    outpaint_left: Annotated[
        int,
        _outpaint("left", "to the left", "How many pixels are added on the left; the model invents them."),
    ] = 0
    outpaint_right: Annotated[
        int,
        _outpaint("right", "to the right", "How many pixels are added on the right; the model invents them."),
    ] = 0
    outpaint_up: Annotated[
        int,
        _outpaint("up", "upwards", "How many pixels are added at the top; the model invents them.", line=1),
    ] = 0
    outpaint_down: Annotated[
        int,
        _outpaint("down", "downwards", "How many pixels are added at the bottom; the model invents them.", line=1),
    ] = 0
    mask: Mask | None = None
    references: tuple[SourceImage, ...] = ()

    def __post_init__(self) -> None:
        if not self.images:
            raise InvalidValueError("There is no image to start from; give one in init_images.")
        _check_references(self.references)
        check_values(self)
        for row in IMAGE_ROWS:
            value = getattr(self, row.name)
            if row.name.startswith("outpaint_") and value % OUTPAINT_STEP_PX:
                raise InvalidValueError(
                    f"{row.message_name} is {value!r}; use a multiple of {OUTPAINT_STEP_PX} pixels, such as "
                    f"{-(-value // OUTPAINT_STEP_PX) * OUTPAINT_STEP_PX}."
                )
        if self.grows and self.resize_mode is ResizeMode.LATENT_UPSCALE:
            raise InvalidValueError(
                "Outpainting keeps the pixels of the image, which a latent upscale has not: choose another resize mode."
            )
        if self.grows and self.mask is not None and self.mask.full_resolution:
            raise InvalidValueError(
                "Outpainting makes the whole canvas: choose the inpaint area 'Whole picture', or set outpaint to 0."
            )

    @property
    def grows(self) -> bool:
        """Whether the canvas is larger than the images."""
        return self.grown_px != (0, 0)

    @property
    def margins(self) -> Margins:
        """Return the margins of the canvas around the images."""
        return Margins(self.outpaint_left, self.outpaint_right, self.outpaint_up, self.outpaint_down)

    @property
    def grown_px(self) -> tuple[int, int]:
        """Return by how much the canvas is larger than the images, in width and height."""
        return self.margins.size_of((0, 0))


IMAGE_ROWS = rows_of(FromImage, tabs=Tab.IMG2IMG)
MASK_ROWS = rows_of(Mask, MASK_PREFIX, Tab.IMG2IMG)
IMAGE_PARAMETERS = (*IMAGE_ROWS, *MASK_ROWS)
"""The rows of what img2img starts from."""

RequestStart = FromNoise | FromImage


def reference_size(width: int, height: int, multiple: int = 1) -> tuple[int, int]:
    """Width and height in pixels that a reference image of this size is shown with: of at most `REFERENCE_PIXELS`, cut
    to multiples."""
    share = min(1.0, (REFERENCE_PIXELS / (width * height)) ** 0.5)
    return max(int(width * share) // multiple, 1) * multiple, max(int(height * share) // multiple, 1) * multiple


def as_reference(image: Image.Image, multiple: int) -> Image.Image:
    """Return a reference image as a model is shown it whose images have sides of this multiple."""
    return ImageOps.fit(image, reference_size(*image.size, multiple), Image.Resampling.LANCZOS)


def fitted_into(image: Image.Image, size_px: tuple[int, int]) -> Image.Image:
    """Return a reference image as a model is shown it that expects it inside of the image that it makes: cut to that
    size where the proportions are nearly those, else in its own proportions, in steps of `FITTED_MULTIPLE`."""
    share = min(whole / side for whole, side in zip(size_px, image.size, strict=True))
    fitted = [side * share for side in image.size]
    if any(side < whole * NEARLY for side, whole in zip(fitted, size_px, strict=True)):
        steps = (max(int(side), FITTED_MULTIPLE) // FITTED_MULTIPLE for side in fitted)
        width, height = (count * FITTED_MULTIPLE for count in steps)
        size_px = width, height
    return ImageOps.fit(image, size_px, Image.Resampling.BICUBIC)


def _check_references(references: tuple[SourceImage, ...]) -> None:
    if len(references) > MAX_REFERENCES:
        raise InvalidValueError(
            f"There are {len(references)} reference images; give at most {MAX_REFERENCES}, each adds to the time and "
            "memory of every step."
        )


def check_start(start: FromImage, batch_size: int) -> None:
    """Raise `InvalidValueError` for what can be known before a job runs: a number of images that does not go with the
    batch, and a mask that marks nothing."""
    count = len(start.images)
    if count not in (1, batch_size):
        raise InvalidValueError(
            f"There are {count} images to start from and {batch_size} to make; give one, or one for each. What a model "
            "is only shown are reference_images."
        )
    if start.mask is not None:
        whole_mask(start.mask, start.images[0].image.size)


def whole_mask(mask: Mask, size_px: tuple[int, int]) -> Image.Image:
    """The mask ("L", 255 is repainted) over the first image, inverted and blurred as asked. One of another size is
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
