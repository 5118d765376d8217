"""Qwen-Image from its files to an image, against diffusers' pipeline on the same random weights, and its files."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_qwen_lora_to_diffusers
from torch import Tensor
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLModel

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import CheckpointError
from modules.models.autoencoders.source import open_vae
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.opening.parts import part_in
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.processing.engine.precision import PrecisionOptions
from modules.sampling.catalog import SAMPLERS, SCHEDULES
from modules.sampling.schedules import build_sigmas
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.gguf_files import write_gguf
from tests.processing.test_krea2 import Padding, type_of, write
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("qwen_image")
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
HIDDEN = 256
SCHEDULER = {
    "use_dynamic_shifting": True,
    "base_image_seq_len": 256,
    "max_image_seq_len": 8192,
    "base_shift": 0.5,
    "max_shift": 0.9,
    "shift_terminal": 0.02,
    "shift": 1.0,
}
"""What the model's repository says of it."""


class Texts(Padding):
    """What the pipeline asks of a tokenizer."""

    def __call__(self, texts: list[str], max_length: int = 0, **options: Any) -> Any:
        longest = max(len(LlmTokenizer.standard().ids(text)) for text in texts)
        return super().__call__(texts, max_length=min(longest, max_length), **options)


def modules() -> dict[str, Any]:
    torch.manual_seed(11)
    text = {
        "vocab_size": 151_936,
        "hidden_size": HIDDEN,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0, "mrope_section": [16, 24, 24]},
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": HIDDEN}
    parts: dict[str, Any] = {
        "transformer": QwenImageTransformer2DModel(num_layers=2, num_attention_heads=2, joint_attention_dim=HIDDEN),
        "text": Qwen2_5_VLModel(Qwen2_5_VLConfig(text_config=text, vision_config=vision)),
        "vae": AutoencoderKLQwenImage(base_dim=16, z_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1),
    }
    for part in parts.values():
        part.eval().requires_grad_(False)
        for key, parameter in part.named_parameters():
            scale = 1.0 if "embed_tokens" in key else 1.0 / max(parameter[0].numel(), 1) ** 0.5
            is_gain = parameter.ndim == 1 and key.endswith(("weight", "gamma"))
            size = 0.1 if parameter.ndim == 1 else scale
            parameter.copy_((torch.randn_like(parameter) * size + is_gain).bfloat16().float())
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules()


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("qwen_image")
    write_qwen_image(root, parts)
    return root


def write_qwen_image(root: Path, parts: dict[str, Any]) -> Path:
    """The files in the folders that users keep them in; returns the denoiser's."""
    write(root / "text_encoder" / "a_vision_model.safetensors", seeing(parts))
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    return write(root / "Stable-diffusion" / "qwen_image.safetensors", parts["transformer"].state_dict())


def seeing(parts: dict[str, Any]) -> dict[str, Tensor]:
    """The text encoder's tensors by the names that published files have."""
    state = parts["text"].state_dict()
    return {key.replace("language_model.", "model.", 1): tensor for key, tensor in state.items()}


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any]) -> QwenImagePipeline:
    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    pipe = QwenImagePipeline(scheduler, parts["vae"], parts["text"], None, parts["transformer"])
    pipe.tokenizer = Texts()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def model(root: Path) -> LoadedModel:
    return engine_of(root).model(None, PrecisionOptions.of(Settings()))


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain " * 300])
def test_the_texts_are_those_of_the_pipeline(pipeline: QwenImagePipeline, root: Path, text: str) -> None:
    with torch.no_grad():
        wanted, _ = pipeline.encode_prompt([text], max_sequence_length=512)
    encoded = engine_of(root).conditioner(None).encode([text], [""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[0].shape and relative(found.crossattn, wanted[0]) < 1e-4


def test_the_velocity_is_that_of_diffusers_for_texts_of_unequal_length(
    parts: dict[str, Any], pipeline: QwenImagePipeline, model: LoadedModel
) -> None:
    x = torch.randn(2, 16, 10, 6, generator=torch.Generator().manual_seed(3))
    tokens = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(4))
    mask = torch.arange(9)[None] < torch.tensor([[9], [5]])
    sigma = torch.tensor([0.9, 0.4])
    with torch.no_grad():
        wanted = parts["transformer"](
            pipeline._pack_latents(x, 2, 16, 10, 6),
            tokens,
            mask,
            sigma,
            [[(1, 5, 3)]] * 2,
            return_dict=False,
        )[0]
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens, mask=mask))
    assert relative(found, pipeline._unpack_latents(wanted, 80, 48, 8)[:, :, 0]) < 1e-4


