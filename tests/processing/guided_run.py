"""A walk through the sampler with our guidance, from given noise and encoded prompts to latents."""

import torch
from torch import Tensor

from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.pipeline.run_pass import build_guidance, guided_denoiser, noise_schedule
from modules.processing.pipeline.starts.noise import NoiseStart
from modules.processing.request.pass_settings import PassSettings
from modules.sampling.catalog import SAMPLERS
from modules.sampling.noise import GaussianNoise, ImageNoise, NoiseRequest
from modules.settings.values import Settings


def sampling_run(
    model: LoadedModel,
    noise: Tensor,
    prompts: EncodedPrompts,
    steps: int,
    cfg_scale: float,
    sampler: str = "Euler",
    scheduler: str = "Simple",
) -> Tensor:
    """Latents [1,C,h,w] like `noise`, float32."""
    plan = PassSettings(
        sampler=SAMPLERS.get(sampler),
        scheduler=scheduler,
        steps=steps,
        cfg_scale=cfg_scale,
        settings=Settings(),
        schedule_table=model.family.noise.schedule_table,
    )
    channels, height, width = noise.shape[1:]
    schedule = noise_schedule(model, Settings())
    denoiser = guided_denoiser(plan, model, schedule, prompts, NoiseStart().image_conditioning(model, height, width))
    guidance = build_guidance(plan, denoiser, lambda: None, True)
    path = NoiseStart().sampling_run(plan, schedule)
    on_the_way = ImageNoise(NoiseRequest(shape=(channels, height, width), seeds=(1,)), torch.device("cpu"))
    with torch.inference_mode():
        return path.run(guidance, path.start(noise), GaussianNoise(on_the_way), lambda _: None)
