"""FLUX.3 klein from its files to an image, against diffusers' blocks on the same random weights, and its files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLFlux2, FlowMatchEulerDiscreteScheduler, Flux3Transformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_flux3_lora_to_diffusers
from diffusers.loaders.single_file_utils import convert_flux3_transformer_checkpoint_to_diffusers
from diffusers.modular_pipelines.flux3.encoders import Flux3TextEncoderStep
from diffusers.modular_pipelines.flux3.modular_blocks_flux3 import Flux3AutoBlocks
from diffusers.modular_pipelines.flux3.modular_blocks_flux3_distilled import Flux3DistilledAutoBlocks
from diffusers.quantizers.bfl.utils import dequantize_fp8r, quantize_fp8r
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.models.autoencoders.source import open_vae
from modules.models.detection.files import detected
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import END, DenoiserContext
from modules.models.families.family import GuidanceType
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.files.file_header import header_of
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.names.fused import unfused
from modules.models.names.row_map import Source
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.request.source_images import FromImage, SourceImage
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.gguf_files import write_gguf
from tests.processing.test_krea2 import entries, write
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("flux3_klein")
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
WIDTH, STATES = 32, 8


class Processor:
    """What the blocks ask of a processor."""

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"<|im_start|>user\n{messages[0]['content']}<|im_end|>\n<|im_start|>assistant\n"

    def tokenizer(self, text: str, max_length: int, padding: str = "", **_: Any) -> dict[str, Tensor]:
        ids = LlmTokenizer.standard().ids(text)[:max_length]
        more = max_length - len(ids) if padding else 0
        row = [*ids, *[LlmTokenizer.standard().pad_id] * more]
        return {"input_ids": torch.tensor([row]), "attention_mask": torch.tensor([[1] * len(ids) + [0] * more])}


def modules(flow_map: bool = True) -> dict[str, Any]:
    torch.manual_seed(11)
    text = {
        "vocab_size": 151_936,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 33,
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
        "depth": 1,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_heads": 1,
        "out_hidden_size": WIDTH,
        "deepstack_visual_indexes": [0],
        "num_position_embeddings": 16,
    }
    parts: dict[str, Any] = {
        "text": Qwen3VLForConditionalGeneration(
            Qwen3VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=True)
        ),
        "vae": AutoencoderKLFlux2(
            block_out_channels=(32, 32, 32, 32),
            layers_per_block=1,
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
        ),
        "transformer": Flux3Transformer2DModel(
            num_layers=2,
            num_single_layers=2,
            num_attention_heads=2,
            joint_attention_dim=STATES * WIDTH,
            flow_map=flow_map,
        ),
    }
    for part in parts.values():
        part.eval().requires_grad_(False)
        for key, parameter in part.named_parameters():
            scale = 1.0 if "embed_tokens" in key else 1.0 / max(parameter[0].numel(), 1) ** 0.5
            is_gain = parameter.ndim == 1 and key.endswith("weight")
            size = 0.1 if parameter.ndim == 1 else scale
            parameter.copy_((torch.randn_like(parameter) * size + is_gain).bfloat16().float())
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules()


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("flux3")
    write_flux3(root, parts)
    return root


def write_flux3(root: Path, parts: dict[str, Any]) -> Path:
    """The files in the folders that users keep them in; returns the denoiser's."""
    write(root / "text_encoder" / "a_vision_model.safetensors", seeing(parts))
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    return write(root / "Stable-diffusion" / "flux3_klein.safetensors", original(parts["transformer"].state_dict()))


def seeing(parts: dict[str, Any]) -> dict[str, Tensor]:
    """The text encoder's tensors."""
    return {key: tensor for key, tensor in parts["text"].state_dict().items() if key != "lm_head.weight"}


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A denoiser's tensors by their names in the original layout."""
    keymap, ours = FAMILY.folder.names["transformer"](entries(state))
    found = {}
    for key, value in state.items():
        source = Source.of(str(keymap.to_original(ours[key])))
        rows = source.rows or ()
        name = source.key.removeprefix("model.diffusion_model.")
        found[name] = torch.cat([value[begin:end] for begin, end in rows]) if len(rows) > 1 else value
    return found


def pipeline_of(parts: dict[str, Any], distilled: bool) -> Any:
    blocks = Flux3DistilledAutoBlocks() if distilled else Flux3AutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")  # which writes another prompt
    pipe = blocks.init_pipeline()
    pipe.update_components(
        transformer=parts["transformer"],
        vae=parts["vae"],
        text_encoder=parts["text"],
        scheduler=FlowMatchEulerDiscreteScheduler(shift=6.93),
    )
    pipe.tokenizer = Processor()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any]) -> Any:
    return pipeline_of(parts, distilled=True)


