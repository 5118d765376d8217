"""Krea 2 from its files to an image, against diffusers' pipeline on the same random weights, and its files."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLQwenImage, FlowMatchEulerDiscreteScheduler, Krea2Pipeline, Krea2Transformer2DModel
from diffusers.loaders.lora_conversion_utils import _convert_non_diffusers_krea2_lora_to_diffusers
from diffusers.loaders.single_file_utils import convert_krea2_transformer_checkpoint_to_diffusers
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3VLConfig, Qwen3VLModel

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import CheckpointError
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.files.tensor_file import TensorEntry
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.opening.checkpoint import open_checkpoint
from modules.models.opening.parts import part_in
from modules.models.text_encoders.tokenizers import LlmTokenizer
from modules.processing.engine.precision import PrecisionOptions
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.gguf_files import write_gguf
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("krea2")
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
WIDTH, HEAD, STATES = 32, 32, 12
BLOCKS = ("blocks.3", "txtfusion.layerwise_blocks.1", "txtfusion.refiner_blocks.0")


class Padding:
    """What the pipeline asks of a tokenizer."""

    def __call__(self, texts: list[str], max_length: int = 0, **_: Any) -> Any:
        rows = [LlmTokenizer.standard().ids(text)[: max_length or None] for text in texts]
        pad = LlmTokenizer.standard().pad_id
        ids = torch.tensor([[*row, *[pad] * (max_length - len(row))] for row in rows])
        mask = torch.tensor([[1] * len(row) + [0] * (max_length - len(row)) for row in rows])
        found = SimpleNamespace(input_ids=ids, attention_mask=mask)
        found.to = lambda device: found
        return found


def modules(**tower: Any) -> dict[str, Any]:
    """`tower`: other sizes of what the text encoder sees with."""
    torch.manual_seed(11)
    text = {
        "vocab_size": 151_936,
        "hidden_size": WIDTH,
        "intermediate_size": 48,
        "num_hidden_layers": 36,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
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
        **tower,
    }
    parts: dict[str, Any] = {
        "transformer": Krea2Transformer2DModel(
            num_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=96,
            timestep_embed_dim=32,
            text_hidden_dim=WIDTH,
            num_text_layers=STATES,
            text_num_attention_heads=2,
            text_num_key_value_heads=2,
            text_intermediate_size=48,
        ),
        "text": Qwen3VLModel(Qwen3VLConfig(text_config=text, vision_config=vision)),
        "vae": AutoencoderKLQwenImage(base_dim=16, z_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1),
    }
    for name, part in parts.items():
        part.eval().requires_grad_(False)
        for key, parameter in part.named_parameters():
            scale = 1.0 if "embed_tokens" in key else 1.0 / max(parameter[0].numel(), 1) ** 0.5
            is_gain = name != "transformer" and parameter.ndim == 1 and ("norm" in key or "gamma" in key)
            small = parameter.ndim == 1 or key.endswith("scale_shift_table")
            parameter.copy_((torch.randn_like(parameter) * (0.1 if small else scale) + is_gain).bfloat16().float())
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules()


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_krea2(tmp_path_factory.mktemp("krea2"), parts)


def write_krea2(root: Path, parts: dict[str, Any]) -> Path:
    """The files in the folders that users keep them in."""
    write(root / "Stable-diffusion" / "krea2_turbo.safetensors", original(parts["transformer"].state_dict()))
    write(root / "text_encoder" / "a_vision_model.safetensors", seeing(parts))
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    return root


def original(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A denoiser's tensors by their names in the original layout."""
    keymap, ours = FAMILY.folder.names["transformer"](entries(state))
    return {
        str(keymap.to_original(ours[key])).removeprefix("model.diffusion_model."): keymap.tensor_to_original(
            ours[key], value
        )
        for key, value in state.items()
    }


def seeing(parts: dict[str, Any], level: str = "model.") -> dict[str, Tensor]:
    return {f"{level}{key}": tensor for key, tensor in parts["text"].state_dict().items()}


