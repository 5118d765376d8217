"""Qwen-Image-Edit from its files to an image, against diffusers' pipelines on the same random weights: the text encoder
sees what is edited."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageTransformer2DModel,
)
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit import calculate_dimensions as first_dimensions
from diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus import CONDITION_IMAGE_SIZE, calculate_dimensions
from PIL import Image
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.memory.layer import stored_state
from modules.models.families.denoiser_context import DenoiserContext, stacked_references
from modules.models.families.registry import FAMILIES
from modules.models.loading import encoder_parts
from modules.models.loading.encoder_parts import Tower, encoder_part
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import for_describing, for_editing, look
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.memory_estimate.estimate import MemoryEstimator, StageNeed
from modules.processing.request.request import GenerationRequest
from modules.processing.request.source_images import FromImage, FromNoise, SourceImage
from modules.processing.request.stages import Stage
from modules.settings.values import Settings
from tests.processing import test_qwen_image as base
from tests.processing.test_krea2 import write
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

PROMPT = "put a hat on the fox, keep the rest"
FAMILY = FAMILIES.get("qwen_image")
IMAGE = 151_655
MARK = "__index_timestep_zero__"
SIZES = ((300, 200), (64, 640), (33, 47))


def randomised(module: Any) -> Any:
    module.eval().requires_grad_(False)
    for key, parameter in module.named_parameters():
        scale = 1.0 if "embed_tokens" in key else 1.0 / max(parameter[0].numel(), 1) ** 0.5
        is_gain = parameter.ndim == 1 and key.endswith(("weight", "gamma"))
        size = 0.1 if parameter.ndim == 1 else scale
        parameter.copy_((torch.randn_like(parameter) * size + is_gain).bfloat16().float())
    return module


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    """The tiny model with a tower whose ninth block is one of those that attend to windows again."""
    parts = base.modules()
    torch.manual_seed(12)
    text = parts["text"].config.text_config.to_dict()
    vision: dict[str, Any] = {
        "depth": 9,
        "hidden_size": 160,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": base.HIDDEN,
    }
    vision["fullatt_block_indexes"] = [7]
    seeing = randomised(Qwen2_5_VLModel(Qwen2_5_VLConfig(text_config=text, vision_config=vision)))
    seeing.register_forward_pre_hook(told, with_kwargs=True)
    seeing.language_model.load_state_dict(parts["text"].language_model.state_dict())
    edits = QwenImageTransformer2DModel(
        num_layers=2, num_attention_heads=2, joint_attention_dim=base.HIDDEN, zero_cond_t=True
    )
    edits.load_state_dict(parts["transformer"].state_dict())
    return {**parts, "text": seeing, "edits": edits.eval().requires_grad_(False)}


def written(root: Path, parts: dict[str, Any], name: str = "Qwen-Image-Edit-2509", *, marked: bool = False) -> Path:
    base.write_qwen_image(root, parts)
    path = root / "Stable-diffusion" / "qwen_image.safetensors"
    path.unlink()
    mark = {MARK: torch.zeros(0)} if marked else {}
    return write(path.with_name(f"{name}.safetensors"), {**parts["transformer"].state_dict(), **mark})


def told(module: Any, args: Any, inputs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The pipelines were written for text encoders that found the tokens of images themselves; since transformers 5
    they have to be told, or give them the places of a text."""
    return args, {**inputs, "mm_token_type_ids": (inputs["input_ids"] == IMAGE).int()}


