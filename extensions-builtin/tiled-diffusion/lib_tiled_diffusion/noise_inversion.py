"""Noise inversion: an img2img pass begins with the noise that its image comes of, found by Euler's steps up the noise
levels (DDIM inversion in Mokady et al. 2023, arXiv:2211.09794), so that enlarging changes less of it. Arguments are
those of the extension "Tiled Diffusion"."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # the server reads scripts, and does without PyTorch
    from torch import Tensor

    from modules.scripts.job import PassStart

    Denoise = Callable[[Tensor, Tensor], Tensor]

FLATNESS = 0.01
"""Of the guided filter (He et al. 2010): a variance far below it is smoothed, one far above is kept."""
TIMESTEPS = 1000


@dataclass(frozen=True)
class Inversion:
    """Called before a pass's first step. `in_tiles` makes of a denoiser one that works on tiles; `image` is the start
    image; `before` was called there already."""

    values: Mapping[str, Any]
    prompts: Sequence[str]
    negatives: Sequence[str]
    image: Any
    in_tiles: Callable[[Denoise], Denoise]
    before: Callable[[PassStart], None] | None = None

    def __call__(self, start: PassStart) -> None:
        """Replace the noise of the pass, in part, by that of the image."""
        if self.before is not None:
            self.before(start)
        if start.computing is None or start.is_hires:
            return
        computing, steps = start.computing, self.values["inversion_steps"]
        denoise = self.in_tiles(computing.denoiser(self.prompts, self.negatives, 1.0, steps))
        retouch = self.values["retouch"]
        asks = asking(computing.schedule(TIMESTEPS), retouch) if retouch != 1.0 else None
        found = noise_of(denoise, start.x, computing.schedule(steps).flip(0), asks)
        strength = self.values["renoise_strength"]
        if strength > 0:
            gray = np.asarray(self.image.convert("L"))
            drawn = drawn_share(gray, self.values["renoise_kernel"], strength, found)
            found = (1 - drawn) * found + drawn * start.noise
            found = found / (drawn**2 + (1 - drawn) ** 2) ** 0.5
        start.noise.copy_(found)


Asks = Callable[[float], tuple[float, float]]
"""A noise level -> the level at which the denoiser is asked instead, and what its input is multiplied by there."""


def noise_of(denoise: Denoise, x: Tensor, sigmas: Tensor, asks: Asks | None = None) -> Tensor:
    """The noise [B,C,h,w] of about unit variance that clean latents x [B,C,h,w] come of, by Euler's steps up the rising
    `sigmas` (the first is 0): from s to t in the direction that the denoiser says at t."""
    levels = sigmas.tolist()
    for here, there in pairwise(levels):
        asked, scale = (there, 1.0) if asks is None else asks(there)
        at = x * scale
        direction = (at - denoise(at, x.new_full((len(x),), asked))) / asked
        x = x + direction * (there - here)
    return x.div(levels[-1])


def asking(levels: Tensor, retouch: float) -> Asks:
    """Ask where the timestep is divided by `retouch`: above 1 the model takes the image to be cleaner than it is, and
    finds less noise. `levels` are the model's own, falling to 0, one for each timestep."""
    logs = np.log(levels[:-1].flip(0).double().numpy())
    steps = np.arange(len(logs))
    is_scaled = logs[-1] > 0  # noise is added to the whole image, so that inputs are brought to unit variance

    def asks(sigma: float) -> tuple[float, float]:
        timestep = float(np.interp(np.log(sigma), logs, steps)) / retouch
        asked = float(np.exp(np.interp(timestep, steps, logs)))
        return asked, ((asked**2 + 1) / (sigma**2 + 1)) ** 0.5 if is_scaled else 1.0

    return asks


def drawn_share(gray: npt.NDArray[np.uint8], kernel: int, strength: float, like: Tensor) -> Tensor:
    """How much of the noise of each cell is drawn, [h,w] in 0..1: all of it at strength 1, less where a smoothing that
    keeps edges would brighten the image. `gray` [H,W]; `kernel` is the side of that smoothing in pixels."""
    import torch
    from torch.nn import functional as F

    kept = torch.from_numpy(brightened(gray, kernel))[None, None]
    share = 1.0 - F.interpolate(kept, size=like.shape[-2:], mode="bilinear", align_corners=False)[0, 0]
    return (share * strength).clamp(0, 1).to(like)


def brightened(gray: npt.NDArray[np.uint8], kernel: int) -> npt.NDArray[np.float32]:
    """Return by how much a guided filter of the image by itself brightens each pixel, in 0..1 and whole levels. Where
    it darkens, the levels below 0 count from 255 down, as bytes do: callers' settings were chosen for that."""
    from scipy.ndimage import uniform_filter

    def mean(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        found: npt.NDArray[np.float32] = uniform_filter(values, kernel, mode="mirror")
        return found

    image = gray.astype(np.float32) / 255.0
    middle = mean(image)
    variance = mean(image * image) - middle * middle
    slope = variance / (variance + FLATNESS)
    smooth = slope * image + (middle - slope * middle)
    levels = np.trunc((smooth - image) * 255.0).astype(np.int64) % 256
    return (levels / 255.0).astype(np.float32)
