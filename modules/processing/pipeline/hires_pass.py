"""The second pass of hires fix: enlarge what the first pass made, add noise again, and sample down from there."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import torch
from PIL import Image
from torch import Tensor

from modules.models.loaded import LoadedModel
from modules.processing.pipeline.conditioning import Conditioner, EncodedPrompts
from modules.processing.pipeline.guidance import RefinerSwitch, Used
from modules.processing.pipeline.hires_size import HiresSize, hires_size
from modules.processing.pipeline.hooks import ExtraNoise, Hooks, PassStart
from modules.processing.pipeline.pixels import from_images, to_images
from modules.processing.pipeline.sampling_pass import (
    PassSettings,
    build_guidance,
    guided_denoiser,
    image_noise,
    noise_schedule,
    second_run,
)
from modules.processing.pipeline.texts import prepare_text
from modules.processing.pipeline.upscaling import LATENT_UPSCALE_MODES, upscale_latents
from modules.processing.request import GenerationRequest, HiresRequest
from modules.sampling.catalog import SAMPLERS
from modules.sampling.flow import NoiseLevels
from modules.sampling.plan import SamplingRun
from modules.sampling.types import OnStep

# (image, name of an upscaler on pixels, width and height in pixels) -> image of that size
Enlarge = Callable[[Image.Image, str, tuple[int, int]], Image.Image]
# seeds, variation seeds, and (height, width) in latent units for seed resize
BatchSeeds = tuple[Sequence[int], Sequence[int], tuple[int, int] | None]


@dataclass(frozen=True)
class HiresPass:
    """The pass as it is to be done for every batch; `walk` is None where the denoising strength leaves no steps."""

    request: GenerationRequest
    hires: HiresRequest
    plan: PassSettings
    size: HiresSize
    sampling_run: SamplingRun | None

    @classmethod
    def of(cls, request: GenerationRequest, schedule: NoiseLevels, schedule_table: tuple[float, ...]) -> "HiresPass":
        """Resolve the hires request: what it leaves open is as in the first pass."""
        hires = request.hires
        assert hires is not None, "a second pass was not asked for"
        plan = PassSettings(
            sampler=SAMPLERS.get(hires.sampler or request.sampler),
            scheduler=hires.scheduler or request.scheduler,
            steps=hires.steps or request.steps,
            cfg_scale=request.cfg_scale,
            settings=request.settings,
            schedule_table=schedule_table,
        )
        sampling_run = second_run(plan, schedule, hires.denoising_strength)
        return cls(request, hires, plan, hires_size(*request.size_px, hires), sampling_run)

    @property
    def steps(self) -> int:
        """Steps of the pass, for progress."""
        return max(len(self.sampling_run.sigmas) - 1, 0) if self.sampling_run else 0

    def encode(
        self, conditioner: Conditioner, first_prompts: tuple[Sequence[str], Sequence[str]], first_model_calls: int
    ) -> EncodedPrompts:
        """The pass's prompts under the networks that are active now.

        `first_prompts` are the prompts and negative prompts of the first pass, one an image.
        """
        settings = self.request.settings
        prompts, negatives = first_prompts
        return conditioner.encode(
            [prepare_text(self.hires.prompt or text, settings).encoded for text in prompts],
            [prepare_text(self.hires.negative_prompt or text, settings, False).encoded for text in negatives],
            first_model_calls,
            settings,
            self.size.upscale_to,
            hires_steps=self.plan.model_calls,
        )

    def run(
        self,
        model: LoadedModel,
        latents: Tensor | list[Tensor],
        encoded: EncodedPrompts,
        batch_seeds: BatchSeeds,
        check: Callable[[], None],
        on_step: OnStep,
        check_nan: bool,
        hooks: Hooks,
        refiner_switch: RefinerSwitch | None,
        merging: Callable[[float], AbstractContextManager[None]],
    ) -> tuple[Tensor, Used]:
        """The larger clean latents, and what guidance made use of.

        `latents` is what `enlarged` gave, `encoded` what `encode` gave; `merging` merges tokens by a ratio while open.
        """
        settings = self.request.settings
        latents = self._cut(latents if isinstance(latents, Tensor) else _encoded(model, latents))
        if self.sampling_run is None:
            return latents, Used.NOTHING
        seeds, subseeds, seed_resize = batch_seeds
        noise = image_noise(
            (latents.shape[1], latents.shape[2], latents.shape[3]),
            seeds,
            subseeds,
            self.request.subseed_strength,
            seed_resize,
            self.plan.sampler,
            settings,
            model.device,
        )
        schedule = noise_schedule(model, settings)
        adapter = guided_denoiser(self.plan, model, schedule, encoded, (latents.shape[2], latents.shape[3]))
        guidance = build_guidance(self.plan, adapter, check, check_nan, hooks.guidance, refiner_switch)
        del adapter, model  # the successor may have to leave memory to itself
        first = noise.next()
        hooks.before_sampling(PassStart(latents, first, encoded.prompts, encoded.negatives, is_hires=True))
        start = self.sampling_run.start_from(latents, first)
        extra_noise = settings.number("img2img_extra_noise")
        if extra_noise > 0:
            extra = ExtraNoise(first, start, latents)
            hooks.extra_noise(extra)
            start = start + extra.noise * extra_noise
        ratio = settings.number("token_merging_ratio_hr") or settings.number("token_merging_ratio")
        with merging(ratio):
            result = self.sampling_run.run(
                guidance,
                start,
                self.sampling_run.step_noise(noise, per_image=not settings.flag("no_dpmpp_sde_batch_determinism")),
                on_step,
            )
        return result, guidance.used

    def enlarged(self, model: LoadedModel, latents: Tensor, enlarge: Enlarge) -> Tensor | list[Tensor]:
        """The first pass's latents in the size of the second; or images, where the upscaler works on those, which
        the model of the second pass will encode."""
        width, height = self.size.upscale_to
        name = self.hires.upscaler
        if name in LATENT_UPSCALE_MODES:
            mode = LATENT_UPSCALE_MODES.get(name)
            sides = (width // model.downscale, height // model.downscale)
            return model.recovery.run("enlarge", lambda: upscale_latents(latents, mode, *sides))
        enlarged = []
        for index in range(latents.shape[0]):
            decoded = model.decode(latents[index : index + 1])
            enlarged.append(model.recovery.run("enlarge", partial(_larger, decoded, name, (width, height), enlarge)))
        return enlarged

    def _cut(self, latents: Tensor) -> Tensor:
        """Take the overhang off, the odd unit at the far side."""
        cut_x, cut_y = self.size.cut
        height, width = latents.shape[2:]
        return latents[:, :, cut_y // 2 : height - (cut_y + 1) // 2, cut_x // 2 : width - (cut_x + 1) // 2]


def _larger(decoded: Tensor, name: str, size_px: tuple[int, int], enlarge: Enlarge) -> Tensor:
    """A decoded image [1,3,h,w] in -1..1 through an upscaler on pixels."""
    (image,) = to_images(decoded)
    return from_images([enlarge(image, name, size_px)])


def _encoded(model: LoadedModel, images: list[Tensor]) -> Tensor:
    """Latents [B,C,h,w] of images [1,3,H,W]: the posterior's mean, not a sample of it; its deviation is far below a
    grey level, and unseeded elsewhere."""
    return torch.cat([model.encode(image) for image in images])
