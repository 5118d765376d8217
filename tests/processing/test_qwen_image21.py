"""Qwen-Image-2.1 from its files to an image, against diffusers' pipeline on the same random weights, and its files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage21,
    FlowMatchEulerDiscreteScheduler,
    QwenImage21Pipeline,
    QwenImage21Transformer2DModel,
)
from diffusers.loaders.single_file_utils import convert_qwen_image21_transformer_checkpoint_to_diffusers
from PIL import Image
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import InvalidValueError
from modules.models.autoencoders.source import open_vae
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import DenoiserContext, stacked_references
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.qwen_image21.denoiser import image_places
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.names.fused import unfused
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.models.text_encoders.vision import look
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.source_images import FromImage, FromNoise, SourceImage
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.schedules import build_sigmas
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.gguf_files import write_gguf
from tests.processing.test_krea2 import type_of, write
from tests.processing.test_qwen_image import SCHEDULER
from tests.processing.test_qwen_image_edit import IMAGE, picture
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("qwen_image21")
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
HIDDEN, CHANNELS = 64, 64


class Processor:
    """What the pipeline asks of a processor: of one text at a time, and its images."""

    def __init__(self) -> None:
        self.tokenizer = SimpleNamespace(encode=LlmTokenizer.standard().ids)

    def apply_chat_template(self, messages: list[dict[str, Any]], **_: Any) -> list[list[int]]:
        (message,) = messages
        return [LlmTokenizer.standard().ids(f"<|im_start|>system\n{message['content'][0]['text']}<|im_end|>\n")]

    def __call__(self, text: list[str], images: list[Any] | None = None, **_: Any) -> Any:
        rows, seen = [[each] for each in LlmTokenizer.standard().ids(text[0])], dict[str, Any]()
        if images:
            normed: dict[str, Any] = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "max_pixels": 4096 * 4096}
            seen = dict(Qwen2VLImageProcessorPil(patch_size=16, **normed)(images, return_tensors="pt"))
            counts = iter((seen["image_grid_thw"].prod(-1) // 4).tolist())
            rows = [row * next(counts) if row == [IMAGE] else row for row in rows]
        ids = torch.tensor([[token for row in rows for token in row]])
        seen |= {"mm_token_type_ids": (ids == IMAGE).int()} if images else {}
        found = SimpleNamespace(input_ids=ids, attention_mask=torch.ones_like(ids), **seen)
        found.to = lambda device: found
        return found


def modules() -> dict[str, Any]:
    torch.manual_seed(11)
    text = {
        "vocab_size": 151_936,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 5_000_000.0,
            "mrope_section": [6, 5, 5],
            "mrope_interleaved": True,
        },
    }
    vision = {
        "depth": 18,
        "hidden_size": 64,
        "intermediate_size": 16,
        "num_heads": 16,
        "out_hidden_size": HIDDEN,
        "deepstack_visual_indexes": [5, 11, 17],
        "num_position_embeddings": 16,
    }
    parts: dict[str, Any] = {
        "transformer": QwenImage21Transformer2DModel(num_layers=2, num_attention_heads=2, context_in_dim=HIDDEN),
        "text": Qwen3VLForConditionalGeneration(
            Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
        ),
        "vae": AutoencoderKLQwenImage21(base_dim=8, decoder_base_dim=12, num_res_blocks=1),
    }
    for part in parts.values():
        part.eval().requires_grad_(False)
        for key, parameter in part.named_parameters():
            scale = 1.0 if "embed_tokens" in key else 1.0 / max(parameter[0].numel(), 1) ** 0.5
            is_small = parameter.ndim == 1 or key.endswith("gamma")
            is_gain = is_small and key.endswith(("weight", "gamma")) and "text_norm" not in key
            size = 0.1 if is_small else scale
            parameter.copy_((torch.randn_like(parameter) * size + is_gain).bfloat16().float())
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules()


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qwen_image21")
    write_qwen_image21(root, parts)
    return root


def write_qwen_image21(root: Path, parts: dict[str, Any]) -> Path:
    """The files in the folders that users keep them in; returns the denoiser's."""
    write(root / "text_encoder" / "a_vision_model.safetensors", seeing(parts))
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    return write(root / "Stable-diffusion" / "qwen_image_2.1.safetensors", fused(parts["transformer"].state_dict()))


