"""The start of hires fix's second pass: what the first pass made, enlarged, noised again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.pixels import from_images, to_images
from modules.processing.pipeline.starts.noise import unpainted_image
from modules.processing.pipeline.starts.references import NO_REFERENCES, References
from modules.processing.pipeline.starts.start import Start
from modules.processing.request.pass_settings import PassSettings, sampler_options, schedule_options
from modules.processing.request.stages import HiresSize, Stage
from modules.processing.request.upscaling import LATENT_UPSCALE_MODES, upscale_latents
from modules.sampling.catalog import SCHEDULES
from modules.sampling.flow import NoiseLevels
from modules.sampling.plan import SamplingRun, img2img_run, img2img_steps

# (image, name of an upscaler on pixels, width and height in pixels) -> image of that size
Enlarge = Callable[[Image.Image, str, tuple[int, int]], Image.Image]


@dataclass(frozen=True)
class LatentsStart(Start):
    """See `Start`. `enlarged` is what `enlarged` below gave: latents [B,C,h,w], or images [1,3,H,W] in -1..1, which
    the model of the pass has to encode."""

    enlarged: Tensor | tuple[Tensor, ...]
    size: HiresSize
    denoising_strength: float
    references: References = NO_REFERENCES
    noise_multiplier: float = 1.0
    image_cfg_scale: float | None = None

    def seen(self, model: LoadedModel) -> tuple[tuple[Image.Image, ...], ...]:
        return (self.references.images,)

    @property
    def encodes(self) -> bool:
        return not isinstance(self.enlarged, Tensor)

    def latents(self, model: LoadedModel, width_px: int, height_px: int) -> Tensor:
        """Images are encoded to the posterior's mean, not to a sample of it; its deviation is far below a grey level,
        and unseeded elsewhere."""
        enlarged = self.enlarged
        latents = enlarged if isinstance(enlarged, Tensor) else torch.cat([model.encode(image) for image in enlarged])
        cut_x, cut_y = self.size.cut  # the odd unit of the overhang is at the far side
        height, width = latents.shape[2:]
        return latents[:, :, cut_y // 2 : height - (cut_y + 1) // 2, cut_x // 2 : width - (cut_x + 1) // 2]

    def sampling_run(self, settings: PassSettings, levels: NoiseLevels) -> SamplingRun | None:
        return tail_run(settings, levels, self.denoising_strength, fix_steps=True)

    def image_conditioning(self, model: LoadedModel, height: int, width: int) -> Tensor | None:
        shows = model.takes_references
        return self.references.shown(model, height, width) if shows else unpainted_image(model, height, width)


def tail_run(
    settings: PassSettings, levels: NoiseLevels, denoising_strength: float, fix_steps: bool
) -> SamplingRun | None:
    """The end of a schedule, from an image; None where strength 0 leaves nothing to do. `fix_steps` as in
    `img2img_steps`."""
    steps, t_enc = img2img_steps(settings.steps, denoising_strength, fix_steps)
    if steps == 0:
        return None
    return img2img_run(
        settings.sampler,
        SCHEDULES.get(settings.scheduler),
        steps,
        t_enc,
        levels,
        schedule_options(settings.settings, settings.schedule_table),
        sampler_options(settings.sampler, settings.settings),
    )


def enlarged(
    model: LoadedModel,
    latents: Tensor,
    name: str,
    size_px: tuple[int, int],
    enlarge: Enlarge,
    stage: Callable[[Stage], None],
) -> Tensor | tuple[Tensor, ...]:
    """A first pass's latents in another size (width, height) by the upscaler `name`: as latents, or as images."""
    if name in LATENT_UPSCALE_MODES:
        mode = LATENT_UPSCALE_MODES.get(name)
        height, width = model.latent_size(size_px)
        stage(Stage.ENLARGE)
        return model.recovery.run(Stage.ENLARGE, lambda: upscale_latents(latents, mode, width, height))
    images = []
    for index in range(latents.shape[0]):
        stage(Stage.DECODE)
        decoded = model.decode(latents[index : index + 1])
        stage(Stage.ENLARGE)
        images.append(model.recovery.run(Stage.ENLARGE, partial(_larger, decoded, name, size_px, enlarge)))
    return tuple(images)


def _larger(decoded: Tensor, name: str, size_px: tuple[int, int], enlarge: Enlarge) -> Tensor:
    """A decoded image [1,3,h,w] in -1..1 through an upscaler on pixels."""
    (image,) = to_images(decoded)
    return from_images([enlarge(image, name, size_px)])