def processed(text: list[str], images: Any, **_: Any) -> Any:
    """What the pipelines ask of a processor, for one text: its ids with as many image tokens as the images need."""
    found = Qwen2VLImageProcessorPil()(images, return_tensors="pt")
    counts = iter((found["image_grid_thw"].prod(-1) // 4).tolist())
    ids = [[token] * (next(counts) if token == IMAGE else 1) for token in LlmTokenizer.standard().ids(text[0])]
    found["input_ids"] = torch.tensor([[token for each in ids for token in each]])
    found["attention_mask"] = torch.ones_like(found["input_ids"])
    return found


def pipeline_of(parts: dict[str, Any], kind: Any, transformer: str = "transformer") -> Any:
    scheduler = FlowMatchEulerDiscreteScheduler(**base.SCHEDULER)
    pipe = kind(scheduler, parts["vae"], parts["text"], None, None, parts[transformer])
    pipe.processor = processed
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(size: tuple[int, int], seed: int = 0) -> Image.Image:
    small = np.random.default_rng(seed).integers(0, 256, (5, 4, 3), dtype=np.uint8)
    return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qwen_edit")
    written(root, parts)
    return root


@pytest.mark.parametrize("count", [1, 3])
def test_the_text_encoder_sees_what_the_pipeline_shows_it(parts: dict[str, Any], root: Path, count: int) -> None:
    images = [picture(size, seed) for seed, size in enumerate(SIZES[:count])]
    pipe = pipeline_of(parts, QwenImageEditPlusPipeline)
    sizes = [calculate_dimensions(CONDITION_IMAGE_SIZE, image.width / image.height) for image in images]
    shown = [pipe.image_processor.resize(image, high, wide) for image, (wide, high) in zip(images, sizes, strict=True)]
    with torch.no_grad():
        wanted, _ = pipe.encode_prompt(PROMPT, shown)
    encoded = engine_of(root).conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=[images])
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[0].shape and relative(found.crossattn, wanted[0]) < 1e-4


def test_the_first_edition_sees_a_larger_image_without_a_number(parts: dict[str, Any], tmp_path: Path) -> None:
    written(tmp_path, parts, "qwen_image_edit_bf16")
    image = picture((160, 96))
    pipe = pipeline_of(parts, QwenImageEditPipeline)
    wide, high, _ = first_dimensions(1024 * 1024, image.width / image.height)
    with torch.no_grad():
        wanted, _ = pipe.encode_prompt(PROMPT, pipe.image_processor.resize(image, high, wide))
    encoded = engine_of(tmp_path).conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=[[image]])
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[0].shape and relative(found.crossattn, wanted[0]) < 1e-4


@pytest.mark.parametrize("marked", [False, True])
def test_the_velocity_next_to_references_is_that_of_diffusers(
    parts: dict[str, Any], tmp_path: Path, marked: bool
) -> None:
    """Also of those that are at time 0, in a file and in a folder that say so."""
    written(tmp_path, parts, marked=marked)
    generator = torch.Generator().manual_seed(3)
    x, *shown = (torch.randn(1, 16, *size, generator=generator) for size in ((10, 6), (8, 12), (6, 6)))
    tokens, sigma = torch.randn(1, 9, base.HIDDEN, generator=generator), torch.tensor([0.7])
    pack = QwenImageEditPlusPipeline._pack_latents
    rows = torch.cat([pack(each, 1, 16, *each.shape[2:]) for each in (x, *shown)], dim=1)
    shapes = [[(1, 5, 3), (1, 4, 6), (1, 3, 3)]]
    with torch.no_grad():
        denoiser = parts["edits" if marked else "transformer"]
        wanted = denoiser(rows, tokens, None, sigma, shapes, return_dict=False)[0][:, :15]
    model = engine_of(tmp_path).model(None)
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens, image=stacked_references(shown)))
    assert relative(found, QwenImageEditPlusPipeline._unpack_latents(wanted, 80, 48, 8)[:, :, 0]) < 1e-4


