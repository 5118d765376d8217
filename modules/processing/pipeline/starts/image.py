"""The start of img2img and inpainting: images of the user's, noised as far as it says, kept where a mask says so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modules.images.resize import ResizeMode, Scaler, scale_lanczos
from modules.models.loaded import LoadedModel
from modules.processing.pipeline.pass_settings import PassSettings
from modules.processing.pipeline.pixels import from_images
from modules.processing.pipeline.starts.latents import tail_run
from modules.processing.pipeline.starts.noise import unpainted_image
from modules.processing.pipeline.starts.prepared import PreparedImages, prepare
from modules.processing.record.result import ImageRole
from modules.processing.request import GenerationRequest
from modules.processing.start import FromImage, Mask, MaskedContent, check_start
from modules.sampling.catalog import SAMPLERS, Family
from modules.sampling.flow import NoiseLevels
from modules.sampling.noise import ImageNoise, NoiseRequest, NoiseSource
from modules.sampling.plan import SamplingRun
from modules.sampling.types import Denoise

CONTENT_NAMES = {
    MaskedContent.FILL: "fill",
    MaskedContent.LATENT_NOISE: "latent noise",
    MaskedContent.LATENT_NOTHING: "latent nothing",
}


@dataclass(frozen=True)
class ImageStart:
    """See `Start`. `batch_size` images begin as `asked` says.

    `masks_input`: a sampler over timesteps sees the kept part at its input, all others at the denoiser's output, as in
    the reference UI. `seeds` are those of the first batch, whose noise a mask may be filled with.
    """

    asked: FromImage
    prepared: PreparedImages
    batch_size: int
    fix_steps: bool  # as many steps as asked for are really made
    default_noise_multiplier: float
    mask_weight: float  # how much an inpainting model is shown of what the mask hides: 1 is nothing
    masks_input: bool
    seeds: tuple[int, ...]
    noise_source: NoiseSource
    encodes: bool = True

    @classmethod
    def of(cls, asked: FromImage, request: GenerationRequest, scale: Scaler = scale_lanczos) -> ImageStart:
        """The start with what the settings leave open. Raises `InvalidValueError` for a number of images that does not
        go with the batch, and for an empty mask."""
        check_start(asked, request.batch_size)
        settings = request.settings
        is_fixed = request.subseed_strength > 0
        return cls(
            asked,
            prepare(asked, request.size_px, settings, scale),
            request.batch_size,
            settings.img2img.img2img_fix_steps,
            settings.img2img.initial_noise_multiplier,
            settings.img2img.inpainting_mask_weight,
            SAMPLERS.get(request.sampler).family is Family.TIMESTEP,
            tuple(request.seed + (0 if is_fixed else index) for index in range(request.batch_size)),
            NoiseSource(settings.stable_diffusion.randn_source),
        )

    @property
    def noise_multiplier(self) -> float:
        own = self.asked.initial_noise_multiplier
        return self.default_noise_multiplier if own is None else own

    @property
    def image_cfg_scale(self) -> float | None:
        return self.asked.image_cfg_scale

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor:
        """Of the posterior's mean. Under `LATENT_UPSCALE` the latents are resized, not the images."""
        found = [model.encode(from_images([image])) for image in self.prepared.images]
        if self.asked.resize_mode is ResizeMode.LATENT_UPSCALE:
            size = (height_px // model.downscale, width_px // model.downscale)
            found = [F.interpolate(latent, size=size, mode="bilinear") for latent in found]
        latents = torch.cat(found if len(found) == self.batch_size else found * self.batch_size)
        mask = self._painted(latents)
        if mask is None or self.asked.mask is None:
            return latents
        if self.asked.mask.fill is MaskedContent.LATENT_NOISE:
            noise = ImageNoise(NoiseRequest(shape=_shape(latents), seeds=self.seeds, source=self.noise_source))
            return latents * (1.0 - mask) + noise.first().to(latents) * mask
        return latents * (1.0 - mask) if self.asked.mask.fill is MaskedContent.LATENT_NOTHING else latents

    def sampling_run(self, settings: PassSettings, levels: NoiseLevels) -> SamplingRun | None:
        return tail_run(settings, levels, self.asked.denoising_strength, self.fix_steps)

    def image_conditioning(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        """An inpainting model sees the mask and the image without what the mask hides; without a mask it may paint
        everything. An editing model sees the image."""
        if model.image_channels == 0:
            return None
        if self.prepared.mask is None and not model.edits_images:
            return unpainted_image(model, height, width)
        shown = [self._shown(model, image, height, width) for image in self.prepared.images]
        return torch.cat(shown if len(shown) == self.batch_size else shown * self.batch_size)

    def _shown(self, model: LoadedModel, image: Image.Image, height: int, width: int) -> Tensor:
        """One image as an inpainting or editing model sees it, [1,C,h,w]."""
        source, mask = from_images([image]), self.prepared.mask
        if model.edits_images:
            edited = model.encode_unscaled(source)
            return edited if edited.shape[-2:] == (height, width) else F.interpolate(edited, (height, width))
        assert mask is not None
        hidden = torch.from_numpy(np.asarray(mask, dtype=np.float32) / 255.0)[None, None]
        hidden = hidden.round() if self.asked.mask is None or self.asked.mask.round else hidden
        if hidden.shape[-2:] != source.shape[-2:]:
            hidden = F.interpolate(hidden, size=source.shape[-2:])
        shown = model.encode(torch.lerp(source, source * (1.0 - hidden), self.mask_weight))
        if shown.shape[-2:] != (height, width):
            shown = F.interpolate(shown, size=(height, width), mode="bilinear")
        return torch.cat([F.interpolate(hidden, size=(height, width)).to(shown), shown], dim=1)

    def constrain(self, denoise: Denoise, latents: Tensor | None) -> Denoise:
        mask = None if latents is None else self._painted(latents)
        if latents is None or mask is None:
            return denoise
        kept = latents * (1.0 - mask)

        def after(x: Tensor, sigma: Tensor) -> Tensor:
            return denoise(x, sigma) * mask + kept

        def before(x: Tensor, sigma: Tensor) -> Tensor:
            # x is scaled so that noise has deviation sigma; the model's own scale of the kept part is that of data.
            scale = (1.0 + sigma.view(-1, 1, 1, 1) ** 2).sqrt()
            blended = x * mask + kept * scale
            return denoise(blended, sigma) + (x - blended)  # the noise predicted, taken from the sampler's own x

        return before if self.masks_input else after

    def keep(self, result: Tensor, latents: Tensor | None) -> Tensor:
        mask = None if latents is None else self._painted(latents)
        return result if latents is None or mask is None else result * mask + latents * (1.0 - mask)

    def finish(self, image: Image.Image, index: int) -> Image.Image:
        return self.prepared.finish(image, index)

    def by_products(self, image: Image.Image, index: int) -> Iterator[tuple[ImageRole, Image.Image]]:
        return self.prepared.by_products(image, index)

    def fields(self, model: LoadedModel) -> Mapping[str, object]:
        fields: dict[str, object] = {"Denoising strength": self.asked.denoising_strength}
        if model.edits_images:
            fields["Image CFG scale"] = self.asked.image_cfg_scale
        elif model.image_channels:
            fields["Conditional mask weight"] = self.mask_weight
        if self.asked.mask is not None:
            fields |= _mask_fields(self.asked.mask)
        if self.noise_multiplier != 1.0:
            fields["Noise multiplier"] = self.noise_multiplier
        return fields

    def _painted(self, latents: Tensor) -> Tensor | None:
        """The mask [1,1,h,w] over latents [B,C,h,w]: 1 is painted anew; None without one."""
        if self.prepared.mask is None or self.asked.mask is None:
            return None
        size = (latents.shape[3], latents.shape[2])
        own = self.asked.mask.latent
        mask = self.prepared.mask if own is None else own.image
        values = np.asarray(mask.convert("RGB").resize(size), dtype=np.float32)[..., 0] / 255.0
        painted = torch.from_numpy(np.around(values) if self.asked.mask.round else values)
        return painted[None, None].to(latents)


def _mask_fields(mask: Mask) -> Mapping[str, object]:
    fields: dict[str, object] = {}
    if mask.invert:
        fields["Mask mode"] = "Inpaint not masked"
    if mask.blur_x == mask.blur_y and mask.blur_x > 0:
        fields["Mask blur"] = mask.blur_x
    if mask.full_resolution:
        fields |= {"Inpaint area": "Only masked", "Masked area padding": mask.padding}
    if mask.fill in CONTENT_NAMES:
        fields["Masked content"] = CONTENT_NAMES[mask.fill]
    return fields


def _shape(latents: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = latents.shape
    return channels, height, width