@pytest.fixture(scope="module")
def model(root: Path) -> LoadedModel:
    return engine_of(root).model(None, PrecisionOptions.of(Settings()))


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain, " * 30 + "far"])
def test_the_texts_are_those_of_the_pipeline(parts: dict[str, Any], root: Path, text: str) -> None:
    with torch.no_grad():
        wanted = Flux3TextEncoderStep._get_qwen3_vl_prompt_embeds(parts["text"], Processor(), text)[0]
    encoded = engine_of(root).conditioner(None).encode([text, PROMPT], ["", ""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted.shape and len(wanted) % 80 == 0
    assert relative(found.crossattn, wanted) < 1e-4


def places(height: int, width: int, number: int = 0) -> Tensor:
    return torch.cartesian_prod(
        torch.zeros(1), torch.arange(height) / 2, torch.arange(width) / 2, torch.tensor([float(number)])
    )


@pytest.mark.parametrize("shows", [False, True])
def test_the_velocity_is_that_of_diffusers(parts: dict[str, Any], model: LoadedModel, shows: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    x, tokens = torch.randn(2, 128, 5, 3, generator=generator), torch.randn(2, 160, 256, generator=generator)
    sigma, end = torch.tensor([0.9, 0.4]), torch.tensor([0.7, 0.0])
    reference = torch.randn(2, 128, 4, 6, generator=generator)
    mask = torch.arange(160)[None] < torch.tensor([[160], [80]])
    extra = {END: end, **({"reference": reference} if shows else {})}
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens, mask=mask, extra=extra))
    for row, length in enumerate((160, 80)):
        words = torch.zeros(length, 4)
        words[:, 3] = torch.arange(length)
        one = slice(row, row + 1)
        given = {
            "image_cond_hidden_states": reference[one].flatten(2).transpose(1, 2),
            "image_cond_ids": places(4, 6, -1),
        }
        with torch.no_grad():
            wanted = parts["transformer"](
                x[one].flatten(2).transpose(1, 2), tokens[one, :length], sigma[one], places(5, 3), words,
                target_timestep=end[one], return_dict=False, **(given if shows else {}),
            )[0]  # fmt: skip
        assert relative(found[row], wanted[0].T.reshape(128, 5, 3)) < 1e-4


def test_the_image_is_that_of_the_pipeline(pipeline: Any, root: Path) -> None:
    noise = torch.randn(1, 128, 9, 13, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        prompt=PROMPT, num_inference_steps=4, height=144, width=208, latents=noise, output="images", output_type="np"
    )[0]
    result = made(engine_of(root), root, prompt=PROMPT)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.05


@pytest.mark.parametrize("sampler", ["Euler", "DPM++ 2M SDE", "Heun"])
def test_each_call_is_told_where_its_step_ends(root: Path, sampler: str) -> None:
    engine, calls = engine_of(root), []
    unet = engine.model(None, PrecisionOptions.of(Settings())).unet

    def watch(module: Any, arguments: Any, given: dict[str, Any]) -> None:
        calls.append((float(given["timestep"][0]), float(given["target_timestep"][0])))

    handle = unet.register_forward_pre_hook(watch, with_kwargs=True)
    made(engine, root, prompt=PROMPT, sampler=sampler)
    handle.remove()
    times = sorted({time for time, _ in calls}, reverse=True)
    assert len(times) == 4 and times[0] > 0.99
    assert dict(calls) == pytest.approx(dict(zip(times, [*times[1:], 0.0], strict=True)), abs=1e-5)


def test_a_scale_and_a_negative_prompt_change_nothing_where_it_is_distilled(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root, prompt=PROMPT))
    assert np.array_equal(pixels(made(engine, root, prompt=PROMPT, negative_prompt=NEGATIVE, cfg_scale=5.0)), plain)


def test_a_base_model_is_guided(tmp_path: Path) -> None:
    parts = modules(flow_map=False)
    write_flux3(tmp_path, parts)
    noise = torch.randn(1, 128, 9, 13, generator=torch.Generator().manual_seed(1234))
    pipe = pipeline_of(parts, distilled=False)
    wanted = pipe(
        prompt=PROMPT, negative_prompt=NEGATIVE, num_inference_steps=4, height=144, width=208, latents=noise,
        output="images", output_type="np",
    )[0]  # fmt: skip
    engine = engine_of(tmp_path)
    unet = engine.model(None, PrecisionOptions.of(Settings())).unet
    usual = FAMILY.denoiser.usual_settings(unet, "flux3")
    assert usual is not None and (usual.steps, usual.cfg_scale) == (50, 3.5)
    assert FAMILY.denoiser.guidance(unet) is GuidanceType.CFG and not FAMILY.denoiser.reads_end(unet)
    result = made(engine, tmp_path, prompt=PROMPT, negative_prompt=NEGATIVE, cfg_scale=3.5)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 3 and difference.mean() < 0.05


def test_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root))
    start = FromImage(images=(SourceImage.of(Image.new("RGB", (208, 144), "teal")),), denoising_strength=1.0)
    shown = pixels(made(engine, root, start=start))
    assert not np.array_equal(shown, plain)
    for changes in ({"sampler": "DPM++ 2M SDE", "scheduler": "Beta"}, {"width": 200, "height": 136}):
        assert pixels(made(engine, root, **changes)).std() > 1
    int8 = {"fp8_storage": "Enable", "fp8_format": "int8_row", "compute_mode": "int8 matmul"}
    for stored in ({"fp8_storage": "Enable"}, {"stream_weights": "Layers"}, {**int8, "stream_weights": "Blocks"}):
        near = pixels(made(engine, root, Settings().with_changes(stored)))
        assert np.abs(near - plain).mean() < 16


