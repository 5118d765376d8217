"""Z-Image from its files to an image, against tensors and the image that the original code made."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ZImagePipeline
from PIL import Image
from torch import Tensor

from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.models.loading.loaded import LoadedModel
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.processing.engine.adapters import Adapters
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import Hooks, PassStart
from modules.processing.request.model_use import ModelUse
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, Mask, SourceImage
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.dit_files import DIT, recorded, write_split, write_whole
from tests.models.dit_models import flow_pipeline, tiny_qwen
from tests.recordings import CONFIGS, cpu_machine

CASE = "zimage-turbo-cfg1"
PAYLOAD = json.loads((DIT / f"{CASE}.json").read_text(encoding="utf-8"))["payload"]
PAINTED = FromImage(
    images=(SourceImage.of(Image.new("RGB", (208, 144), "teal")),),
    denoising_strength=0.8,
    mask=Mask(image=SourceImage.of(Image.linear_gradient("L").resize((208, 144)))),
)
MODULES = ["qwen3_4b_tiny.safetensors", "flux_ae_tiny.safetensors"]


def engine_of(root: Path, adapters: Adapters | None = None) -> Engine:
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
    return Engine(
        catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=adapters or adapters_of(), modules=modules)
    )


def made(
    engine: Engine, root: Path, settings: Settings | None = None, hooks: Hooks | None = None, **changes: Any
) -> Result:
    fields: dict[str, Any] = {
        "prompt": PAYLOAD["prompt"],
        "seed": PAYLOAD["seed"],
        "subseed": 0,
        "steps": 4,
        "width": 208,
        "height": 144,
        "sampler": "Euler",
        "scheduler": "Simple",
        "cfg_scale": 1.0,
        "settings": settings or Settings(),
    }
    request = GenerationRequest(**{**fields, **changes})
    return generate(request, engine, Output(root / "out"), Silent(), hooks or Hooks())


def pixels(result: Result) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.asarray(result.images[0].image.convert("RGB")).astype(np.int64)


def expected() -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    with Image.open(DIT / f"{CASE}.png") as image:
        return np.asarray(image.convert("RGB")).astype(np.int64)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("z_image")
    write_split(root, CASE)
    return root


@pytest.fixture(scope="module")
def engine(root: Path) -> Engine:
    return engine_of(root)


@pytest.fixture(scope="module")
def model(engine: Engine) -> LoadedModel:
    return engine.model(None, PrecisionOptions.of(Settings()))


def relative(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).abs().max() / wanted.std())


def test_the_velocity_is_the_originals(model: LoadedModel) -> None:
    tensors = recorded(CASE)
    for sigma, wanted in zip(tensors["sigma"], tensors["velocity"], strict=True):
        cond = tensors["cond"][None]
        context = DenoiserContext(cond, mask=torch.ones(cond.shape[:2], dtype=torch.bool))
        found = model.predict(tensors["latent"], 1000 * sigma[None], context)
        assert relative(found[0], wanted) < 1e-4


def test_prompts_of_unequal_length_share_a_call(model: LoadedModel) -> None:
    tensors = recorded(CASE)
    texts = [tensors["cond"], tensors["uncond"]]
    crossattn = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    mask = torch.arange(crossattn.shape[1])[None] < torch.tensor([[len(text)] for text in texts])
    sigma = tensors["sigma"][1]
    context = DenoiserContext(crossattn, mask=mask)
    found = model.predict(tensors["latent"].repeat(2, 1, 1, 1), 1000 * sigma.repeat(2), context)
    assert relative(found[0], tensors["velocity"][1]) < 1e-4
    assert relative(found[1], tensors["velocity_negative"][0]) < 1e-4


def test_the_vae_is_the_originals(model: LoadedModel) -> None:
    tensors = recorded(CASE)
    assert relative(model.encode(tensors["vae_image"]), tensors["vae_latent_of_image"]) < 1e-4
    assert relative(model.decode(tensors["vae_latent_in"]), tensors["vae_decoded"]) < 1e-4


def qwen_states(text: str) -> Tensor:
    """The state before the last layer [n,width], by transformers."""
    ids = LlmTokenizer.standard().ids(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n")
    states: Tensor = tiny_qwen()(input_ids=torch.tensor([ids]), output_hidden_states=True).hidden_states[-2][0]
    return states


@torch.no_grad()
def test_a_guided_image_is_that_of_diffusers(engine: Engine, root: Path, model: LoadedModel) -> None:
    """Its scale is less by 1 for the same guidance."""
    negative, width, height, steps, cfg = "blurry, low resolution", 208, 144, 4, 4.0
    noise = torch.randn((1, 16, height // 8, width // 8), generator=torch.Generator().manual_seed(PAYLOAD["seed"]))
    pipe = flow_pipeline(ZImagePipeline, model.unet, model.vae, {"shift": 3.0})
    walked: list[Tensor] = []
    image = pipe(
        prompt_embeds=[qwen_states(PAYLOAD["prompt"])],
        negative_prompt_embeds=[qwen_states(negative)],
        guidance_scale=cfg - 1,
        num_inference_steps=steps,
        latents=noise,
        width=width,
        height=height,
        callback_on_step_end=lambda pipe, step, time, tensors: walked.append(tensors["latents"]) or {},
        output_type="np",
    ).images[0]
    found: list[Tensor] = []

    class Noting(Hooks):
        def sampled(self, latents: Tensor) -> Tensor:
            found.append(latents.clone())
            return latents

    result = made(engine, root, None, Noting(), cfg_scale=cfg, negative_prompt=negative, steps=steps)
    assert relative(found[0], walked[-1]) < 1e-4
    difference = np.abs(pixels(result) - (image * 255).astype(np.int64))
    assert difference.max() <= 1 and pixels(result).std() > 1


class Reading(Hooks):
    """Looks at the negative prompts before the first step."""

    def before_sampling(self, start: PassStart) -> None:
        assert len(start.uncond) == 1 and start.uncond[0].at(1).crossattn.ndim == 2


class Guiding(Hooks):
    """A script that wants both halves."""

    def on_model(self, use: ModelUse) -> None:
        use.needs_uncond = True


@pytest.mark.parametrize(
    ("changes", "hooks", "runs"),
    [
        ({}, None, 1),
        ({"negative_prompt": "blurry"}, None, 1),
        ({"prompt": "a crow AND a fox"}, None, 1),
        ({"hires": HiresRequest(scale=1.5, steps=1, denoising_strength=0.6)}, None, 1),
        ({"cfg_scale": 2.0}, None, 2),
        ({}, Reading(), 2),
        ({}, Guiding(), 2),
    ],
    ids=["plain", "words", "AND", "hires", "CFG", "uc is read", "a script guides"],
)
def test_a_negative_prompt_that_does_not_count_is_not_encoded(
    engine: Engine, root: Path, model: LoadedModel, changes: dict[str, Any], hooks: Hooks | None, runs: int
) -> None:
    """Runs of the text encoder, of which the prompt takes one."""
    counted: list[object] = []
    handle = model.text_encoder.register_forward_pre_hook(lambda module, args: counted.append(module))
    words = f"a crow {'-'.join(map(str, changes))} {type(hooks).__name__}"  # not in the cache of encoded prompts
    if hooks is not None or "cfg_scale" in changes:
        changes = {"negative_prompt": f"no {words}", **changes}
    try:
        made(engine, root, None, hooks, **{"prompt": words, "steps": 2, **changes})
    finally:
        handle.remove()
    assert len(counted) == runs


@pytest.mark.parametrize("modules", [[], MODULES, ["VAE/flux_ae_tiny.safetensors"], ["qwen3_4b_tiny"]])
def test_the_image_is_the_recorded_one(engine: Engine, root: Path, modules: list[str]) -> None:
    """Parts that are not chosen are found by themselves."""
    settings = Settings().with_changes({"forge_additional_modules": modules})
    result = made(engine, root, settings)
    difference = np.abs(pixels(result) - expected())
    assert difference.max() <= 1 and difference.mean() < 1e-3
    parsed = parse_infotext(result.images[0].infotext)
    stems = [Path(name).stem for name in modules]
    stems += [stem for stem in ("flux_ae_tiny", "qwen3_4b_tiny") if stem not in stems]
    assert [parsed["Module 1"], parsed["Module 2"]] == stems and "Module 3" not in parsed
    assert override_settings_from(parsed, Settings())["forge_additional_modules"] == tuple(stems)


def test_one_file_with_all_parts_makes_the_same_image(tmp_path: Path) -> None:
    write_whole(tmp_path, CASE)
    difference = np.abs(pixels(made(engine_of(tmp_path), tmp_path)) - expected())
    assert difference.max() <= 1 and difference.mean() < 1e-3


@pytest.mark.parametrize(
    "changes",
    [
        {"cfg_scale": 4.0, "negative_prompt": "blurry, lowres"},
        {"prompt": "a red fox AND a snowy hill :0.5", "cfg_scale": 3.0},
        {"prompt": "a [red:blue:0.5] fox (in the snow:1.3) BREAK sharp"},
        {"hires": HiresRequest(scale=1.5, steps=2, denoising_strength=0.6)},
        {"sampler": "DPM++ 2M", "scheduler": "Beta"},
        {"sampler": "Euler a", "scheduler": "SGM Uniform"},
        {"sampler": "UniPC"},
        {"sampler": "LCM"},
        {"sampler": "DDIM", "start": PAINTED},
        {"sampler": "DPM++ 2M SDE", "scheduler": "Normal"},
        {"width": 200, "height": 152, "batch_size": 2},
    ],
    ids=lambda changes: ",".join(map(str, changes)),
)
def test_features_make_images(engine: Engine, root: Path, changes: dict[str, Any]) -> None:
    result = made(engine, root, **changes)
    assert pixels(result).std() > 1
    assert not np.array_equal(pixels(result), expected())


@pytest.mark.parametrize(
    "changes",
    [
        {"fp8_storage": "Enable"},
        {"fp8_storage": "Enable", "fp8_format": "int8_convrot"},
        {"stream_weights": "Layers"},
    ],
)
def test_stored_and_streamed_images_are_near(root: Path, changes: dict[str, object]) -> None:
    settings = Settings().with_changes(changes)
    difference = np.abs(pixels(made(engine_of(root), root, settings)) - expected())
    assert difference.mean() < 16


def test_what_the_text_encoder_does_not_read_is_said(engine: Engine, root: Path) -> None:
    said = " ".join(made(engine, root, prompt="a (red:1.3) fox BREAK snow").notices)
    assert "weights in the prompt" in said and "BREAK is read as a space" in said
    assert "weights in the prompt" not in " ".join(made(engine, root).notices)
