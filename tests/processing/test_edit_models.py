"""Checkpoints that see an image: instruct-pix2pix and inpainting, against the pipelines of diffusers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    EulerDiscreteScheduler,
    StableDiffusionInpaintPipeline,
    StableDiffusionInstructPix2PixPipeline,
    StableDiffusionXLInpaintPipeline,
    StableDiffusionXLInstructPix2PixPipeline,
    UNet2DConditionModel,
)
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import Hooks, PassStart
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, Mask, MaskedContent, SourceImage
from modules.settings.values import Settings
from tests.models.diffusers_folders import UNET, UNETS, unet_tensors
from tests.models.family_files import family_tensors, kl
from tests.recordings import CONFIGS, cpu_machine

STEPS, CFG_SCALE, SIDE = 4, 5.0, 64
FIRST_LAYER = "model.diffusion_model.input_blocks.0.0.weight"


@dataclass(frozen=True)
class Sampled:
    """What a run began with (latents, unit noise) and its latents, [B,C,h,w]; its infotext."""

    clean: Tensor
    noise: Tensor
    latents: Tensor
    infotext: str


def engine_with(name: str, folder: Path, channels: int | None = None) -> Engine:
    """An engine with one tiny checkpoint, whose UNet takes `channels`."""
    tensors = family_tensors(name)
    if channels is not None:
        old = tensors[FIRST_LAYER]
        generator = torch.Generator().manual_seed(5)
        wide = torch.randn((old.shape[0], channels, *old.shape[2:]), generator=generator) / (9 * channels) ** 0.5
        tensors[FIRST_LAYER] = wide.half()
    save_file(tensors, folder / f"{name}.safetensors")
    return Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)


def picture(seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize((SIDE, SIDE), Image.Resampling.BICUBIC)


def pixels_of(image: Image.Image) -> Tensor:
    """[1,3,H,W] in -1..1."""
    return torch.from_numpy(np.asarray(image, dtype=np.float32) / 127.5 - 1.0).permute(2, 0, 1)[None]


def request_with(*images: Image.Image, **changes: Any) -> GenerationRequest:
    start = FromImage(images=tuple(SourceImage.of(image) for image in images), denoising_strength=1.0, **changes)
    return GenerationRequest(
        prompt="a red cat on a wall",
        negative_prompt="blurry",
        start=start,
        width=SIDE,
        height=SIDE,
        steps=STEPS,
        batch_size=len(images),
        cfg_scale=CFG_SCALE,
        sampler="Euler",
        scheduler="Simple",  # the timesteps of "trailing"
        seed=1,
        subseed=0,
        save_images=False,
        settings=Settings().with_changes({"return_grid": False}),
    )


def sampled(engine: Engine, request: GenerationRequest) -> Sampled:
    starts: list[tuple[Tensor, Tensor]] = []
    found: list[Tensor] = []

    class Noting(Hooks):
        def before_sampling(self, start: PassStart) -> None:
            starts.append((start.x.clone(), start.noise.clone()))

        def sampled(self, latents: Tensor) -> Tensor:
            found.append(latents.clone())
            return latents

    result = generate(request, engine, Output(Path()), Silent(), Noting())
    return Sampled(*starts[0], found[0], result.samples[0].infotext)


def prompts_of(engine: Engine) -> EncodedPrompts:
    return engine.conditioner(None).encode(["a red cat on a wall"], ["blurry"], STEPS, Settings(), (SIDE, SIDE))


def texts_for_diffusers(prompts: EncodedPrompts, pooled_width: int | None) -> dict[str, Tensor]:
    ((cond, _),) = prompts.prompts[0].at(0)
    negative = prompts.negatives[0].at(0)
    texts = {"prompt_embeds": cond.crossattn[None], "negative_prompt_embeds": negative.crossattn[None]}
    if pooled_width is not None:
        assert cond.vector is not None and negative.vector is not None
        texts["pooled_prompt_embeds"] = cond.vector[None, :pooled_width]
        texts["negative_pooled_prompt_embeds"] = negative.vector[None, :pooled_width]
    return texts


def diffusers_latents(pipe: Any, run: Sampled, texts: dict[str, Tensor], **arguments: Any) -> Tensor:
    """What a pipeline makes of the same start."""
    pipe.set_progress_bar_config(disable=True)
    pipe.scheduler.set_timesteps(STEPS)
    begins = (run.clean + run.noise * pipe.scheduler.sigmas[0]) / pipe.scheduler.init_noise_sigma
    result: Any = pipe(
        **texts,
        **arguments,
        num_inference_steps=STEPS,
        guidance_scale=CFG_SCALE,
        latents=begins,
        output_type="latent",
    )
    latents: Tensor = result.images
    return latents


def scheduler() -> EulerDiscreteScheduler:
    return EulerDiscreteScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", timestep_spacing="trailing"
    )


def sdxl_unet(model: LoadedModel) -> UNet2DConditionModel:
    """The same network with sizes embedded by diffusers."""
    channels = model.unet.conv_in.in_channels
    unet = UNet2DConditionModel(**{**UNET, **UNETS["sdxl"], "in_channels": channels})
    unet.load_state_dict({**unet_tensors("sdxl"), "conv_in.weight": model.unet.conv_in.weight})
    return unet.eval()


@pytest.mark.parametrize(("name", "pooled"), [("pix2pix", None), ("sdxl", 128)])
def test_editing_is_that_of_diffusers(name: str, pooled: int | None, tmp_path: Path) -> None:
    engine = engine_with(name, tmp_path, channels=8)
    run = sampled(engine, request_with(picture(), image_cfg_scale=1.7))
    assert "Image CFG scale: 1.7" in run.infotext
    model = engine.model(None)
    assert model.edits_images
    if pooled is None:
        pipe: Any = StableDiffusionInstructPix2PixPipeline(
            model.vae, None, None, model.unet, scheduler(), None, None, requires_safety_checker=False
        )
    else:
        pipe = StableDiffusionXLInstructPix2PixPipeline(
            model.vae, None, None, None, None, sdxl_unet(model), scheduler(), add_watermarker=False
        )
    sizes = {} if pooled is None else {"width": SIDE, "height": SIDE}
    texts = texts_for_diffusers(prompts_of(engine), pooled)
    theirs = diffusers_latents(pipe, run, texts, image=picture(), image_guidance_scale=1.7, **sizes)
    torch.testing.assert_close(run.latents, theirs, atol=2e-3, rtol=1e-3)


def test_an_editing_model_follows_its_image(tmp_path: Path) -> None:
    """Without an image scale, the guidance is that of the prompt alone; each image of a batch sees its own source."""
    engine = engine_with("pix2pix", tmp_path)
    without, one, strong = (
        sampled(engine, request_with(picture(), image_cfg_scale=scale)) for scale in (None, 1.0, 3.0)
    )
    assert torch.equal(without.latents, one.latents) and not torch.equal(one.latents, strong.latents)
    assert "Image CFG scale" not in without.infotext
    both = sampled(engine, request_with(picture(), picture(1), image_cfg_scale=3.0)).latents
    torch.testing.assert_close(both[:1], strong.latents, atol=1e-4, rtol=1e-4)
    second = replace(request_with(picture(1), image_cfg_scale=3.0), seed=2)
    torch.testing.assert_close(both[1:], sampled(engine, second).latents, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "pooled"), [("sd1-inpainting", None), ("sd2-inpainting", None), ("sdxl", 128)])
def test_inpainting_is_that_of_diffusers(name: str, pooled: int | None, tmp_path: Path) -> None:
    """Where all may change and the network is shown all; what it sees of a part is in the next test. (The tiny VAEs
    normalize each channel alone, so that a grey image comes out of them as noise.)"""
    engine = engine_with(name, tmp_path, channels=9)
    white = Image.new("L", (SIDE, SIDE), 255)
    mask = Mask(image=SourceImage.of(white), blur_x=0, blur_y=0, fill=MaskedContent.ORIGINAL)
    request = request_with(picture(), mask=mask)
    run = sampled(engine, replace(request, settings=request.settings.changed(inpainting_mask_weight=0.0)))
    assert "Conditional mask weight: 0.0" in run.infotext
    model = engine.model(None)
    model.unet.register_to_config(sample_size=64)  # the pipeline looks for old files by it
    if pooled is None:
        pipe: Any = StableDiffusionInpaintPipeline(
            model.vae, None, None, model.unet, scheduler(), None, None, requires_safety_checker=False
        )
    else:
        pipe = StableDiffusionXLInpaintPipeline(
            model.vae, None, None, None, None, sdxl_unet(model), scheduler(), add_watermarker=False
        )
    shown = model.vae.encode(pixels_of(picture())).latent_dist.mode() * kl(model.architecture).scale_factor
    texts = texts_for_diffusers(prompts_of(engine), pooled)
    theirs = diffusers_latents(
        pipe,
        run,
        texts,
        image=picture(),
        mask_image=white,
        masked_image_latents=shown,
        strength=1.0,
        width=SIDE,
        height=SIDE,
    )
    torch.testing.assert_close(run.latents, theirs, atol=2e-3, rtol=1e-3)


def test_an_inpainting_model_sees_the_mask_and_the_rest_of_the_image(tmp_path: Path) -> None:
    """Mask first, then the latent of the image with grey under the mask, as diffusers' pipeline prepares them."""
    from modules.processing.pipeline.starts.image import ImageStart

    engine = engine_with("sd1-inpainting", tmp_path)
    half = Image.new("L", (SIDE, SIDE))
    half.paste(255, (0, 0, SIDE // 2, SIDE))
    mask = Mask(image=SourceImage.of(half), blur_x=0, blur_y=0)
    request = request_with(picture(), mask=mask)
    assert isinstance(request.start, FromImage)
    model = engine.model(None)
    with torch.inference_mode():
        ours = ImageStart.of(request.start, request).image_conditioning(model, SIDE // 8, SIDE // 8)
        shown = pixels_of(picture()) * (torch.from_numpy(np.array(half)) < 128)
        expected = model.vae.encode(shown).latent_dist.mode() * kl(model.architecture).scale_factor
    assert ours is not None and ours.shape == (1, 5, 8, 8)
    assert torch.equal(ours[0, 0], torch.tensor([[1.0] * 4 + [0.0] * 4] * 8))
    torch.testing.assert_close(ours[:, 1:], expected, atol=1e-5, rtol=1e-4)