def seeing(parts: dict[str, Any]) -> dict[str, Tensor]:
    """The text encoder's tensors."""
    return {key: tensor for key, tensor in parts["text"].state_dict().items() if key != "lm_head.weight"}


def fused(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A denoiser's tensors as ComfyUI writes them."""
    found = {}
    for key, tensor in state.items():
        if ".img_mlp.gate_layer." in key:
            up = state[key.replace("gate_layer", "proj")]
            found[key.replace("gate_layer", "gate_up")] = torch.cat([tensor, up])
        elif ".img_mlp.proj." not in key:
            found[key] = tensor
    return found


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any]) -> QwenImage21Pipeline:
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    pipe = QwenImage21Pipeline(scheduler, parts["vae"], parts["text"], Processor(), parts["transformer"])
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def model(root: Path) -> LoadedModel:
    return engine_of(root).model(None, PrecisionOptions.of(Settings()))


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain, " * 150 + "far"])
def test_the_texts_are_those_of_the_pipeline(pipeline: QwenImage21Pipeline, root: Path, text: str) -> None:
    with torch.no_grad():
        wanted, _, _ = pipeline.encode_prompt([text])
    encoded = engine_of(root).conditioner(None).encode([text], [""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[0].shape and relative(found.crossattn, wanted[0]) < 1e-4


def test_the_velocity_is_that_of_diffusers_for_texts_of_unequal_length(
    parts: dict[str, Any], pipeline: QwenImage21Pipeline, model: LoadedModel
) -> None:
    x = torch.randn(3, CHANNELS, 6, 4, generator=torch.Generator().manual_seed(3))
    tokens = torch.randn(3, 9, HIDDEN, generator=torch.Generator().manual_seed(4))
    lengths, sigma = [9, 5, 9], torch.tensor([0.9, 0.4, 0.2])
    mask = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens, mask=mask))
    for row, length in enumerate(lengths):
        is_image = torch.arange(length + 6)[None] >= length
        packed = pipeline._pack_latents(x[row : row + 1], 1, CHANNELS, 6, 4)
        with torch.no_grad():
            wanted = parts["transformer"](
                packed, tokens[row : row + 1, :length], sigma[row : row + 1], [[(1, 6, 4)]], is_image, return_dict=False
            )[0]
        assert relative(found[row], wanted[0, -24:].T.reshape(CHANNELS, 6, 4)) < 1e-4


@pytest.mark.parametrize("count", [1, 3])
def test_the_text_encoder_sees_what_the_pipeline_shows_it(
    pipeline: QwenImage21Pipeline, root: Path, count: int
) -> None:
    """All but the states of the images, which the pipeline replaces by their latents."""
    images = [picture(size, seed) for seed, size in enumerate(((96, 64), (64, 128), (128, 96))[:count])]
    with torch.no_grad():
        wanted, _, is_image = pipeline.encode_prompt([PROMPT], images)
    encoded = engine_of(root).conditioner(None).encode([PROMPT], [""], 4, Settings(), (64, 64), images=[images])
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[~is_image].shape and relative(found.crossattn, wanted[~is_image]) < 1e-4
    places = is_image[0].nonzero().flatten()
    starts = [0, *((places.diff() > 1).nonzero().flatten() + 1).tolist()]
    assert image_places(count) == tuple(int(places[start]) - start for start in starts)