def test_every_layout_makes_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    wanted = pixels(made(engine_of(root), root, prompt=PROMPT))
    folder = tmp_path / "folder" / "Stable-diffusion" / "flux3"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    write(folder / "text_encoder" / "model.safetensors", seeing(parts))
    (folder / "model_index.json").write_text('{"_class_name": "Flux3DistilledModularPipeline"}')
    state = {**original(parts["transformer"].state_dict()), "repa_projectors.0.weight": torch.ones(2, 2)}
    whole = {f"model.diffusion_model.{key}": tensor for key, tensor in state.items()}
    whole |= {f"text_encoders.qwen3vl_4b.transformer.{key}": tensor for key, tensor in seeing(parts).items()}
    with open_vae(root / "VAE" / "vae.safetensors") as vae:
        whole |= {f"vae.{key.removeprefix('first_stage_model.')}": vae.read(key) for key in vae.entries}
    write(tmp_path / "whole" / "Stable-diffusion" / "flux3.safetensors", whole)
    path = write_flux3(tmp_path / "gguf", parts)
    path.unlink()
    write_gguf(path.with_suffix(".gguf"), original(parts["transformer"].state_dict()), "Q8_0", "flux3")
    near = pixels(made(engine_of(tmp_path / "gguf"), tmp_path / "gguf", prompt=PROMPT))
    assert np.abs(near - wanted).mean() < 8
    for each in ("folder", "whole"):
        assert np.array_equal(pixels(made(engine_of(tmp_path / each), tmp_path / each, prompt=PROMPT)), wanted), each


def test_rows_in_fp8_are_read_as_they_are(parts: dict[str, Any], tmp_path: Path) -> None:
    """Weights are what diffusers makes of the codes, and an image is that of a file with those weights."""
    state = original(parts["transformer"].state_dict())
    coded: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for key, tensor in state.items():
        if "blocks." in key and tensor.ndim == 2:
            weight, scale = quantize_fp8r(tensor)
            coded |= {key: weight, key.replace(".weight", ".weight_scale"): scale}
            plain[key] = dequantize_fp8r(weight, scale)
        else:
            coded[key] = plain[key] = tensor
    images = []
    for name, tensors in (("fp8r", coded), ("plain", plain)):
        root = tmp_path / name
        path = write_flux3(root, parts)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
        engine = engine_of(root)
        images.append(pixels(made(engine, root, prompt=PROMPT)))
        if name == "fp8r":
            found = detected(header_of(path))
            assert found.line == "a denoiser of FLUX.3 klein, original names, fp8 e4m3fn, with scales"
            loaded = engine.model(None, PrecisionOptions.of(Settings()))
            layer = loaded.unet.single_transformer_blocks[0].attn.to_q
            assert any(one.dtype == torch.float8_e4m3fn for one in (*layer.parameters(), *layer.buffers()))
    assert np.abs(images[0] - images[1]).max() <= 2


def test_original_names_are_those_that_diffusers_converts(parts: dict[str, Any]) -> None:
    state = parts["transformer"].state_dict()
    converted = convert_flux3_transformer_checkpoint_to_diffusers(original(state))
    assert converted.keys() == state.keys() and all(torch.equal(converted[key], state[key]) for key in state)


@pytest.fixture(scope="module")
def full() -> Any:
    """All tensors of the model in full size in one file."""
    denoiser = full_header("flux3-klein", "model.diffusion_model.")
    text = full_header("te-qwen3-4b", "text_encoders.qwen3vl_4b.transformer.")
    return unfused(HeaderOnly({**denoiser, **text, **full_header("vae-flux2", "first_stage_model.")}), [FAMILY])


@pytest.fixture(scope="module")
def components(full: Any) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: Any, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    left = {key for key in full.entries if key not in used}
    assert all(any(f".layers.{number}." in key for number in (32, 33, 34, 35)) or ".norm." in key for key in left)
    assert sum(one.numel() for one in components[1].module.parameters()) == pytest.approx(5.55e9, rel=0.01)


def test_names_of_loras_find_the_layers_that_diffusers_means(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    blocks = ("content_mode_blocks.image.3", "content_mode_blocks.image_cond.1", "txt_mode_blocks.2", "single_blocks.7")
    for layer in [
        f"{block}.{part}" for block in blocks for part in ("q_proj", "v_proj", "attn_out", "mlp_in", "mlp_out")
    ]:
        (meant,) = _convert_non_diffusers_flux3_lora_to_diffusers(
            {f"diffusion_model.{layer}.lora_A.weight": torch.empty(0)}
        )
        kohya = f"lora_unet_{layer.replace('.', '_')}.lora_up.weight"
        for name in (f"diffusion_model.{layer}.lora_A.weight", f"base_model.model.{layer}.lora_A.weight", kohya, meant):
            target = table.find(split_key(name)[0])
            assert target is not None and f"transformer.{target.path}.lora_A.weight" == meant, name
