"""The start of img2img and inpainting: the user's images, noised as far as it says, kept where a mask says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from modules.images.outpaint import distance_px
from modules.images.resize import ResizeMode, Scaler, scale_lanczos
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.pixels import from_images
from modules.processing.pipeline.starts.latents import tail_run
from modules.processing.pipeline.starts.noise import unpainted_image
from modules.processing.pipeline.starts.prepared import PreparedImages, prepare
from modules.processing.pipeline.starts.references import NO_REFERENCES, References, shows_start
from modules.processing.request.hooks import Hooks, MaskBlend, MaskedStart
from modules.processing.request.parameters import infotext_fields
from modules.processing.request.pass_settings import PassSettings
from modules.processing.request.pasting import INIT_IMAGE_KEY, MASK_KEY
from modules.processing.request.request import GenerationRequest, seed_after
from modules.processing.request.result import ImageRole
from modules.processing.request.source_images import (
    IMAGE_ROWS,
    MASK_ROWS,
    FromImage,
    Mask,
    MaskedContent,
    check_start,
)
from modules.sampling.catalog import Family, SamplerSpec
from modules.sampling.flow import NoiseLevels
from modules.sampling.noise import ImageNoise, NoiseRequest, NoiseSource
from modules.sampling.plan import SamplingRun
from modules.sampling.types import Denoise

SEAM_RAMP_PX = 40  # from a kept image, over which its surroundings become free
MIN_FREEDOM = 0.25


@dataclass(frozen=True)
class ImageStart:
    """See `Start`. `batch_size` images begin as `asked` says; `seeds` are those of the first batch, whose noise a mask
    may be filled with."""

    asked: FromImage
    prepared: PreparedImages
    batch_size: int
    fix_steps: bool  # as many steps as asked for are really made
    default_noise_multiplier: float
    mask_weight: float  # how much an inpainting model is shown of what the mask hides: 1 is nothing
    seeds: tuple[int, ...]
    noise_source: NoiseSource
    references: References = NO_REFERENCES
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
            prepare(asked, request.size_px, settings, scale, request.seed),
            request.batch_size,
            settings.img2img.img2img_fix_steps,
            settings.img2img.initial_noise_multiplier,
            settings.img2img.inpainting_mask_weight,
            tuple(seed_after(request.seed, 0 if is_fixed else index) for index in range(request.batch_size)),
            NoiseSource(settings.stable_diffusion.randn_source),
            References.of(request),
        )

    @property
    def noise_multiplier(self) -> float:
        own = self.asked.initial_noise_multiplier
        return self.default_noise_multiplier if own is None else own

    def seen(self, model: LoadedModel) -> tuple[tuple[Image.Image, ...], ...]:
        if not shows_start(model):
            return (self.references.images,)
        return tuple((image, *self.references.images) for image in self.prepared.images)

    @property
    def image_cfg_scale(self) -> float | None:
        return self.asked.image_cfg_scale

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor:
        """Encode the images, by the posterior's mean. Under `LATENT_UPSCALE` the latents are resized, not the images.
        Raises `InvalidValueError` if there are references and the model cannot see any."""
        self.references.check(model)
        found = [model.encode(from_images([image])) for image in self.prepared.images]
        if self.asked.resize_mode is ResizeMode.LATENT_UPSCALE:
            size = model.latent_size((width_px, height_px))
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
        everything. An editing model sees the image, and so does one that takes references."""
        if model.takes_references and not shows_start(model):
            return self.references.shown(model, height, width)
        if model.image_channels == 0 and not model.takes_references:
            return None
        if self.prepared.mask is None and not model.edits_images and not model.takes_references:
            return unpainted_image(model, height, width)
        shown = [self._shown(model, image, height, width) for image in self.prepared.images]
        if model.takes_references:
            shown = [self.references.shown_after(one, model) for one in shown]
        return torch.cat(shown if len(shown) == self.batch_size else shown * self.batch_size)

    def _shown(self, model: LoadedModel, image: Image.Image, height: int, width: int) -> Tensor:
        """One image as an inpainting or editing model sees it, [1,C,h,w]."""
        source, mask = from_images([image]), self.prepared.mask
        if model.takes_references:
            return model.encode(source)
        if model.edits_images:
            edited = model.autoencoder.to_own(model.vae, model.encode(source))  # before latents are scaled
            return edited if edited.shape[-2:] == (height, width) else F.interpolate(edited, (height, width))
        assert mask is not None
        hidden = torch.from_numpy(np.asarray(mask, dtype=np.float32) / 255.0)[None, None]
        hidden = hidden.round() if self.asked.mask is None or self.asked.mask.round else hidden
        if hidden.shape[-2:] != source.shape[-2:]:
            hidden = F.interpolate(hidden, size=source.shape[-2:])
        shown = model.encode(torch.lerp(source, source * (1.0 - hidden), self.mask_weight))
        if shown.shape[-2:] != (height, width):
            shown = F.interpolate(shown, size=(height, width), mode="bilinear")
        return model.family.denoiser.inpainting_input(shown, hidden)

    def masked(self, latents: Tensor | None) -> MaskedStart | None:
        mask = None if latents is None else self._painted(latents)
        if latents is None or mask is None:
            return None
        prepared = self.prepared
        painted = mask[0].expand(latents.shape[1:])
        return MaskedStart(latents, painted, list(prepared.overlays), prepared.overlay_mask, prepared.area)

    def constrain(self, denoise: Denoise, latents: Tensor | None, hooks: Hooks, sampler: SamplerSpec) -> Denoise:
        mask = None if latents is None else self._painted(latents)
        if latents is None or mask is None:
            return denoise
        # A sampler over timesteps sees the kept part at its input, all others at the denoiser's output, as in the
        # reference UI.
        masks_input = sampler.family is Family.TIMESTEP
        if hooks.wants_mask_blends or self.prepared.margins is not None:
            return self._blending(hooks, denoise, latents, mask, masks_input)
        kept = latents * (1.0 - mask)

        def after(x: Tensor, sigma: Tensor) -> Tensor:
            return denoise(x, sigma) * mask + kept

        def before(x: Tensor, sigma: Tensor) -> Tensor:
            # x is scaled so that noise has deviation sigma; the model's own scale of the kept part is that of data.
            scale = (1.0 + sigma.view(-1, 1, 1, 1) ** 2).sqrt()
            blended = x * mask + kept * scale
            return denoise(blended, sigma) + (x - blended)  # the noise predicted, taken from the sampler's own x

        return before if masks_input else after

    def _blending(self, hooks: Hooks, denoise: Denoise, latents: Tensor, mask: Tensor, masks_input: bool) -> Denoise:
        """Blend as above if the mask changes during sampling, or hooks take part."""
        mask_at = self._mask_by_level(mask)

        def after(x: Tensor, sigma: Tensor) -> Tensor:
            return _blended(hooks, denoise(x, sigma), latents, mask_at(sigma), sigma)

        def before(x: Tensor, sigma: Tensor) -> Tensor:
            scale = (1.0 + sigma.view(-1, 1, 1, 1) ** 2).sqrt()
            blended = _blended(hooks, x / scale, latents, mask_at(sigma), sigma) * scale
            return denoise(blended, sigma) + (x - blended)

        return before if masks_input else after

    def _mask_by_level(self, mask: Tensor) -> Callable[[Tensor], Tensor]:
        """The mask [1,1,h,w] at a noise level. Outside of a kept image, what lies near to its border stays as it
        begins, a continuation of that border, until the level is low: the nearer, the longer. So shapes go on across
        the seam. After Levin and Fried 2023 (arXiv:2306.00950), who give every pixel the level from which on it may
        change."""
        margins = self.prepared.margins
        if margins is None:
            return lambda sigma: mask
        height, width = mask.shape[-2:]
        pixels_per_unit = self.prepared.images[0].height / height
        distance = distance_px(self.prepared.images[0].size, margins)
        ramp = torch.from_numpy(distance)[None, None].to(mask)
        ramp = F.interpolate(ramp, size=(height, width), mode="area") - pixels_per_unit / 2
        free_below = (ramp / SEAM_RAMP_PX).clamp(MIN_FREEDOM, 1.0) ** 3  # as a share of the first level
        first: list[Tensor] = []

        def mask_at(sigma: Tensor) -> Tensor:
            first[:] = first or [sigma.max()]
            return mask * (sigma.max() / first[0] <= free_below).to(mask)

        return mask_at

    def keep(self, result: Tensor, latents: Tensor | None, hooks: Hooks) -> Tensor:
        mask = None if latents is None else self._painted(latents)
        return result if latents is None or mask is None else _blended(hooks, result, latents, mask)

    def finish(self, image: Image.Image, index: int, hooks: Hooks) -> Image.Image:
        return self.prepared.finish(image, index, hooks)

    def by_products(self, image: Image.Image, index: int) -> Iterator[tuple[ImageRole, Image.Image]]:
        return self.prepared.by_products(image, index)

    def fields(self, model: LoadedModel) -> Mapping[str, object]:
        """Everything that is needed to make the image again, the images themselves by their hashes."""
        fields = infotext_fields(self.asked, IMAGE_ROWS)
        fields |= self.references.fields()
        if self.asked.mask is not None:
            fields |= _mask_fields(self.asked.mask)
        if self.noise_multiplier != 1.0:
            fields["Noise multiplier"] = self.noise_multiplier
        if model.edits_images:
            fields["Image CFG scale"] = self.asked.image_cfg_scale
        elif model.image_channels:
            fields["Conditional mask weight"] = self.mask_weight
        fields[INIT_IMAGE_KEY] = ", ".join(image.pixel_hash for image in self.asked.images)
        if self.asked.mask is not None:
            fields[MASK_KEY] = self.asked.mask.image.pixel_hash
        return fields

    def _painted(self, latents: Tensor) -> Tensor | None:
        """The mask [1,1,h,w] over latents [B,C,h,w]: 1 is repainted; None without one."""
        if self.prepared.mask is None:
            return None
        size = (latents.shape[3], latents.shape[2])
        own = self.asked.mask.latent if self.asked.mask is not None else None
        mask = self.prepared.mask if own is None else own.image
        values = np.asarray(mask.convert("RGB").resize(size), dtype=np.float32)[..., 0] / 255.0
        is_round = self.asked.mask is None or self.asked.mask.round
        painted = torch.from_numpy(np.around(values) if is_round else values)
        return painted[None, None].to(latents)


def _blended(hooks: Hooks, current: Tensor, latents: Tensor, mask: Tensor, sigma: Tensor | None = None) -> Tensor:
    """`current` where the mask [1,1,h,w] is 1, `latents` where it is 0; hooks have the last word."""
    blended = current * mask + latents * (1.0 - mask)
    if not hooks.wants_mask_blends:
        return blended
    blend = MaskBlend(current, latents, mask[0].expand(latents.shape[1:]), blended, sigma)
    hooks.mask_blend(blend)
    return blend.blended


def _mask_fields(mask: Mask) -> dict[str, object]:
    """One blur for both directions is written as the reference UI does; 0 is not written."""
    fields = infotext_fields(mask, MASK_ROWS)
    if not mask.blur:
        return fields
    mode = {key: fields.pop(key) for key in ("Mask mode",) if key in fields}
    return {**mode, "Mask blur": mask.blur, **fields}


def _shape(latents: Tensor) -> tuple[int, int, int]:
    _, channels, height, width = latents.shape
    return channels, height, width
