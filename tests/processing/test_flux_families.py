"""FLUX.1 dev and Fill, FLUX.2 klein and Chroma from their files to an image, against the classes of diffusers and
transformers; FLUX.1 schnell against the image that the original code made."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FluxFillPipeline
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from modules.images.infotext import parse_infotext
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.models.loading.loaded import LoadedModel
from modules.models.text_encoders.tokenizers import LlmTokenizer, standard_t5
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.pixels import from_images
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.hooks import Hooks
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.source_images import FromImage, FromNoise, Mask, MaskedContent, SourceImage
from modules.processing.request.stages import Stage
from modules.prompting.tokens import ClipTokenizer
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.models.dit_files import DIT, recipe_tensors, recorded, write_split, write_whole
from tests.models.dit_models import TINY, flow_pipeline, packed_vae, tiny_qwen, write_in_one, write_parts
from tests.recordings import CONFIGS, cpu_machine

PROMPT = "a photo of a red fox in the snow, sharp focus"
WIDTH, HEIGHT, STEPS, SEED = 96, 64, 4, 1234
SHIFTS = {"dev": math.e**1.15, "fill": math.e**1.15, "klein": math.e**2.02, "chroma": math.e}


def engine_of(root: Path) -> Engine:
    catalogue = CheckpointCatalogue([root / "Stable-diffusion"], HashCache(root / "hashes.json"))
    modules = ModuleCatalogue([root / "text_encoder", root / "VAE"])
    return Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=adapters_of(), modules=modules))


def made(engine: Engine, root: Path, hooks: Hooks | None = None, /, **changes: Any) -> Result:
    return generate(asked(**changes), engine, Output(root / "out"), Silent(), hooks or Hooks())


def asked(**changes: Any) -> GenerationRequest:
    fields: dict[str, Any] = {
        **{"prompt": PROMPT, "seed": SEED, "subseed": 0, "steps": STEPS, "width": WIDTH, "height": HEIGHT},
        **{"sampler": "Euler", "scheduler": "Simple", "cfg_scale": 1.0, "settings": Settings()},
    }
    return GenerationRequest(**{**fields, **changes})


def pixels(result: Result) -> Any:
    return np.asarray(result.images[0].image.convert("RGB")).astype(np.int64)


def close(found: Any, wanted: Any) -> bool:
    """Rounding may differ in a few places."""
    difference = np.abs(found - wanted)
    return bool(difference.max() <= 1 and difference.mean() < 0.01)


# -- the oracle ------------------------------------------------------------------------------------------------------


def t5() -> Any:
    weights = {key: value.float() for key, value in recipe_tensors("t5xxl_tiny").items()}
    layer = "encoder.block.0.layer"
    config = T5Config(
        vocab_size=weights["shared.weight"].shape[0],
        d_model=64,
        d_kv=weights[f"{layer}.0.SelfAttention.q.weight"].shape[0] // 2,
        d_ff=weights[f"{layer}.1.DenseReluDense.wi_0.weight"].shape[0],
        num_layers=sum(key.endswith("SelfAttention.q.weight") for key in weights),
        num_heads=2,
        feed_forward_proj="gated-gelu",
    )
    model = T5EncoderModel(config).eval()
    model.load_state_dict({**weights, "encoder.embed_tokens.weight": weights["shared.weight"]})
    return model


def t5_states(text: str, tokens: int, is_masked: bool = False) -> Tensor:
    ids = standard_t5().text_ids(text)
    padded = torch.tensor([[*ids, *[0] * (tokens - len(ids))]])
    mask = (torch.arange(tokens) < len(ids)).long()[None] if is_masked else None
    states: Tensor = t5()(input_ids=padded, attention_mask=mask).last_hidden_state
    return states


def clip_pooled(text: str) -> Tensor:
    weights = {key: value.float() for key, value in recipe_tensors("clip_l_tiny").items()}
    mlp = weights["text_model.encoder.layers.0.mlp.fc1.weight"].shape[0]
    layers = sum(key.endswith("mlp.fc1.weight") for key in weights)
    model = CLIPTextModel(
        CLIPTextConfig(
            hidden_size=128,
            intermediate_size=mlp,
            num_hidden_layers=layers,
            num_attention_heads=2,
            hidden_act="quick_gelu",
            eos_token_id=49407,
        )
    ).eval()
    short = {key.removeprefix("text_model."): value for key, value in weights.items()}
    level = "text_model." if any(key.startswith("text_model.") for key in model.state_dict()) else ""
    model.load_state_dict({f"{level}{key}": value for key, value in short.items()}, strict=False)
    ids = ClipTokenizer.standard().encode(text)
    row = [49406, *ids, 49407]
    found: Tensor = model(input_ids=torch.tensor([[*row, *[49407] * (77 - len(row))]])).pooler_output
    return found


def qwen_states(text: str) -> Tensor:
    model = tiny_qwen()
    ids = LlmTokenizer.standard().ids(
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    mask = (torch.arange(512) < len(ids)).long()[None]
    padded = torch.tensor([[*ids, *[151643] * (512 - len(ids))]])
    states = model(input_ids=padded, attention_mask=mask, output_hidden_states=True).hidden_states
    return torch.cat([states[number] for number in (9, 18, 27)], dim=-1)


def packed(x: Tensor) -> Tensor:
    batch, channels, height, width = x.shape
    cut = x.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    tokens: Tensor = cut.reshape(batch, height * width // 4, channels * 4)
    return tokens


def unpacked(tokens: Tensor, height: int, width: int) -> Tensor:
    cut = tokens.reshape(1, height // 2, width // 2, -1, 2, 2).permute(0, 3, 1, 4, 2, 5)
    image: Tensor = cut.reshape(1, -1, height, width)
    return image


def grid(height: int, width: int, first: int = 0, axes: int = 3) -> Tensor:
    rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    rest = [torch.zeros_like(rows)] * (axes - 3)
    return torch.stack([torch.full_like(rows, first), rows, columns, *rest], -1).reshape(-1, axes).float()


class Oracle:
    """The velocity of a family by diffusers' class, and what its pipeline feeds it with."""

    def __init__(self, name: str, prompt: str = PROMPT) -> None:
        self.name, self.transformer = name, TINY[name].transformer()
        self.references: list[tuple[Tensor, Tensor]] = []  # latents, and where the first token is
        self.behind: Tensor | None = None  # channels behind the latents
        if name == "klein":
            self.text = qwen_states(prompt)
        elif name == "chroma":
            count = len(standard_t5().text_ids(prompt))
            self.text = t5_states(prompt, 512, is_masked=True)[:, : count + 1]
        else:
            self.text, self.pooled = t5_states(prompt, 512), clip_pooled(prompt)

    @torch.no_grad()
    def velocity(self, x: Tensor, sigma: float) -> Tensor:
        time, text = torch.tensor([sigma]), self.text
        height, width = x.shape[-2:]
        if self.name == "klein":
            tokens, ids = x.flatten(2).transpose(1, 2), grid(height, width, axes=4)
            for latents, first in self.references:
                tokens = torch.cat([tokens, latents.flatten(2).transpose(1, 2)], 1)
                ids = torch.cat([ids, grid(latents.shape[-2], latents.shape[-1], axes=4) + first])
            text_ids = torch.zeros(512, 4)
            text_ids[:, 3] = torch.arange(512)
            output = self.transformer(
                tokens, encoder_hidden_states=text, timestep=time, img_ids=ids, txt_ids=text_ids, return_dict=False
            )[0][:, : height * width]
            image: Tensor = output.transpose(1, 2).reshape(x.shape)
            return image
        tokens, ids = packed(x), grid(height // 2, width // 2)
        if self.behind is not None:
            tokens = torch.cat([tokens, self.behind], -1)
        for latents, first in self.references:
            rows, columns = (edge // 2 for edge in latents.shape[-2:])
            tokens, ids = torch.cat([tokens, packed(latents)], 1), torch.cat([ids, grid(rows, columns) + first])
        more = {}
        if self.name != "chroma":
            more = {"pooled_projections": self.pooled, "guidance": torch.tensor([3.5])}
        output = self.transformer(
            tokens,
            encoder_hidden_states=text,
            timestep=time,
            img_ids=ids,
            txt_ids=torch.zeros(text.shape[1], 3),
            return_dict=False,
            **more,
        )[0]
        return unpacked(output[:, : height * width // 4], height, width)

    def sampled(self, x: Tensor, sigmas: list[float], negative: "Oracle | None" = None, cfg: float = 1.0) -> Tensor:
        """Euler."""
        for sigma, after in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            velocity = self.velocity(x, sigma)
            if negative is not None:
                without = negative.velocity(x, sigma)
                velocity = without + cfg * (velocity - without)
            x = x + (after - sigma) * velocity
        return x


def noise(name: str) -> Tensor:
    shape = (1, 128, HEIGHT // 16, WIDTH // 16) if name == "klein" else (1, 16, HEIGHT // 8, WIDTH // 8)
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED))


def sigmas_of(name: str, times: tuple[float, ...] = (1.0, 0.75, 0.5, 0.25)) -> list[float]:
    shift = SHIFTS[name]
    return [shift * time / (1 + (shift - 1) * time) for time in times]


def decoded(model: LoadedModel, name: str, latents: Tensor) -> Any:
    """By diffusers' class; the weights are the loaded ones, which other tests hold against the file's."""
    if name == "klein":
        vae = packed_vae()
        mean, variance = vae.bn.running_mean[None, :, None, None], vae.bn.running_var[None, :, None, None]
        tokens = latents * torch.sqrt(variance + 1e-4) + mean
        batch, channels, height, width = tokens.shape
        cut = tokens.reshape(batch, channels // 4, 2, 2, height, width).permute(0, 1, 4, 2, 5, 3)
        own = cut.reshape(batch, channels // 4, height * 2, width * 2)
        image = vae.decode(own, return_dict=False)[0]
    else:
        image = model.vae.decode(latents / 0.3611 + 0.1159, return_dict=False)[0]
    array = ((image[0].permute(1, 2, 0) + 1) / 2).clamp(0, 1) * 255
    return array.numpy().astype(np.uint8).astype(np.int64)


@pytest.fixture(scope="module", params=TINY)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path, Engine]:
    root = tmp_path_factory.mktemp(request.param)
    write_parts(root, TINY[request.param])
    return request.param, root, engine_of(root)


def model_of(engine: Engine) -> LoadedModel:
    return engine.model(None, PrecisionOptions.of(Settings()))


def source_image() -> Image.Image:
    gradient = np.linspace(0, 255, WIDTH * HEIGHT * 3).reshape(HEIGHT, WIDTH, 3)
    return Image.fromarray(gradient.astype(np.uint8))


@torch.no_grad()
def test_the_image_is_that_of_diffusers(case: tuple[str, Path, Engine]) -> None:
    name, root, engine = case
    model, oracle = model_of(engine), Oracle(name)
    if name == "fill":  # everything is to be painted, over grey
        grey = model.encode(torch.zeros(1, 3, HEIGHT, WIDTH))
        oracle.behind = torch.cat([packed(grey), torch.ones(1, HEIGHT * WIDTH // 256, 256)], -1)
    x = oracle.sampled(noise(name), sigmas_of(name))
    assert close(pixels(made(engine, root)), decoded(model, name, x))


@torch.no_grad()
def test_a_negative_prompt_guides(case: tuple[str, Path, Engine]) -> None:
    name, root, engine = case
    if name == "fill":
        pytest.skip("Fill is guided by the same code as dev, whose case holds it")
    model, negative = model_of(engine), "blurry, low resolution"
    x = Oracle(name).sampled(noise(name), sigmas_of(name), Oracle(name, negative), 3.0)
    found = made(engine, root, cfg_scale=3.0, negative_prompt=negative)
    assert close(pixels(found), decoded(model, name, x))


@torch.no_grad()
def test_an_image_to_start_from(case: tuple[str, Path, Engine]) -> None:
    """Klein is shown it as a reference besides."""
    name, root, engine = case
    if name == "fill":
        pytest.skip("Fill paints under a mask, in the next test")
    model, oracle = model_of(engine), Oracle(name)
    source = SourceImage.of(source_image())
    latents = model.encode(from_images([source_image()]))
    if name == "klein":
        oracle.references = [(latents, torch.tensor([10, 0, 0, 0]))]
    result = made(engine, root, start=FromImage(images=(source,), denoising_strength=0.5))
    sigmas = sigmas_of(name)[1:]  # half of 4 steps, and the one that they begin at
    x = (1 - sigmas[0]) * latents + sigmas[0] * noise(name)
    assert close(pixels(result), decoded(model, name, oracle.sampled(x, sigmas)))


@torch.no_grad()
def test_fill_paints_under_a_mask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the pipeline of diffusers does where what the mask keeps is put back after each step, as it is for all
    models here."""
    write_parts(tmp_path, TINY["fill"])
    engine, found = engine_of(tmp_path), []

    class Noting(Hooks):
        def sampled(self, latents: Tensor) -> Tensor:
            found.append(latents.clone())
            return latents

    source, mask = SourceImage.of(source_image()), SourceImage.of(half_mask())
    start = FromImage(
        images=(source,),
        denoising_strength=1.0,
        mask=Mask(image=mask, blur_x=0, blur_y=0, fill=MaskedContent.ORIGINAL),
    )
    made(engine, tmp_path, Noting(), start=start)

    model, oracle, unit = model_of(engine), Oracle("fill"), noise("fill")
    kept = packed(model.encode(from_images([source_image()])))
    latent_mask = torch.zeros(1, 16, HEIGHT // 8, WIDTH // 8)
    latent_mask[..., WIDTH // 16 :] = 1
    painted = packed(latent_mask)

    def put_back(pipe: Any, step: int, time: Any, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        sigma = pipe.scheduler.sigmas[step + 1]
        there = (1 - sigma) * kept + sigma * packed(unit)
        return {"latents": tensors["latents"] * painted + there * (1 - painted)}

    monkeypatch.setattr(DiagonalGaussianDistribution, "sample", lambda self, generator=None: self.mode())
    shift = {"use_dynamic_shifting": True, "base_shift": 1.15, "max_shift": 1.15}
    pipe = flow_pipeline(FluxFillPipeline, oracle.transformer, model.vae, shift, ("text_encoder_2", "tokenizer_2"))
    theirs = pipe(
        **{"prompt_embeds": oracle.text, "pooled_prompt_embeds": oracle.pooled, "latents": packed(unit)},
        **{"image": source_image(), "mask_image": half_mask(), "width": WIDTH, "height": HEIGHT},
        num_inference_steps=STEPS,
        guidance_scale=3.5,
        callback_on_step_end=put_back,
        output_type="latent",
    ).images
    wanted = unpacked(theirs, HEIGHT // 8, WIDTH // 8)
    assert float((found[0] - wanted).abs().max() / wanted.std()) < 1e-4


def half_mask() -> Image.Image:
    mask = Image.new("L", (WIDTH, HEIGHT), 0)
    mask.paste(255, (WIDTH // 2, 0, WIDTH, HEIGHT))
    return mask


@pytest.mark.parametrize(
    ("name", "file", "places"),
    [
        ("dev", "flux1-Kontext-dev", ([1, 0, 0], [1, 4, 0], [1, 0, 6])),  # 6 x 4 tokens; 3 x 2 below; 2 x 5 beside
        ("klein", "klein", ([10, 0, 0, 0], [20, 0, 0, 0], [30, 0, 0, 0])),
    ],
)
@torch.no_grad()
def test_references_are_shown(name: str, file: str, places: tuple[list[int], ...], tmp_path: Path) -> None:
    """The image to start from, and others in shapes of their own; and to noise alone, in both passes."""
    write_parts(tmp_path, TINY[name], file)
    engine = engine_of(tmp_path)
    model, oracle = model_of(engine), Oracle(name)
    images = [source_image(), source_image().resize((48, 32)), source_image().resize((32, 80))]
    oracle.references = [
        (model.encode(from_images([image])), torch.tensor(place)) for image, place in zip(images, places, strict=True)
    ]
    first, *others = (SourceImage.of(image) for image in images)
    start = FromImage(images=(first,), references=tuple(others), denoising_strength=1.0)
    result = made(engine, tmp_path, start=start)
    latents = oracle.sampled(noise(name), sigmas_of(name))
    assert close(pixels(result), decoded(model, name, latents))
    hashes = [image.pixel_hash for image in (first, *others)]
    assert parse_infotext(result.images[0].infotext)["Reference images"] == ", ".join(hashes[1:])

    shown = FromNoise((first, *others))
    hires = HiresRequest(scale=1.0, upscaler="Latent (nearest)", steps=2, denoising_strength=0.5)
    enlarged = made(engine, tmp_path, start=shown, hires=hires)
    sigmas = sigmas_of(name, (0.5, 0.25))
    again = (1 - sigmas[0]) * latents + sigmas[0] * noise(name)
    assert close(pixels(enlarged), decoded(model, name, oracle.sampled(again, sigmas)))
    assert parse_infotext(enlarged.images[0].infotext)["Reference images"] == ", ".join(hashes)

    estimator = MemoryEstimator(engine, CONFIGS)
    starts: list[dict[str, Any]] = [{}, {"start": replace(start, references=())}, {"start": start}, {"start": shown}]
    plans = [estimator.plan(asked(**each), 1 << 40) for each in starts]
    needs = [next(each.needs_bytes for each in plan.stages if each.stage is Stage.SAMPLE) for plan in plans]
    assert needs[0] < needs[1] < needs[2] == needs[3]


def test_one_file_makes_the_same_image(case: tuple[str, Path, Engine], tmp_path: Path) -> None:
    name, root, engine = case
    write_in_one(tmp_path, TINY[name])
    assert np.array_equal(pixels(made(engine_of(tmp_path), tmp_path)), pixels(made(engine, root)))


@pytest.mark.parametrize("name", ["klein", "chroma"])
def test_text_encoders_of_other_families_are_left_alone(name: str, tmp_path: Path) -> None:
    """Also an image whose second pass ends within a patch of its autoencoder."""
    write_parts(tmp_path, TINY[name])
    for recipe, file in (("t5xxl_tiny", "t5xxl_fp16"), ("clip_l_tiny", "clip_l")):
        save_file(recipe_tensors(recipe), tmp_path / "text_encoder" / f"{file}.safetensors")
    hires = HiresRequest(scale=1.25, upscaler="Lanczos", steps=2, denoising_strength=0.6)
    result = made(engine_of(tmp_path), tmp_path, hires=hires)
    assert result.images[0].image.size in ((112, 80), (120, 80)) and pixels(result).std() > 1


def test_schnell_makes_the_recorded_image(tmp_path: Path) -> None:
    payload = json.loads((DIT / "flux1-schnell.json").read_text(encoding="utf-8"))["payload"]
    with Image.open(DIT / "flux1-schnell.png") as image:
        wanted = np.asarray(image.convert("RGB")).astype(np.int64)
    size = {"width": payload["width"], "height": payload["height"]}
    write_split(tmp_path / "split", "flux1-schnell")
    write_whole(tmp_path / "whole", "flux1-schnell")
    for root in (tmp_path / "split", tmp_path / "whole"):
        engine = engine_of(root)
        assert close(pixels(made(engine, root, **size)), wanted)
    tensors, model = recorded("flux1-schnell"), model_of(engine)
    found = model.decode(tensors["vae_latent_in"])
    assert float((found - tensors["vae_decoded"]).abs().max() / tensors["vae_decoded"].std()) < 1e-4


@pytest.mark.parametrize(
    "changes",
    [
        {"settings": {"fp8_storage": "Enable"}},
        {"settings": {"stream_weights": "Layers"}},
        {"settings": {"stream_weights": "Blocks", "fp8_storage": "Enable"}},
        {"width": 104, "height": 72, "batch_size": 2},
        {"sampler": "DPM++ 2M", "scheduler": "Beta"},
        {"prompt": "a red fox AND a snowy hill :0.5", "cfg_scale": 3.0},
    ],
    ids=str,
)
def test_features_make_images(case: tuple[str, Path, Engine], changes: dict[str, Any]) -> None:
    _, root, engine = case
    values = changes.get("settings")
    settings = {"settings": Settings().with_changes(values)} if values else {}
    result = made(engine, root, **{**changes, **settings})
    assert pixels(result).std() > 1
