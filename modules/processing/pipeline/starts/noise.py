"""The start of txt2img: noise alone, with what a model that edits by references is shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor

from modules.models.loading.loaded import LoadedModel
from modules.processing.pipeline.starts.references import NO_REFERENCES, References
from modules.processing.pipeline.starts.start import Start
from modules.processing.request.pass_settings import PassSettings, sampler_options, schedule_options
from modules.sampling.catalog import SCHEDULES
from modules.sampling.flow import NoiseLevels
from modules.sampling.plan import SamplingRun, txt2img_run


@dataclass(frozen=True)
class NoiseStart(Start):
    """See `Start`."""

    references: References = NO_REFERENCES
    noise_multiplier: float = 1.0
    image_cfg_scale: float | None = None

    def seen(self, model: LoadedModel) -> tuple[tuple[Image.Image, ...], ...]:
        return (self.references.images,)

    @property
    def encodes(self) -> bool:
        return bool(self.references.images)

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor | None:
        """None; raises `InvalidValueError` for references to a model that is shown none."""
        self.references.check(model)
        return None

    def sampling_run(self, settings: PassSettings, levels: NoiseLevels) -> SamplingRun:
        return txt2img_run(
            settings.sampler,
            SCHEDULES.get(settings.scheduler),
            settings.steps,
            levels,
            schedule_options(settings.settings, settings.schedule_table),
            sampler_options(settings.sampler, settings.settings),
            settings.settings.sampler.sgm_noise_multiplier,
        )

    def image_conditioning(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        shows = model.takes_references
        return self.references.shown(model, height, width) if shows else unpainted_image(model, height, width)

    def fields(self, model: LoadedModel) -> Mapping[str, object]:
        return self.references.fields()


def unpainted_image(model: LoadedModel, height: int, width: int) -> Tensor | None:
    """Return what an inpainting model sees without an image, [C,h,w] of latents: all is to be painted (mask 1), over
    gray. instruct-pix2pix gets no image at all (zeros); None for other models."""
    channels = model.image_channels
    if channels == 0:
        return None
    if model.edits_images:
        return torch.zeros(channels, height, width, device=model.device)
    mask = torch.ones(1, 1, height * model.downscale, width * model.downscale)
    return model.family.denoiser.inpainting_input(model.grey_latent(height, width)[None], mask)[0]
