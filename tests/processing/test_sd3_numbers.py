"""Stable Diffusion 3 against diffusers: its converter, its transformer, its pipeline and its scheduler."""

from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel, StableDiffusion3Pipeline
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.memory.attention import whole
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.attention import using_attention
from modules.processing.engine.conditioning import EncodedPrompts
from modules.processing.engine.engine import Engine
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings
from tests.models.diffusers_sd3_folders import sd3_transformer
from tests.models.family_files import family_tensors, write_family
from tests.processing.guided_run import sampling_run
from tests.recordings import CONFIGS, cpu_machine

PROMPT, NEGATIVE = "a red cat on a wall", "blurry"
STEPS, CFG_SCALE = 6, 4.5


@pytest.fixture(scope="module", params=["sd3", "sd3.5", "sd3.5-large"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def engine(name: str, tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = tmp_path_factory.mktemp("sd3")
    write_family(folder, name)
    return Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)


@pytest.fixture(scope="module")
def theirs(name: str) -> SD3Transformer2DModel:
    """The file's transformer as diffusers itself reads it."""
    return sd3_transformer(name).float().eval()


def encoded(engine: Engine) -> EncodedPrompts:
    return engine.conditioner(None).encode([PROMPT], [NEGATIVE], STEPS, Settings(), (64, 64))


def test_the_denoiser_predicts_what_that_of_diffusers_does(engine: Engine, theirs: SD3Transformer2DModel) -> None:
    torch.manual_seed(3)
    x, t = torch.randn(2, 16, 8, 10), torch.tensor([900.0, 31.5])
    context, vector = torch.randn(2, 154, 256), torch.randn(2, 192)
    with torch.inference_mode():
        ours = engine.model(None).predict(x, t, DenoiserContext(context, vector))
        reference = theirs(x, context, vector, t, return_dict=False)[0]
    torch.testing.assert_close(ours, reference, atol=1e-5, rtol=1e-5)


def test_latents_of_an_odd_side_keep_it(engine: Engine) -> None:
    with torch.inference_mode():
        context = DenoiserContext(torch.randn(1, 154, 256), torch.randn(1, 192))
        assert engine.model(None).predict(torch.randn(1, 16, 7, 9), torch.tensor([5.0]), context).shape[2:] == (7, 9)


def test_euler_is_the_pipeline_of_diffusers(engine: Engine, theirs: SD3Transformer2DModel) -> None:
    model, prompts = engine.model(None), encoded(engine)
    noise = torch.randn(1, 16, 8, 8, generator=torch.Generator().manual_seed(7))
    times = [1 - int(i * 1000 / STEPS) / 1000 for i in range(STEPS)]
    schedule = [3 * u / (1 + 2 * u) for u in times]  # what "Simple" takes, shifted
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)
    vae: Any = model.vae
    pipeline = StableDiffusion3Pipeline(theirs, scheduler, vae, *(None,) * 6)
    pipeline.set_progress_bar_config(disable=True)
    ((cond, _),) = prompts.prompts[0].at(0)
    negative = prompts.negatives[0].at(0)
    assert cond.vector is not None and negative.vector is not None
    reference = pipeline(
        prompt_embeds=cond.crossattn[None],
        pooled_prompt_embeds=cond.vector[None],
        negative_prompt_embeds=negative.crossattn[None],
        negative_pooled_prompt_embeds=negative.vector[None],
        latents=noise,
        sigmas=schedule,
        guidance_scale=CFG_SCALE,
        output_type="latent",
        height=64,
        width=64,
    ).images
    ours = sampling_run(model, noise, prompts, STEPS, CFG_SCALE)
    torch.testing.assert_close(ours, reference, atol=2e-4, rtol=2e-4)
    with torch.inference_mode():
        image = vae.decode(reference / 1.5305 + 0.0609, return_dict=False)[0]
        torch.testing.assert_close(model.decode(ours), image, atol=2e-3, rtol=2e-3)


def test_prompts_are_encoded_as_the_model_was_trained(name: str, engine: Engine) -> None:
    """The last but one states of both CLIP models side by side, zeros up to the width and in place of T5's tokens;
    both pooled outputs, of which the second is projected."""
    tokenizer = ClipTokenizer.standard()
    ids = [tokenizer.start_id, *tokenizer.encode(PROMPT), tokenizer.end_id]
    states, pooled = [], []
    for part, kind, width, pad, activation in (
        ("clip_l", CLIPTextModel, 64, tokenizer.end_id, "quick_gelu"),
        ("clip_g", CLIPTextModelWithProjection, 128, 0, "gelu"),
    ):
        prefix = f"text_encoders.{part}.transformer."
        own = {k.removeprefix(prefix): v.float() for k, v in family_tensors(name).items() if k.startswith(prefix)}
        if part == "clip_l":
            own = {key.removeprefix("text_model."): tensor for key, tensor in own.items()}
        config = CLIPTextConfig(
            hidden_size=width,
            intermediate_size=2 * width,
            projection_dim=width,
            num_hidden_layers=3,
            num_attention_heads=width // 64,
            hidden_act=activation,
            eos_token_id=tokenizer.end_id,
        )
        model: Any = kind(config).eval()
        model.load_state_dict(own, strict=False)
        with torch.inference_mode():
            out = model(torch.tensor([ids + [pad] * (77 - len(ids))]), output_hidden_states=True)
        states.append(out.hidden_states[-2])
        pooled.append(out.text_embeds if part == "clip_g" else out.pooler_output)
    ((ours, _),) = encoded(engine).prompts[0].at(0)
    assert ours.crossattn.shape == (154, 256) and ours.vector is not None
    torch.testing.assert_close(ours.crossattn[:77, :192], torch.cat(states, dim=-1)[0], atol=1e-4, rtol=1e-4)
    assert not ours.crossattn[77:].any() and not ours.crossattn[:, 192:].any()
    torch.testing.assert_close(ours.vector, torch.cat(pooled, dim=-1)[0], atol=1e-4, rtol=1e-4)


def test_every_way_of_attention_gives_the_same_numbers(engine: Engine) -> None:
    """In place of diffusers' own processors, which are back afterwards."""
    model = engine.model(None)
    torch.manual_seed(4)
    x, context = torch.randn(1, 16, 8, 8), DenoiserContext(torch.randn(1, 154, 256), torch.randn(1, 192))
    with torch.inference_mode():
        plain = model.predict(x, torch.tensor([300.0]), context)
        before = [id(layer.processor) for layer in model.unet.modules() if hasattr(layer, "processor")]
        counted = 0

        def counting(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            nonlocal counted
            counted += 1
            return whole(query, key, value)

        with using_attention((model.unet,), counting):
            other = model.predict(x, torch.tensor([300.0]), context)
        after = [id(layer.processor) for layer in model.unet.modules() if hasattr(layer, "processor")]
    torch.testing.assert_close(other, plain, atol=1e-5, rtol=1e-5)
    assert before == after and counted == len(before)
