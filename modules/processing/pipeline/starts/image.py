"""The start of img2img: images of the user's, brought to the size of the request, noised as far as it says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modules.errors import InvalidValueError
from modules.images.resize import ResizeMode, resize_image
from modules.models.loaded import LoadedModel
from modules.processing.pipeline.pass_settings import PassSettings
from modules.processing.pipeline.pixels import from_images
from modules.processing.pipeline.starts.latents import tail_run
from modules.processing.pipeline.starts.noise import unpainted_image
from modules.processing.start import FromImage
from modules.sampling.flow import NoiseLevels
from modules.sampling.plan import SamplingRun
from modules.sampling.types import Denoise
from modules.settings.values import Settings


@dataclass(frozen=True)
class ImageStart:
    """See `Start`. `batch_size` images begin as `asked` says."""

    asked: FromImage
    batch_size: int
    fix_steps: bool  # as many steps as asked for are really made
    default_noise_multiplier: float
    background: str  # the color behind transparent pixels, "#rrggbb"
    encodes: bool = True

    @classmethod
    def of(cls, asked: FromImage, batch_size: int, settings: Settings) -> ImageStart:
        """The start with what the settings leave open. Raises `InvalidValueError` for a number of images that does not
        go with the batch."""
        count = len(asked.images)
        if count not in (1, batch_size):
            raise InvalidValueError(
                f"There are {count} images to start from and {batch_size} to make; give one, or one for each."
            )
        return cls(
            asked,
            batch_size,
            settings.img2img.img2img_fix_steps,
            settings.img2img.initial_noise_multiplier,
            settings.img2img.img2img_background_color,
        )

    @property
    def noise_multiplier(self) -> float:
        own = self.asked.initial_noise_multiplier
        return self.default_noise_multiplier if own is None else own

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor:
        """Of the posterior's mean. Under `LATENT_UPSCALE` the latents are resized, not the images."""
        mode = self.asked.resize_mode
        found = []
        for source in self.asked.images:
            image = flattened(source.image, self.background)
            if mode is ResizeMode.LATENT_UPSCALE:
                whole = (image.width // 8 * 8, image.height // 8 * 8)  # what the VAE can halve three times
                latent = model.encode(from_images([image if image.size == whole else image.resize(whole)]))
                size = (height_px // model.downscale, width_px // model.downscale)
                latent = F.interpolate(latent, size=size, mode="bilinear")
            else:
                latent = model.encode(from_images([resize_image(image, width_px, height_px, mode)]))
            found.append(latent)
        return torch.cat(found if len(found) == self.batch_size else found * self.batch_size)

    def sampling_run(self, settings: PassSettings, levels: NoiseLevels) -> SamplingRun | None:
        return tail_run(settings, levels, self.asked.denoising_strength, self.fix_steps)

    def image_conditioning(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        """Without a mask an inpainting model may paint everything. Raises `InvalidValueError` for an editing model."""
        if model.image_channels and model.image_channels == model.latent_channels:
            raise InvalidValueError(
                f"{model.info.name} edits images under a second guidance scale, which img2img does not have. Choose "
                "another checkpoint."
            )
        return unpainted_image(model, height, width)

    def constrain(self, denoise: Denoise, noise: Tensor) -> Denoise:
        return denoise

    def finish(self, image: Image.Image, index: int) -> Image.Image:
        return image

    def fields(self) -> Mapping[str, object]:
        fields: dict[str, object] = {"Denoising strength": self.asked.denoising_strength}
        if self.noise_multiplier != 1.0:
            fields["Noise multiplier"] = self.noise_multiplier
        return fields


def flattened(image: Image.Image, background: str) -> Image.Image:
    """An RGB image; transparent pixels show the background color "#rrggbb"."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return image.convert("RGB")
    image = image.convert("RGBA")
    canvas = Image.new("RGBA", image.size, background)
    return Image.alpha_composite(canvas, image).convert("RGB")
