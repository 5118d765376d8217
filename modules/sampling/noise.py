"""Where noise comes from: seeded sources, the noise of a batch of images, and what a sampler draws at each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import torch
from torch import Tensor

from modules.sampling.philox import PhiloxGenerator
from modules.system.devices import generator as device_generator

SEED_LIMIT = 2**64


class NoiseSource(Enum):
    """Whose random numbers: torch's CPU generator, the device's own, or NVIDIA's computed on the CPU."""

    CPU = "CPU"
    GPU = "GPU"
    NV = "NV"

    def generator(self, seed: int, device: torch.device) -> NoiseGenerator:
        """A fresh generator of this source. GPU means `device`; on MPS, as on the CPU, it is the CPU's."""
        if self is NoiseSource.NV:
            return NvGenerator(seed)
        on_device = self is NoiseSource.GPU and device.type not in ("cpu", "mps")
        return TorchGenerator(seed, device if on_device else torch.device("cpu"))


class NoiseGenerator(Protocol):
    """A stream of standard normals, determined by its seed."""

    def randn(self, shape: tuple[int, ...]) -> Tensor:
        """The next normals fp32, on whichever device the generator lives."""
        ...


class TorchGenerator:
    """A `torch.Generator` of its own: torch's global random state is neither read nor changed."""

    def __init__(self, seed: int, device: torch.device) -> None:
        self._device = device
        self._generator = device_generator(device).manual_seed(seed % SEED_LIMIT)

    def randn(self, shape: tuple[int, ...]) -> Tensor:
        """The next normals fp32 on the generator's device."""
        return torch.randn(shape, generator=self._generator, device=self._device)


class NvGenerator:
    """The numbers a CUDA device would draw, computed on the CPU."""

    def __init__(self, seed: int) -> None:
        self._philox = PhiloxGenerator(seed % SEED_LIMIT)

    def randn(self, shape: tuple[int, ...]) -> Tensor:
        """The next normals fp32 on the CPU."""
        return torch.from_numpy(self._philox.randn(shape))


def slerp(strength: float, low: Tensor, high: Tensor) -> Tensor:
    """Spherical interpolation between two noises [C, H, W] along dimension 1, fp32.

    Nearly parallel noises (mean cosine above 0.9995) are mixed linearly; there `strength` weighs `low`, as in the
    images people have.
    """
    cosine = (low / low.norm(dim=1, keepdim=True) * (high / high.norm(dim=1, keepdim=True))).sum(1)
    if cosine.mean() > 0.9995:
        return low * strength + high * (1 - strength)
    omega = torch.acos(cosine)
    sine = torch.sin(omega)
    weight_low = (torch.sin((1.0 - strength) * omega) / sine).unsqueeze(1)
    weight_high = (torch.sin(strength * omega) / sine).unsqueeze(1)
    return weight_low * low + weight_high * high


def place_centred(noise: Tensor, canvas: Tensor) -> Tensor:
    """Put noise [C, h, w] into the middle of a noise [C, H, W] of another size, cut where it is larger."""
    out = canvas.clone()
    dy, dx = (canvas.shape[1] - noise.shape[1]) // 2, (canvas.shape[2] - noise.shape[2]) // 2
    height = noise.shape[1] + min(2 * dy, 0)
    width = noise.shape[2] + min(2 * dx, 0)
    to_y, to_x, from_y, from_x = max(dy, 0), max(dx, 0), max(-dy, 0), max(-dx, 0)
    out[:, to_y : to_y + height, to_x : to_x + width] = noise[:, from_y : from_y + height, from_x : from_x + width]
    return out


@dataclass(frozen=True, kw_only=True)
class NoiseRequest:
    """Which noise a batch starts from.

    `shape` is (channels, height, width) in latent units. `seeds` and `subseeds` have one entry per image;
    `subseed_strength` 0 to 1 mixes towards the subseed's noise. `seed_resize_from` is (height, width) in latent
    units of the image whose composition is wanted back, or None. `eta_noise_seed_delta` (ENSD) is added to the
    seeds of all noise after the first.
    """

    shape: tuple[int, int, int]
    seeds: tuple[int, ...]
    subseeds: tuple[int, ...] = ()
    subseed_strength: float = 0.0
    seed_resize_from: tuple[int, int] | None = None
    source: NoiseSource = NoiseSource.CPU
    eta_noise_seed_delta: int = 0


class ImageNoise:
    """The noise of a batch: one generator an image, so that an image is the same alone and in a batch.

    Tensors are [B, C, H, W] fp32 on `device`. The first noise honours variation seeds and seed resize; all after it
    come from the generators as they stand (or restarted by the ENSD).
    """

    def __init__(self, request: NoiseRequest, device: torch.device | None = None) -> None:
        self._request = request
        self._device = device or torch.device("cpu")
        self._generators = [self._generator(seed) for seed in request.seeds]
        self._is_first = True

    @property
    def request(self) -> NoiseRequest:
        """Request for this noise."""
        return self._request

    @property
    def device(self) -> torch.device:
        """Where the noise is put."""
        return self._device

    def first(self) -> Tensor:
        """The noise an image starts from [B, C, H, W]. Call it once, before `next`."""
        self._is_first = False
        noise = torch.stack([self._first_of(i) for i in range(len(self._generators))])
        delta = self._request.eta_noise_seed_delta
        if delta:
            self._generators = [self._generator(seed + delta) for seed in self._request.seeds]
        return noise.to(self._device)

    def next(self, rows: Sequence[bool] | None = None) -> Tensor:
        """The following noise [B, C, H, W]; the first call gives `first`. Images outside `rows` get zeros and draw
        nothing."""
        if self._is_first:
            return self.first()
        shape = self._request.shape
        if rows is None:
            drawn = [generator.randn(shape) for generator in self._generators]
        else:
            pairs = zip(self._generators, rows, strict=True)
            drawn = [generator.randn(shape) if wanted else torch.zeros(shape) for generator, wanted in pairs]
        return torch.stack([noise.to(self._device) for noise in drawn])

    def _first_of(self, index: int) -> Tensor:
        """The first noise [C, H, W] of one image."""
        request = self._request
        channels, height, width = request.shape
        old_height, old_width = request.seed_resize_from or (height, width)
        shape = (channels, old_height, old_width)
        is_resized = shape != request.shape
        generator = self._generators[index]
        # A resized image's noise is drawn apart, and its canvas is what the image's own generator draws first.
        noise = (self._generator(request.seeds[index]) if is_resized else generator).randn(shape)
        if request.subseed_strength and request.subseeds:
            subseed = request.subseeds[index] if index < len(request.subseeds) else 0
            noise = slerp(request.subseed_strength, noise, self._generator(subseed).randn(shape))
        return place_centred(noise, generator.randn(request.shape)) if is_resized else noise

    def _generator(self, seed: int) -> NoiseGenerator:
        return self._request.source.generator(seed, self._device)


class GaussianNoise:
    """Step noise without memory: each move draws the next noise of the batch."""

    def __init__(self, image_noise: ImageNoise) -> None:
        self._image_noise = image_noise

    def __call__(self, sigma_from: float, sigma_to: float, rows: Sequence[bool] | None = None) -> Tensor:
        """The next noise [B, C, H, W]; see `types.StepNoise`."""
        return self._image_noise.next(rows)