def test_images_are_seen_as_large_as_references_are() -> None:
    class Sizes:
        config = SimpleNamespace(patch_size=16, temporal_patch_size=2, deepstack_visual_indexes=())

        def __call__(self, patches: Tensor, grid_thw: Tensor) -> Any:
            return SimpleNamespace(pooler_output=patches[::4])

    sight = look(Sizes(), Image.new("RGB", (1024, 1024)), torch.device("cpu"), torch.float32)
    assert (sight.rows, sight.columns) == (32, 32)


def test_the_velocity_next_to_references_is_that_of_diffusers(parts: dict[str, Any], model: LoadedModel) -> None:
    generator = torch.Generator().manual_seed(6)
    x, *shown = (torch.randn(1, CHANNELS, *size, generator=generator) for size in ((6, 4), (4, 6), (2, 8)))
    first, second = image_places(2)
    tokens, sigma = torch.randn(1, second + 5, HIDDEN, generator=generator), torch.tensor([0.7])
    is_image, states = list[bool](), list[Tensor]()
    for start, end, count in ((0, first, 6), (first, second, 4), (second, second + 5, 6)):
        is_image += [False] * (end - start) + [True] * count
        states += [tokens[:, start:end], torch.zeros(1, count, HIDDEN)]
    rows = torch.cat([each.flatten(2).transpose(1, 2) for each in (*shown, x)], dim=1)
    shapes = [[(1, *each.shape[2:]) for each in (*shown, x)]]
    with torch.no_grad():
        given = rows, torch.cat(states[:-1], dim=1), sigma, shapes, torch.tensor([is_image])
        wanted = parts["transformer"](*given, return_dict=False)[0]
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens, image=stacked_references(shown)))
    assert relative(found[0], wanted[0, -24:].T.reshape(CHANNELS, 6, 4)) < 1e-4


@pytest.mark.parametrize("from_image", [False, True])
def test_the_edited_image_is_that_of_the_pipeline(pipeline: QwenImage21Pipeline, root: Path, from_image: bool) -> None:
    """A reference of txt2img, and the image of img2img at full strength, which is the first that is shown."""
    images = [picture((128, 128), seed) for seed in range(2 if from_image else 1)]
    noise = torch.randn(1, CHANNELS, 8, 8, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        PROMPT,
        images,
        negative_prompt=NEGATIVE,
        true_cfg_scale=3.0,
        num_inference_steps=3,
        height=128,
        width=128,
        latents=pipeline._pack_latents(noise, 1, CHANNELS, 8, 8),
        output_resolution=128,
        output_type="np",
    ).images[0]
    sources = tuple(SourceImage.of(image) for image in images)
    start: Any = FromNoise(sources)
    if from_image:
        start = FromImage(images=sources[:1], denoising_strength=1.0, references=sources[1:])
    options: dict[str, Any] = {"negative_prompt": NEGATIVE, "cfg_scale": 3.0, "steps": 3, "width": 128, "height": 128}
    result = made(engine_of(root), root, prompt=PROMPT, start=start, **options)
    difference = np.abs(pixels(result) - np.floor(wanted[..., :3] * 255))
    assert difference.max() <= 2 and difference.mean() < 0.02
    assert not result.notices


def test_without_a_vision_tower_it_makes_images_and_edits_none(parts: dict[str, Any], tmp_path: Path) -> None:
    path = write_qwen_image21(tmp_path, parts)
    whole = {f"model.diffusion_model.{key}": tensor for key, tensor in parts["transformer"].state_dict().items()}
    for key, tensor in seeing(parts).items():
        if ".visual." not in key:
            whole[f"text_encoders.qwen3vl_8b.transformer.{key}"] = tensor
    write(path, whole)
    (tmp_path / "text_encoder" / "a_vision_model.safetensors").unlink()
    source, engine = SourceImage.of(picture((64, 64))), engine_of(tmp_path)
    start = FromImage(images=(source,), denoising_strength=0.5)
    assert not made(engine, tmp_path, start=start, width=64, height=64).notices
    with pytest.raises(InvalidValueError, match=r"shown no reference images.*no vision tower \(looked for text_enc"):
        made(engine, tmp_path, start=FromNoise((source,)), width=64, height=64)


