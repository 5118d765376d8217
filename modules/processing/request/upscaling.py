"""Enlarging between the two passes of hires fix: six ways in latent space, and upscalers that work on pixels."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from PIL import Image

from modules.errors import UnknownNameError
from modules.system.registry import Registry

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LatentUpscaleMode:
    """Arguments of `torch.nn.functional.interpolate`."""

    mode: str
    antialias: bool


LATENT_UPSCALE_MODES: Registry[LatentUpscaleMode] = Registry("latent upscale mode")
LATENT_UPSCALE_MODES.add("Latent", LatentUpscaleMode("bilinear", False))
LATENT_UPSCALE_MODES.add("Latent (antialiased)", LatentUpscaleMode("bilinear", True))
LATENT_UPSCALE_MODES.add("Latent (bicubic)", LatentUpscaleMode("bicubic", False))
LATENT_UPSCALE_MODES.add("Latent (bicubic antialiased)", LatentUpscaleMode("bicubic", True))
LATENT_UPSCALE_MODES.add("Latent (nearest)", LatentUpscaleMode("nearest", False))
LATENT_UPSCALE_MODES.add("Latent (nearest-exact)", LatentUpscaleMode("nearest-exact", False))

# (image, width, height in pixels) -> image of about that size; the caller resizes what is left
PixelUpscaler = Callable[[Image.Image, int, int], Image.Image]

PIXEL_UPSCALERS: Registry[PixelUpscaler] = Registry("upscaler")
PIXEL_UPSCALERS.add("None", lambda image, width, height: image.resize((width, height), Image.Resampling.LANCZOS))
PIXEL_UPSCALERS.add("Lanczos", lambda image, width, height: image.resize((width, height), Image.Resampling.LANCZOS))
PIXEL_UPSCALERS.add("Nearest", lambda image, width, height: image.resize((width, height), Image.Resampling.NEAREST))


def hires_upscalers(files: Iterable[str]) -> list[str]:
    """All that hires fix can enlarge with, as lists show it; `files` are the names of upscaler files."""
    return [*LATENT_UPSCALE_MODES, *PIXEL_UPSCALERS, *files]


def check_upscaler(name: str, files: Iterable[str]) -> None:
    """Raise `UnknownNameError` unless `name` is a latent mode, a pixel upscaler or, in any case, one of `files`."""
    known = hires_upscalers(files)
    if name.lower() not in {one.lower() for one in known}:
        raise UnknownNameError.of("hires upscaler", name, known)


def check_image_upscaler(name: str, files: Iterable[str]) -> None:
    """Raise `UnknownNameError` unless `name` is empty, an upscaler on pixels or, in any case, one of `files`."""
    known = [*PIXEL_UPSCALERS, *files]
    if name and name.lower() not in {one.lower() for one in known}:
        raise UnknownNameError.of("upscaler for img2img", name, known)


def upscale_latents(latents: Tensor, mode: LatentUpscaleMode, width: int, height: int) -> Tensor:
    """Latents [B,C,h,w] resized to `width` x `height` latent units."""
    from torch.nn import functional as F

    return F.interpolate(latents, size=(height, width), mode=mode.mode, antialias=mode.antialias)


def upscale_image(image: Image.Image, name: str, width: int, height: int) -> Image.Image:
    """An image enlarged to `width` x `height` pixels by the named upscaler."""
    result = PIXEL_UPSCALERS.get(name)(image, width, height)
    return result if result.size == (width, height) else result.resize((width, height), Image.Resampling.LANCZOS)