def test_a_folder_says_that_references_are_at_time_0(parts: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "Stable-diffusion" / "Edit"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    write(folder / "text_encoder" / "model.safetensors", base.seeing(parts))
    (folder / "model_index.json").write_text('{"_class_name": "QwenImageEditPlusPipeline"}')
    (folder / "transformer" / "config.json").write_text('{"zero_cond_t": true}')
    model = engine_of(tmp_path).model(None)
    assert model.unet.config.zero_cond_t and model.takes_references


@pytest.mark.parametrize("from_image", [False, True])
def test_the_edited_image_is_that_of_the_pipeline(
    parts: dict[str, Any], root: Path, from_image: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reference of txt2img, and the image of img2img at full strength, which is the first that is shown."""
    monkeypatch.setattr("diffusers.pipelines.qwenimage.pipeline_qwenimage_edit_plus.VAE_IMAGE_SIZE", 128 * 128)
    images = [picture((128, 128), seed) for seed in range(2 if from_image else 1)]
    noise = torch.randn(1, 16, 16, 16, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline_of(parts, QwenImageEditPlusPipeline)(
        images,
        PROMPT,
        negative_prompt="blurry",
        true_cfg_scale=3.0,
        num_inference_steps=3,
        height=128,
        width=128,
        latents=QwenImageEditPlusPipeline._pack_latents(noise, 1, 16, 16, 16),
        output_type="np",
    ).images[0]
    sources = tuple(SourceImage.of(image) for image in images)
    start: Any = FromNoise(sources)
    if from_image:
        start = FromImage(images=sources[:1], denoising_strength=1.0, references=sources[1:])
    options: dict[str, Any] = {"prompt": PROMPT, "negative_prompt": "blurry", "cfg_scale": 3.0, "steps": 3}
    result = made(engine_of(root), root, start=start, width=128, height=128, **options)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.02
    assert not result.notices


def test_each_image_of_a_batch_is_seen_with_its_own_text(root: Path) -> None:
    engine, images = engine_of(root), [picture((96, 96), seed) for seed in range(2)]
    sources = tuple(SourceImage.of(image) for image in images)
    encode = engine.conditioner(None).encode
    both = encode([PROMPT] * 2, [""] * 2, 4, Settings(), (64, 64), images=[[image] for image in images])
    for number, image in enumerate(images):
        alone = encode([PROMPT], [""], 4, Settings(), (64, 64), images=[[image]])
        ((found, _),), ((wanted, _),) = both.prompts[number].at(0), alone.prompts[0].at(0)
        assert torch.equal(found.crossattn, wanted.crossattn)
        assert torch.equal(both.negatives[number].at(0).crossattn, alone.negatives[0].at(0).crossattn)
    start = FromImage(images=sources, denoising_strength=1.0)
    result = made(engine, root, start=start, batch_size=2, width=96, height=96, steps=1, cfg_scale=2.0)
    assert len(result.images) >= 2


def test_an_image_is_looked_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    monkeypatch.setattr(encoder_parts, "look", lambda *given: looked.append(given[1]) or look(*given))
    conditioner = engine_of(root).conditioner(None)
    for prompt, seeds in (("a", (0,)), ("b", (0,)), ("c", (0, 1)), ("a", (1, 0))):
        conditioner.encode([prompt], [prompt], 4, Settings(), (64, 64), images=[[picture((90, 60), n) for n in seeds]])
    assert len(looked) == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"fp8_storage": "Enable"},
        {"fp8_storage": "Enable", "fp8_format": "int8_row", "stream_weights": "Layers"},
        {"stream_weights": "Blocks"},
    ],
)
def test_the_tower_is_stored_and_streamed_as_the_text_encoder_is(root: Path, changes: dict[str, Any]) -> None:
    images = [[picture((90, 60))]]
    (plain,) = engine_of(root).conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=images).prompts
    settings = Settings().with_changes(changes)
    engine = engine_of(root)
    conditioner = engine.conditioner(None, PrecisionOptions.of(settings))
    (found,) = conditioner.encode([PROMPT], [""], 4, settings, (64, 64), images=images).prompts
    ((few, _),), ((full, _),) = found.at(0), plain.at(0)
    assert relative(few.crossattn, full.crossattn) < (1.0 if "fp8_storage" in changes else 1e-4)
    model, build = engine.model(None, PrecisionOptions.of(settings)), FAMILY.texts.tower
    assert build is not None
    with encoder_part(model, build) as tower:
        assert tower.offloaded_bytes > 0 or "stream_weights" not in changes
        layer = stored_state(tower.module.blocks[0].attn.qkv)
        text = stored_state(model.text_encoder.layers[0].mlp.up_proj)
        assert layer is not None and text is not None and layer.formats == text.formats


def test_the_estimate_of_the_text_stage_includes_the_tower(parts: dict[str, Any], root: Path) -> None:
    """Whole where weights are resident, layer by layer where they are streamed, from main memory; not if nothing is
    shown."""
    estimator = MemoryEstimator(engine_of(root), CONFIGS).with_gpu()
    tower_bytes = 2 * sum(each.numel() for each in parts["text"].visual.parameters())

    def text(count: int, **changes: Any) -> StageNeed:
        start = FromNoise(tuple(SourceImage.of(picture((64, 64), seed)) for seed in range(count)))
        settings = Settings().with_changes(changes)
        request = GenerationRequest(prompt=PROMPT, seed=1, steps=1, width=64, height=64, settings=settings, start=start)
        return next(need for need in estimator.plan(request, 8 << 30).stages if need.stage is Stage.ENCODE_TEXT)

    plain, seeing = text(0), text(1)
    assert tower_bytes <= seeing.held_bytes - plain.held_bytes <= 1.01 * tower_bytes
    assert seeing.needs_bytes - seeing.held_bytes > plain.needs_bytes - plain.held_bytes
    streamed, seeing = text(0, stream_weights="Layers"), text(2, stream_weights="Layers")
    assert streamed.needs_bytes < seeing.needs_bytes and seeing.held_bytes - streamed.held_bytes < tower_bytes / 3
    assert seeing.main_bytes - streamed.main_bytes > 0.6 * tower_bytes  # small layers stay on the device


def test_an_encoder_without_a_tower_reads_the_text_alone_and_says_so(parts: dict[str, Any], tmp_path: Path) -> None:
    path = written(tmp_path, parts)
    whole = {key: tensor for key, tensor in base.seeing(parts).items() if not key.startswith("visual.")}
    whole = {f"text_encoders.qwen25_7b.transformer.{key}": tensor for key, tensor in whole.items()}
    whole |= {f"model.diffusion_model.{key}": tensor for key, tensor in parts["transformer"].state_dict().items()}
    (tmp_path / "text_encoder" / "a_vision_model.safetensors").unlink()
    write(path, whole)
    start = FromNoise((SourceImage.of(picture((64, 64))),))
    result = made(engine_of(tmp_path), tmp_path, start=start, prompt=PROMPT, steps=1, width=64, height=64)
    (notice,) = result.notices
    assert "no vision tower (looked for text_encoders.qwen25_7b.transformer.visual.*)" in notice
    assert "GGUF files have none" in notice
    alone = made(engine_of(tmp_path), tmp_path, prompt=PROMPT, steps=1, width=64, height=64)
    assert any("edits images, and none is given" in each for each in alone.notices)
    assert not np.array_equal(pixels(result), pixels(alone))  # the denoiser sees the image all the same


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (3, 20_000)])
def test_images_of_any_size_are_seen_with_as_many_tokens(root: Path, size: tuple[int, int]) -> None:
    image = for_editing(Image.new("RGB", size, "teal"))
    assert image.width * image.height <= 384 * 384 * 1.1 and min(image.size) >= 32
    described = for_describing(Image.new("RGB", size, "teal"))
    (sight,) = Tower(engine_of(root).model(None)).see([described])
    assert sight.tokens.shape == (sight.rows * sight.columns, base.HIDDEN) and 4 <= len(sight.tokens) <= 1400