@pytest.mark.parametrize(("negative", "cfg_scale"), [("", 1.0), (NEGATIVE, 4.0)])
def test_the_image_is_that_of_the_pipeline(
    pipeline: QwenImage21Pipeline, root: Path, negative: str, cfg_scale: float
) -> None:
    noise = torch.randn(1, CHANNELS, 8, 12, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        PROMPT,
        negative_prompt=negative if cfg_scale > 1 else None,
        true_cfg_scale=cfg_scale,
        num_inference_steps=4,
        height=128,
        width=192,
        latents=pipeline._pack_latents(noise, 1, CHANNELS, 8, 12),
        output_type="np",
    ).images[0]
    given = {"prompt": PROMPT, "negative_prompt": negative, "cfg_scale": cfg_scale, "width": 192, "height": 128}
    result = made(engine_of(root), root, None, None, **given)
    difference = np.abs(pixels(result) - np.floor(wanted[..., :3] * 255))
    assert difference.max() <= 2 and difference.mean() < 0.02


def test_an_image_is_encoded_as_an_opaque_one(parts: dict[str, Any], model: LoadedModel) -> None:
    image = torch.rand(1, 3, 64, 96, generator=torch.Generator().manual_seed(5)) * 2 - 1
    vae = parts["vae"]
    with torch.no_grad():
        own = vae.encode(torch.cat([image, torch.ones(1, 1, 64, 96)], 1).unsqueeze(2)).latent_dist.mode()[:, :, 0]
    mean, std = (torch.tensor(item)[:, None, None] for item in (vae.config.latents_mean, vae.config.latents_std))
    assert relative(model.encode(image), (own - mean) / std) < 1e-4


