"""ERNIE-Image from its files to an image, against diffusers' pipeline on the same random weights, and its files."""

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import (
    AutoencoderKLFlux2,
    ErnieImagePipeline,
    ErnieImageTransformer2DModel,
    FlowMatchEulerDiscreteScheduler,
)
from safetensors.torch import save_file
from torch import Tensor
from transformers import Ministral3Config, Ministral3Model

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import CheckpointError
from modules.models.autoencoders.source import open_vae
from modules.models.detection.parts import TEKKEN_TOKENS
from modules.models.families.architecture import read_architecture
from modules.models.families.denoiser_context import DenoiserContext
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, detect_family
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.text_encoders.tekken import tekken_tokenizer
from modules.processing.engine.precision import PrecisionOptions
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.gguf_files import write_gguf
from tests.processing.test_krea2 import type_of, write
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("ernie_image")
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
HIDDEN, FIRST = 64, 1000
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"
PAIRS = (b" r", b"re", b" re", b"ed", b" red", b"fo", b" fo", b" fox", b"\xc3\xa9")


def tekken(tokens: int = TEKKEN_TOKENS) -> bytes:
    """A `tekken.json` of few tokens."""
    words = (*(bytes([byte]) for byte in range(256)), *PAIRS)
    vocabulary = [{"rank": n, "token_bytes": base64.b64encode(word).decode()} for n, word in enumerate(words)]
    config = {"pattern": PATTERN, "default_vocab_size": tokens, "default_num_special_tokens": FIRST}
    return json.dumps({"config": config, "vocab": vocabulary}).encode()


class Tokenizer:
    """What the pipeline asks of a tokenizer."""

    bos_token_id = 1

    def __init__(self, folder: Path) -> None:
        (folder / "tekken.json").write_bytes(tekken())
        self._tokenizer = tekken_tokenizer((folder / "model.safetensors",))

    def __call__(self, text: str, **_: Any) -> dict[str, list[int]]:
        return {"input_ids": self._tokenizer.ids(text)[:2048]}


def modules() -> dict[str, Any]:
    torch.manual_seed(11)
    parts: dict[str, Any] = {
        "transformer": ErnieImageTransformer2DModel(
            hidden_size=256, num_attention_heads=2, num_layers=2, ffn_hidden_size=96, text_in_dim=HIDDEN,
        ),
        "text": Ministral3Model(
            Ministral3Config(
                hidden_size=HIDDEN, intermediate_size=96, num_hidden_layers=3, num_attention_heads=2,
                num_key_value_heads=1,
            )
        ),
    }  # fmt: skip
    return with_vae(parts)


def with_vae(parts: dict[str, Any]) -> dict[str, Any]:
    """The parts and FLUX.2's VAE, with random weights that bf16 holds."""
    parts["vae"] = AutoencoderKLFlux2(
        latent_channels=32,
        block_out_channels=(32, 32, 32, 32),
        layers_per_block=1,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
    )
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
    root = tmp_path_factory.mktemp("ernie_image")
    write_ernie_image(root, parts)
    return root


def write_ernie_image(root: Path, parts: dict[str, Any]) -> Path:
    """The files in the folders that users keep them in; returns the denoiser's."""
    path = root / "text_encoder" / "a_language_model.safetensors"
    path.parent.mkdir(parents=True)
    save_file(text_tensors(parts), path)
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    return write(root / "Stable-diffusion" / "ernie_image.safetensors", parts["transformer"].state_dict())