def write(path: Path, tensors: dict[str, Tensor]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.bfloat16().contiguous() for key, tensor in tensors.items()}, path)
    return path


def entries(state: dict[str, Tensor], prefix: str = "") -> dict[str, TensorEntry]:
    return {prefix + key: TensorEntry(torch.bfloat16, tuple(tensor.shape), 0, 0) for key, tensor in state.items()}


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any]) -> Krea2Pipeline:
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    pipe = Krea2Pipeline(scheduler, parts["vae"], parts["text"], None, parts["transformer"], is_distilled=True)
    pipe.tokenizer = Padding()
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def model(root: Path) -> LoadedModel:
    return engine_of(root).model(None, PrecisionOptions.of(Settings()))


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain " * 300])
def test_the_texts_are_those_of_the_pipeline(pipeline: Krea2Pipeline, root: Path, text: str) -> None:
    with torch.no_grad():
        states, mask = pipeline.get_text_hidden_states(text)
    encoded = engine_of(root).conditioner(None).encode([text], [""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    wanted = states[0, mask[0]].flatten(1)
    assert found.crossattn.shape == wanted.shape and relative(found.crossattn, wanted) < 1e-4


def test_the_velocity_is_that_of_diffusers_for_texts_of_unequal_length(
    parts: dict[str, Any], pipeline: Krea2Pipeline, model: LoadedModel
) -> None:
    x = torch.randn(2, 16, 10, 6, generator=torch.Generator().manual_seed(3))
    tokens = torch.randn(2, 9, STATES, WIDTH, generator=torch.Generator().manual_seed(4))
    mask = torch.arange(9)[None] < torch.tensor([[9], [5]])
    sigma = torch.tensor([0.9, 0.4])
    with torch.no_grad():
        wanted = parts["transformer"](
            pipeline._pack_latents(x, 2, 16, 10, 6),
            tokens,
            sigma,
            pipeline.prepare_position_ids(9, 5, 3, torch.device("cpu")),
            encoder_attention_mask=mask,
            return_dict=False,
        )[0]
    found = model.predict(x, 1000 * sigma, DenoiserContext(tokens.flatten(2), mask=mask))
    assert relative(found, pipeline._unpack_latents(wanted, 80, 48)[:, :, 0]) < 1e-4


@pytest.mark.parametrize(("negative", "cfg_scale"), [("", 1.0), (NEGATIVE, 4.0)])
def test_the_image_is_that_of_the_pipeline(
    pipeline: Krea2Pipeline, root: Path, negative: str, cfg_scale: float
) -> None:
    noise = torch.randn(1, 16, 18, 26, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        PROMPT,
        negative_prompt=negative,
        guidance_scale=cfg_scale - 1,
        num_inference_steps=4,
        height=144,
        width=208,
        latents=pipeline._pack_latents(noise, 1, 16, 18, 26),
        output_type="np",
    ).images[0]
    result = made(engine_of(root), root, prompt=PROMPT, negative_prompt=negative, cfg_scale=cfg_scale)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.02


def test_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root))
    for changes in ({"sampler": "DPM++ 2M SDE", "scheduler": "Beta"}, {"width": 200, "height": 136}):
        assert pixels(made(engine, root, **changes)).std() > 1
    for stored in ({"fp8_storage": "Enable"}, {"stream_weights": "Layers"}, {"stream_weights": "Blocks"}):
        near = pixels(made(engine, root, Settings().with_changes(stored)))
        assert np.abs(near - plain).mean() < 16


def test_a_folder_of_diffusers_makes_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "Stable-diffusion" / "krea2"
    for name, part in (("transformer", "transformer"), ("vae", "vae")):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[part].state_dict())
    write(folder / "text_encoder" / "model.safetensors", seeing(parts, ""))
    (folder / "model_index.json").write_text('{"_class_name": "Krea2Pipeline"}')
    same = pixels(made(engine_of(tmp_path), tmp_path, prompt=PROMPT))
    assert np.array_equal(same, pixels(made(engine_of(root), root, prompt=PROMPT)))