@pytest.mark.parametrize(("side", "steps"), [(1024, 40), (512, 20)])
def test_noise_levels_are_those_of_the_scheduler(side: int, steps: int) -> None:
    from diffusers.pipelines.qwenimage21.pipeline_qwenimage21 import calculate_shift

    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    mu = calculate_shift((side // 16) ** 2, 256, 8192, 0.5, 0.9)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    trained = read_architecture(CONFIGS / FAMILY.config_name).noise_schedule
    levels = FAMILY.noise.levels(trained, Settings(), (side // 16, side // 16))
    found = build_sigmas(SAMPLERS.get("euler"), SCHEDULES.get("simple"), steps, levels)
    assert torch.allclose(found, scheduler.sigmas, atol=2e-4)


def test_turbo_has_noise_levels_of_its_own(parts: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "Stable-diffusion" / "Qwen-Image-2.1-Turbo.safetensors"
    write(path, parts["transformer"].state_dict())
    with open_checkpoint(path) as file:
        schedule = FAMILY.noise.told(read_architecture(CONFIGS / FAMILY.config_name), file).noise_schedule
    levels = FAMILY.noise.levels(schedule, Settings(), (64, 64))
    found = build_sigmas(SAMPLERS.get("euler"), SCHEDULES.get("simple"), 8, levels)
    table = [1.0, 0.978453, 0.95418, 0.926626, 0.89508, 0.845148, 0.704534, 0.414568, 0.0]
    assert found.tolist() == pytest.approx(table, abs=1e-3)
    usual = FAMILY.denoiser.usual_settings(None, path.stem)
    assert usual is not None and (usual.steps, usual.cfg_scale) == (8, 1.0)


def test_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root))
    for changes in ({"sampler": "DPM++ 2M SDE", "scheduler": "Beta"}, {"width": 200, "height": 136}):
        assert pixels(made(engine, root, **changes)).std() > 1
    int8 = {"fp8_storage": "Enable", "fp8_format": "int8_row", "compute_mode": "int8 matmul"}
    for stored in ({"fp8_storage": "Enable"}, {"stream_weights": "Layers"}, {**int8, "stream_weights": "Blocks"}):
        near = pixels(made(engine, root, Settings().with_changes(stored)))
        assert np.abs(near - plain).mean() < 16


def test_every_layout_makes_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    wanted = pixels(made(engine_of(root), root, prompt=PROMPT))
    folder = tmp_path / "folder" / "Stable-diffusion" / "qwen_image"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    write(folder / "text_encoder" / "model.safetensors", seeing(parts))
    (folder / "model_index.json").write_text('{"_class_name": "QwenImage21Pipeline"}')
    whole = {f"model.diffusion_model.{key}": tensor for key, tensor in parts["transformer"].state_dict().items()}
    whole |= {f"text_encoders.qwen3vl_8b.transformer.{key}": tensor for key, tensor in seeing(parts).items()}
    with open_vae(root / "VAE" / "vae.safetensors") as vae:
        whole |= {f"vae.{key.removeprefix('first_stage_model.')}": vae.read(key) for key in vae.entries}
    write(tmp_path / "whole" / "Stable-diffusion" / "qwen.safetensors", whole)
    path = write_qwen_image21(tmp_path / "gguf", parts)
    path.unlink()
    write_gguf(path.with_suffix(".gguf"), fused(parts["transformer"].state_dict()), "Q8_0", "qwen_image21")
    near = pixels(made(engine_of(tmp_path / "gguf"), tmp_path / "gguf", prompt=PROMPT))
    assert np.abs(near - wanted).mean() < 8
    for each in ("folder", "whole"):
        assert np.array_equal(pixels(made(engine_of(tmp_path / each), tmp_path / each, prompt=PROMPT)), wanted), each


def test_fused_names_are_those_that_diffusers_converts(parts: dict[str, Any]) -> None:
    state = parts["transformer"].state_dict()
    converted = convert_qwen_image21_transformer_checkpoint_to_diffusers(fused(state))
    assert converted.keys() == state.keys() and all(torch.equal(converted[key], state[key]) for key in state)


@pytest.fixture(scope="module", params=["qwen-image-2.1", "qwen-image-2.1.diffusers"])
def full(request: pytest.FixtureRequest) -> Any:
    """All tensors of the model in full size in one file."""
    denoiser = full_header(request.param, "model.diffusion_model.")
    text = full_header("te-qwen3-8b", "text_encoders.qwen3vl_8b.transformer.")
    header = {**denoiser, **text, **full_header("vae-qwen-image-2.1", "first_stage_model.")}
    return unfused(HeaderOnly(header), [FAMILY])


@pytest.fixture(scope="module")
def components(full: Any) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: Any, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    left = {key for key in full.entries if key not in used}
    assert all(key.endswith((".model.norm.weight", "lm_head.weight")) for key in left)
    assert sum(one.numel() for one in components[1].module.parameters()) == pytest.approx(7.1e9, rel=0.01)
    assert sum(one.numel() for one in components[2].module.parameters()) == pytest.approx(0.338e9, rel=0.01)


def test_names_of_loras_find_their_layers(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    block = "transformer_blocks.7"
    layers = [f"{block}.attn.{part}" for part in ("to_q", "to_k", "to_v", "to_out.0")]
    layers += [f"{block}.img_mlp.{part}" for part in ("gate_layer", "proj", "out")]
    for layer in (*layers, "img_in", "txt_in.in_layer", "modulation.1", "proj_out"):
        for name in (
            f"diffusion_model.{layer}.lora_A.weight",
            f"transformer.{layer}.lora_A.default.weight",
            f"lora_unet_{layer.replace('.', '_')}.lora_down.weight",
        ):
            target = table.find(split_key(name)[0])
            assert target is not None and target.path == layer, name


def test_a_vision_model_of_another_width_is_no_part_of_it(root: Path) -> None:
    assert type_of(root / "text_encoder" / "a_vision_model.safetensors") == "vision_llm"