@pytest.mark.parametrize(("negative", "cfg_scale"), [("", 1.0), (NEGATIVE, 4.0)])
def test_the_image_is_that_of_the_pipeline(
    pipeline: QwenImagePipeline, root: Path, negative: str, cfg_scale: float
) -> None:
    noise = torch.randn(1, 16, 18, 26, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        PROMPT,
        negative_prompt=negative,
        true_cfg_scale=cfg_scale,
        num_inference_steps=4,
        height=144,
        width=208,
        latents=pipeline._pack_latents(noise, 1, 16, 18, 26),
        output_type="np",
    ).images[0]
    result = made(engine_of(root), root, prompt=PROMPT, negative_prompt=negative, cfg_scale=cfg_scale)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.02


@pytest.mark.parametrize(("side", "steps"), [(1024, 50), (1328, 8), (512, 20)])
def test_noise_levels_are_those_of_the_scheduler(pipeline: QwenImagePipeline, side: int, steps: int) -> None:
    from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift

    scheduler = FlowMatchEulerDiscreteScheduler(**SCHEDULER)
    mu = calculate_shift((side // 16) ** 2, 256, 8192, 0.5, 0.9)
    scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=mu)
    trained = read_architecture(CONFIGS / FAMILY.config_name).noise_schedule
    levels = FAMILY.noise.levels(trained, Settings(), (side // 8, side // 8))
    found = build_sigmas(SAMPLERS.get("euler"), SCHEDULES.get("simple"), steps, levels)
    assert torch.allclose(found, scheduler.sigmas, atol=2e-4)


def test_models_for_few_steps_are_shifted_alike_at_any_size(parts: dict[str, Any], tmp_path: Path) -> None:
    path = write(tmp_path / "Stable-diffusion" / "Qwen-Image-Lightning.safetensors", parts["transformer"].state_dict())
    with open_checkpoint(path) as file:
        schedule = FAMILY.noise.told(read_architecture(CONFIGS / FAMILY.config_name), file).noise_schedule
    levels = FAMILY.noise.levels(schedule, Settings(), (64, 64))
    found = build_sigmas(SAMPLERS.get("euler"), SCHEDULES.get("simple"), 4, levels)
    assert found.tolist() == pytest.approx([1.0, 0.9, 0.75, 0.5, 0.0], abs=1e-3)
    usual = FAMILY.denoiser.usual_settings(None, path.stem)
    assert usual is not None and (usual.steps, usual.cfg_scale) == (8, 1.0)


def test_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root, cfg_scale=4.0))
    for changes in ({"sampler": "DPM++ 2M SDE", "scheduler": "Beta"}, {"width": 200, "height": 136}):
        assert pixels(made(engine, root, cfg_scale=4.0, **changes)).std() > 1
    for stored in ({"fp8_storage": "Enable"}, {"stream_weights": "Layers"}, {"stream_weights": "Blocks"}):
        near = pixels(made(engine, root, Settings().with_changes(stored), cfg_scale=4.0))
        assert np.abs(near - plain).mean() < 16


def test_every_layout_makes_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    wanted = pixels(made(engine_of(root), root, prompt=PROMPT))
    folder = tmp_path / "folder" / "Stable-diffusion" / "qwen_image"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    write(folder / "text_encoder" / "model.safetensors", seeing(parts))
    (folder / "model_index.json").write_text('{"_class_name": "QwenImagePipeline"}')
    whole = {f"model.diffusion_model.{key}": tensor for key, tensor in parts["transformer"].state_dict().items()}
    whole |= {f"text_encoders.qwen25_7b.transformer.{key}": tensor for key, tensor in seeing(parts).items()}
    with open_vae(root / "VAE" / "vae.safetensors") as vae:
        whole |= {f"vae.{key.removeprefix('first_stage_model.')}": vae.read(key) for key in vae.entries}
    whole["model.diffusion_model.__index_timestep_zero__"] = torch.zeros(1)
    write(tmp_path / "whole" / "Stable-diffusion" / "qwen.safetensors", whole)
    for each in ("folder", "whole"):
        found = pixels(made(engine_of(tmp_path / each), tmp_path / each, prompt=PROMPT))
        assert np.abs(found - wanted).max() <= (1 if each == "whole" else 0), each  # its mark doubles the times


@pytest.fixture(scope="module")
def full() -> HeaderOnly:
    """All tensors of the model in full size in one file."""
    denoiser = full_header("qwen-image", "model.diffusion_model.")
    text = full_header("te-qwen2.5-vl-7b", "text_encoders.qwen25_7b.transformer.")
    return HeaderOnly({**denoiser, **text, **full_header("vae-qwen-image", "first_stage_model.")})


@pytest.fixture(scope="module")
def components(full: HeaderOnly) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: HeaderOnly, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    assert all(".visual." in key or ".lm_head." in key for key in full.entries if key not in used)
    assert sum(one.numel() for one in components[1].module.parameters()) == pytest.approx(20.4e9, rel=0.01)
    with torch.device("meta"):
        assert components[1].module.state_dict().keys() == QwenImageTransformer2DModel().state_dict().keys()
    assert sum(one.numel() for one in components[0].module.parameters()) == pytest.approx(7.07e9, rel=0.01)


def test_names_of_loras_find_the_layers_that_diffusers_means(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    block = "transformer_blocks.7"
    joined = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    layers = [f"{block}.attn.{part}" for part in joined]
    layers += [f"{block}.{side}_{part}" for side in ("img", "txt") for part in ("mod.1", "mlp.net.0.proj", "mlp.net.2")]
    outer = ["img_in", "txt_in", "proj_out", "norm_out.linear", "time_text_embed.timestep_embedder.linear_1"]
    for layer in (*layers, *outer):
        names = {
            f"diffusion_model.{layer}.lora_A.weight": "lora_A",
            f"transformer.{layer}.lora_A.default.weight": "lora_A",
            f"lora_unet_{layer.replace('.', '_')}.lora_down.weight": "lora_down",
        }
        for name in names:
            target = table.find(split_key(name)[0])
            assert target is not None and target.path == layer, name
        rank = torch.zeros(2, 2)
        kohya = f"lora_unet_{layer.replace('.', '_')}"
        meant = _convert_non_diffusers_qwen_lora_to_diffusers(
            {f"{kohya}.lora_down.weight": rank, f"{kohya}.lora_up.weight": rank, f"{kohya}.alpha": torch.tensor(2.0)}
        )
        assert {key.partition(".lora_")[0].removeprefix("transformer.") for key in meant} == {layer}


def test_another_language_model_is_no_part_of_it(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    blind = {key: tensor for key, tensor in seeing(parts).items() if not key.startswith("visual.")}
    path = write(tmp_path / "qwen2.5_7b.safetensors", blind)
    assert [type_of(each) for each in (path, root / "text_encoder" / "a_vision_model.safetensors")] == [
        "",
        "vision_qwen2",
    ]
    with pytest.raises(CheckpointError, match=r"qwen2\.5_7b\.safetensors: is no VAE, and no text encoder that "):
        open_checkpoint(root / "Stable-diffusion" / "qwen_image.safetensors", modules=(path,))


def test_parts_in_gguf_files_make_nearly_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    short = {
        "embed_tokens": "token_embd",
        "norm": "output_norm",
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
    }
    text = {}
    for key, tensor in parts["text"].language_model.state_dict().items():
        stem, _, leaf = key.rpartition(".")
        layer, inner = stem.split(".", 2)[1:] if stem.startswith("layers.") else ("", stem)
        text[f"blk.{layer}.{short[inner]}.{leaf}" if layer else f"{short[inner]}.{leaf}"] = tensor
    (tmp_path / "Stable-diffusion").mkdir()
    (tmp_path / "text_encoder").mkdir()
    write_gguf(tmp_path / "text_encoder" / "Qwen2.5-VL-7B-Instruct-Q8_0.gguf", text, "Q8_0", "qwen2vl")
    held = part_in(tmp_path / "text_encoder" / "Qwen2.5-VL-7B-Instruct-Q8_0.gguf")
    assert held is not None and (held.type, held.width) == ("vision_qwen2", HIDDEN)
    denoiser = parts["transformer"].state_dict()
    write_gguf(tmp_path / "Stable-diffusion" / "qwen-image-Q8_0.gguf", denoiser, "Q8_0", "qwen_image")
    write(tmp_path / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    found = pixels(made(engine_of(tmp_path), tmp_path, prompt=PROMPT))
    assert np.abs(found - pixels(made(engine_of(root), root, prompt=PROMPT))).mean() < 8


def test_qwen_image_layered_is_refused_by_name(full: HeaderOnly) -> None:
    name = "model.diffusion_model.time_text_embed.addition_t_embedding.weight"
    header = {**full.entries, name: full.entries["model.diffusion_model.img_in.weight"]}
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    with pytest.raises(CheckpointError, match="it is Qwen-Image-Layered, which makes several layers"):
        FAMILY.components(header, architecture, ())


def test_guidance_leaves_each_token_as_long_as_the_prompts(root: Path) -> None:
    """At a CFG scale where plain guidance would be far longer, the image's contrast stays that of the prompt alone."""
    plain, strong = (pixels(made(engine_of(root), root, prompt=PROMPT, cfg_scale=scale)) for scale in (1.0, 30.0))
    assert not np.array_equal(plain, strong)
    assert math.isclose(plain.std(), strong.std(), rel_tol=0.25)
