"""SDXL, predicting noise, and predicting v to the end of a schedule in pure noise, against diffusers: its converter,
UNet, pipeline and scheduler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.run_pass import noise_schedule
from modules.sampling.discrete import ZERO_SNR_LAST_ALPHA_BAR
from modules.settings.values import Settings
from tests.models.diffusers_folders import UNET, UNETS, scheduler_config, unet_tensors
from tests.models.family_files import write_family
from tests.processing.guided_run import sampling_run
from tests.recordings import CONFIGS, cpu_machine

STEPS, CFG_SCALE, SIZE_PX = 8, 5.0, (64, 80)  # width, height


def engine_with(name: str, folder: Path) -> Engine:
    write_family(folder, name)
    return Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)


def encoded(engine: Engine) -> EncodedPrompts:
    return engine.conditioner(None).encode(["a red cat on a wall"], ["blurry"], STEPS, Settings(), SIZE_PX)


def diffusers_run(name: str, vae: Any, noise: Tensor, prompts: EncodedPrompts, last_alpha_bar: float | None) -> Tensor:
    """Latents of diffusers' pipeline, which is told sizes and crop in its own way. `last_alpha_bar`: that of the last
    timestep in place of the scheduler's."""
    unet = UNet2DConditionModel(**{**UNET, **UNETS[name]})
    unet.load_state_dict(unet_tensors(name))
    scheduler = EulerDiscreteScheduler(**scheduler_config(name), timestep_spacing="trailing")
    if last_alpha_bar is not None:
        scheduler.alphas_cumprod[-1] = last_alpha_bar
    pipeline = StableDiffusionXLPipeline(vae, *(None,) * 4, unet.eval(), scheduler)
    pipeline.set_progress_bar_config(disable=True)
    ((cond, _),) = prompts.prompts[0].at(0)
    negative = prompts.negatives[0].at(0)
    assert cond.vector is not None and negative.vector is not None
    width, height = SIZE_PX
    pooled = UNETS[name]["projection_class_embeddings_input_dim"] - 6 * UNETS[name]["addition_time_embed_dim"]
    result: Any = pipeline(
        prompt_embeds=cond.crossattn[None],
        pooled_prompt_embeds=cond.vector[None, :pooled],
        negative_prompt_embeds=negative.crossattn[None],
        negative_pooled_prompt_embeds=negative.vector[None, :pooled],
        num_inference_steps=STEPS,
        guidance_scale=CFG_SCALE,
        latents=noise,
        width=width,
        height=height,
        output_type="latent",
    )
    latents: Tensor = result.images
    return latents


def noise_of_a_image() -> Tensor:
    width, height = SIZE_PX
    return torch.randn(1, 4, height // 8, width // 8, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("name", ["sdxl", "sdxl-v"])
def test_euler_is_the_pipeline_of_diffusers(name: str, tmp_path: Path) -> None:
    """ "Simple" walks over the timesteps of "trailing": 999, 874, ... 124."""
    engine = engine_with(name, tmp_path)
    prompts, model, noise = encoded(engine), engine.model(None), noise_of_a_image()
    ours = sampling_run(model, noise, prompts, STEPS, CFG_SCALE)
    last = ZERO_SNR_LAST_ALPHA_BAR if name == "sdxl-v" else None
    theirs = diffusers_run(name, model.vae, noise, prompts, last)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_the_last_alpha_bar_is_the_reference_uis_and_not_that_of_diffusers(tmp_path: Path) -> None:
    """4.9e-8 and 2^-24 (6.0e-8) in place of 0: other sigmas at the last timestep, which the latents hardly show."""
    engine = engine_with("sdxl-v", tmp_path)
    prompts, model, noise = encoded(engine), engine.model(None), noise_of_a_image()
    schedule = noise_schedule(model, Settings())
    assert float(schedule.sigmas[-1]) == pytest.approx(4518.8, abs=0.1)
    assert float(EulerDiscreteScheduler(**scheduler_config("sdxl-v")).sigmas[0]) == pytest.approx(4096, abs=0.1)
    ours = sampling_run(model, noise, prompts, STEPS, CFG_SCALE)
    theirs = diffusers_run("sdxl-v", model.vae, noise, prompts, None)
    assert float((ours - theirs).abs().max()) < 2e-4 * float(theirs.abs().max())