def text_tensors(parts: dict[str, Any], level: str = "model.") -> dict[str, Tensor]:
    """The text encoder's tensors by the names that published files have, with its tokenizer."""
    state = {f"{level}{key}": tensor.bfloat16() for key, tensor in parts["text"].state_dict().items()}
    return {**state, "tekken_model": torch.frombuffer(bytearray(tekken()), dtype=torch.uint8)}


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> ErnieImagePipeline:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    pipe = ErnieImagePipeline(parts["transformer"], parts["vae"], parts["text"], None, scheduler)
    pipe.tokenizer = Tokenizer(tmp_path_factory.mktemp("tokenizer"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.fixture(scope="module")
def model(root: Path) -> LoadedModel:
    return engine_of(root).model(None, PrecisionOptions.of(Settings()))


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain " * 300])
def test_the_texts_are_those_of_the_pipeline(pipeline: ErnieImagePipeline, root: Path, text: str) -> None:
    (wanted,) = pipeline.encode_prompt(text, torch.device("cpu"))
    encoded = engine_of(root).conditioner(None).encode([text], [""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted.shape and relative(found.crossattn, wanted) < 1e-4


def test_the_velocity_is_that_of_diffusers_for_texts_of_unequal_length(
    parts: dict[str, Any], model: LoadedModel
) -> None:
    x = torch.randn(2, 128, 5, 3, generator=torch.Generator().manual_seed(3))
    tokens = torch.randn(2, 9, HIDDEN, generator=torch.Generator().manual_seed(4))
    lengths, times = torch.tensor([9, 5]), torch.tensor([900.0, 400.0])
    with torch.no_grad():
        wanted = parts["transformer"](x, times, tokens, lengths, return_dict=False)[0]
    mask = torch.arange(9)[None] < lengths[:, None]
    assert relative(model.predict(x, times, DenoiserContext(tokens, mask=mask)), wanted) < 1e-4


@pytest.mark.parametrize(("negative", "cfg_scale"), [("", 1.0), (NEGATIVE, 4.0)])
def test_the_image_is_that_of_the_pipeline(
    pipeline: ErnieImagePipeline, root: Path, negative: str, cfg_scale: float
) -> None:
    noise = torch.randn(1, 128, 9, 13, generator=torch.Generator().manual_seed(1234))
    wanted = pipeline(
        PROMPT,
        negative_prompt=negative,
        guidance_scale=cfg_scale,
        num_inference_steps=4,
        height=144,
        width=208,
        latents=noise,
        output_type="np",
    ).images[0]
    result = made(engine_of(root), root, prompt=PROMPT, negative_prompt=negative, cfg_scale=cfg_scale)
    difference = np.abs(pixels(result) - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.05


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
    folder = tmp_path / "folder" / "Stable-diffusion" / "ernie"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    text = {key: value for key, value in text_tensors(parts, "language_model.").items() if key != "tekken_model"}
    text["vision_tower.ln_pre.weight"] = torch.ones(8)
    write(folder / "text_encoder" / "model.safetensors", text)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tekken.json").write_bytes(tekken())
    (folder / "model_index.json").write_text('{"_class_name": "ErnieImagePipeline"}')
    whole = {f"model.diffusion_model.{key}": tensor for key, tensor in parts["transformer"].state_dict().items()}
    text = text_tensors(parts)
    whole |= {f"text_encoders.ministral3_3b.transformer.{key}": tensor for key, tensor in text.items()}
    with open_vae(root / "VAE" / "vae.safetensors") as vae:
        whole |= {f"vae.{key.removeprefix('first_stage_model.')}": vae.read(key) for key in vae.entries}
    path = tmp_path / "whole" / "Stable-diffusion" / "ernie.safetensors"
    path.parent.mkdir(parents=True)
    save_file({key: t if t.dtype == torch.uint8 else t.bfloat16() for key, t in whole.items()}, path)
    path = write_ernie_image(tmp_path / "gguf", parts)
    path.unlink()
    write_gguf(path.with_suffix(".gguf"), parts["transformer"].state_dict(), "Q8_0", "ernie_image")
    near = pixels(made(engine_of(tmp_path / "gguf"), tmp_path / "gguf", prompt=PROMPT))
    assert np.abs(near - wanted).mean() < 8
    for each in ("folder", "whole"):
        assert np.array_equal(pixels(made(engine_of(tmp_path / each), tmp_path / each, prompt=PROMPT)), wanted), each


@pytest.fixture(scope="module")
def full() -> HeaderOnly:
    """All tensors of the model in full size in one file."""
    denoiser = full_header("ernie-image", "model.diffusion_model.")
    text = full_header("te-ministral3-3b", "text_encoders.ministral3_3b.transformer.")
    return HeaderOnly({**denoiser, **text, **full_header("vae-flux2", "first_stage_model.")})


@pytest.fixture(scope="module")
def components(full: HeaderOnly) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: HeaderOnly, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    left = {key for key in full.entries if key not in used}
    assert all(".layers.25." in key or key.endswith(".model.norm.weight") for key in left) and len(left) == 10
    assert sum(one.numel() for one in components[1].module.parameters()) == pytest.approx(8.03e9, rel=0.01)


def test_names_of_loras_find_the_layers_that_diffusers_means(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    parts = [f"self_attention.{part}" for part in ("to_q", "to_k", "to_v", "to_out.0")]
    parts += [f"mlp.{part}" for part in ("gate_proj", "up_proj", "linear_fc2")]
    layers = [*(f"layers.7.{part}" for part in parts), "text_proj", "adaLN_modulation.1", "final_linear"]
    for layer in layers:
        kohya = f"lora_unet_{layer.replace('.', '_')}.lora_down.weight"
        diffusers = ErnieImagePipeline.lora_state_dict({f"diffusion_model.{layer}.lora_A.weight": torch.zeros(2, 2)})
        for name in (f"diffusion_model.{layer}.lora_A.weight", f"base_model.model.{layer}.lora_A.weight", kohya):
            target = table.find(split_key(name)[0])
            assert target is not None and [f"transformer.{target.path}.lora_A.weight"] == list(diffusers), name


def test_a_text_encoder_says_what_it_is_and_what_it_lacks(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    path = root / "text_encoder" / "a_language_model.safetensors"
    assert type_of(path) == "mistral"
    bare = {key: tensor for key, tensor in text_tensors(parts).items() if key != "tekken_model"}
    write_ernie_image(tmp_path, parts)
    write(tmp_path / "text_encoder" / path.name, bare)
    with pytest.raises(
        CheckpointError, match=r"The tokenizer of Mistral's language model is missing: .*a_language_model"
    ):
        made(engine_of(tmp_path), tmp_path)
    for wrong in (b"{", tekken(1000)):
        (tmp_path / "text_encoder" / "tekken.json").write_bytes(wrong)
        with pytest.raises(CheckpointError, match=r"tekken\.json: its tokenizer cannot be read"):
            made(engine_of(tmp_path), tmp_path)


def test_tokens_are_the_lowest_ranks_first(tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_bytes(tekken())
    tokenizer = tekken_tokenizer((tmp_path / "x.safetensors",))
    ranks = {word: FIRST + 256 + place for place, word in enumerate(PAIRS)}
    byte = [FIRST + each for each in b"a"]
    assert tokenizer.ids("a red fox") == [1, *byte, ranks[b" red"], ranks[b" fox"]]
    assert tokenizer.ids("é") == [1, ranks[b"\xc3\xa9"]] and tokenizer.ids("") == [1]
    assert tokenizer.count("a red fox") == 3
