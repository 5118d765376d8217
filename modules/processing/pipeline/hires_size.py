"""Which size the second pass of hires fix has, by the reference UI's rules. Pure arithmetic on pixels."""

import math
from dataclasses import dataclass

from modules.processing.request import HiresRequest

OLD_PIXEL_COUNT = 512 * 512


@dataclass(frozen=True)
class HiresSize:
    """`upscale_to` is what the first image is enlarged to; `target` what is left after the overhang is cut off.

    All in pixels; `cut` is the overhang in latent units (width, height).
    """

    upscale_to: tuple[int, int]
    target: tuple[int, int]
    cut: tuple[int, int]


def hires_size(width: int, height: int, hires: HiresRequest, downscale: int = 8) -> HiresSize:
    """The rule: no resize values: times `scale`; one: the other keeps the aspect; both: cover the box, then crop."""
    want_w, want_h = hires.resize_width, hires.resize_height
    if want_w == 0 and want_h == 0:
        size = (int(width * hires.scale), int(height * hires.scale))
        return HiresSize(size, size, (0, 0))
    if want_h == 0:
        size = (want_w, want_w * height // width)
        return HiresSize(size, size, (0, 0))
    if want_w == 0:
        size = (want_h * width // height, want_h)
        return HiresSize(size, size, (0, 0))
    if width / height < want_w / want_h:
        covering = (want_w, want_w * height // width)
    else:
        covering = (want_h * width // height, want_h)
    cut = ((covering[0] - want_w) // downscale, (covering[1] - want_h) // downscale)
    return HiresSize(covering, (want_w, want_h), cut)


def old_first_pass_size(width: int, height: int) -> tuple[int, int]:
    """The first pass's size under "use width/height sliders to set final resolution": about 512x512 pixels."""
    scale = math.sqrt(OLD_PIXEL_COUNT / (width * height))
    return math.ceil(scale * width / 64) * 64, math.ceil(scale * height / 64) * 64