def test_original_names_are_those_that_diffusers_converts(parts: dict[str, Any], root: Path) -> None:
    file = load_file(root / "Stable-diffusion" / "krea2_turbo.safetensors")
    assert file["blocks.1.mod.lin"].shape == (6 * 256,)
    converted = convert_krea2_transformer_checkpoint_to_diffusers(file)
    state = parts["transformer"].state_dict()
    assert converted.keys() == state.keys()
    assert all(torch.equal(converted[key].float(), state[key]) for key in state)


@pytest.fixture(scope="module")
def full() -> HeaderOnly:
    """All tensors of the model in full size in one file."""
    with torch.device("meta"):
        state = original(Krea2Transformer2DModel().state_dict())
    text = full_header("te-qwen3-4b", "text_encoders.qwen3vl_4b.transformer.")
    vae = full_header("vae-qwen-image", "first_stage_model.")
    return HeaderOnly({**entries(state, "model.diffusion_model."), **text, **vae})


@pytest.fixture(scope="module")
def components(full: HeaderOnly) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: HeaderOnly, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    left = {key for key in full.entries if key not in used}
    assert all(".layers.35." in key or key.endswith(".model.norm.weight") for key in left) and len(left) == 12
    assert sum(one.numel() for one in components[1].module.parameters()) == pytest.approx(12.8e9, rel=0.01)


def test_names_of_loras_find_the_layers_that_diffusers_means(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    attention = [f"{block}.attn.{part}" for block in BLOCKS for part in ("wq", "wk", "wv", "wo", "gate")]
    inner = [f"{block}.mlp.{part}" for block in BLOCKS for part in ("gate", "up", "down")]
    layers = [*attention, *inner, "first", "tmlp.0", "tproj.1", "txtmlp.3", "txtfusion.projector", "last.linear"]
    for start in ("diffusion_model.", "base_model.model."):
        for layer in layers:
            (meant,) = _convert_non_diffusers_krea2_lora_to_diffusers({f"{start}{layer}.lora_A.weight": torch.empty(0)})
            for name in (f"{start}{layer}.lora_A.weight", meant, f"lora_unet_{layer.replace('.', '_')}.lora_up.weight"):
                target = table.find(split_key(name)[0])
                assert target is not None and f"transformer.{target.path}.lora_A.weight" == meant


def type_of(path: Path) -> str:
    held = part_in(path)
    return "" if held is None else held.type


def test_a_language_model_that_does_not_see_is_no_part_of_it(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    blind = {f"model.{key.removeprefix('language_model.')}": t for key, t in parts["text"].state_dict().items()}
    blind = {key: tensor for key, tensor in blind.items() if ".visual." not in key}
    path = write(tmp_path / "qwen3_4b.safetensors", blind)
    seeing_path = root / "text_encoder" / "a_vision_model.safetensors"
    assert [type_of(each) for each in (path, seeing_path)] == ["llm", "vision_llm"]
    with pytest.raises(CheckpointError, match=r"qwen3_4b\.safetensors: is no VAE, and no text encoder that "):
        open_checkpoint(root / "Stable-diffusion" / "krea2_turbo.safetensors", modules=(path,))


def test_a_gguf_file_says_that_its_language_model_sees(parts: dict[str, Any], tmp_path: Path) -> None:
    short = {"embed_tokens.weight": "token_embd.weight", "layers.0.self_attn.q_norm.weight": "blk.0.attn_q_norm.weight"}
    state = parts["text"].language_model.state_dict()
    for architecture, held in (("qwen3vl", "vision_llm"), ("qwen3", "llm")):
        path = tmp_path / f"{architecture}.gguf"
        write_gguf(path, {theirs: state[ours] for ours, theirs in short.items()}, "F16", architecture)
        assert type_of(path) == held
