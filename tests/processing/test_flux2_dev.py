"""FLUX.2 dev from its files to an image, against diffusers' pipeline on the same random weights, and its files."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2Pipeline, Flux2Transformer2DModel
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from transformers import MistralConfig, MistralModel

from modules.adapters.adapter_file import split_key
from modules.adapters.targets import TargetTable
from modules.errors import CheckpointError
from modules.models.detection.parts import TEKKEN_TOKENS
from modules.models.families.architecture import read_architecture
from modules.models.families.flux2.layout import TABLE
from modules.models.families.header_sizes import sized_by_header
from modules.models.families.registry import FAMILIES, all_families, detect_family
from modules.models.files.tensor_file import TensorEntry
from modules.models.files.tensor_source import TensorSource
from modules.models.loading.matching import assign_tensors
from modules.models.names.component import Component
from modules.models.names.fused import unfused
from modules.models.text_encoders.tekken import tekken_tokenizer
from modules.processing.request.source_images import FromNoise, SourceImage
from modules.settings.values import Settings
from tests.models.dit_files import HeaderOnly, full_header
from tests.models.dit_models import original_tensors
from tests.processing.test_ernie_image import tekken, with_vae
from tests.processing.test_krea2 import type_of, write
from tests.processing.test_z_image import engine_of, made, pixels, relative
from tests.recordings import CONFIGS

FAMILY = FAMILIES.get("flux2_dev")
PROMPT, SIDES, HIDDEN, GUIDANCE = "a photo of a red fox in the snow, sharp focus", (144, 208), 64, 3.5
STEPS, SHIFT = 4, float(np.exp(2.02))
ENCODER = "a_language_model.safetensors"


class Tokenizer:
    """What the pipeline asks of a processor: the chat template of Mistral Small 3, padded on the left."""

    def __init__(self, folder: Path) -> None:
        (folder / "tekken.json").write_bytes(tekken())
        self._tokenizer = tekken_tokenizer((folder / "model.safetensors",))

    def apply_chat_template(self, chats: list[Any], max_length: int, **_: Any) -> Mapping[str, Tensor]:
        marks = {"system": "[SYSTEM_PROMPT]{}[/SYSTEM_PROMPT]", "user": "[INST]{}[/INST]"}
        (texts,) = [[marks[one["role"]].format(one["content"][0]["text"]) for one in chat] for chat in chats]
        ids = self._tokenizer.ids("".join(texts))[:max_length]
        empty = max_length - len(ids)
        mask = (torch.arange(max_length) >= empty).long()
        return {"input_ids": torch.tensor([[*[11] * empty, *ids]]), "attention_mask": mask[None]}


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    torch.manual_seed(11)
    parts: dict[str, Any] = {
        "transformer": Flux2Transformer2DModel(
            num_layers=1, num_single_layers=2, num_attention_heads=1, joint_attention_dim=3 * HIDDEN,
        ),
        "text": MistralModel(
            MistralConfig(
                vocab_size=TEKKEN_TOKENS, hidden_size=HIDDEN, intermediate_size=5 * HIDDEN, num_hidden_layers=31,
                num_attention_heads=2, num_key_value_heads=1, head_dim=128, sliding_window=None, rms_norm_eps=1e-5,
                rope_parameters={"rope_type": "default", "rope_theta": 1e9},
            )
        ),
    }  # fmt: skip
    return with_vae(parts)


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("flux2_dev")
    (root / "text_encoder").mkdir()
    save_file(text_tensors(parts), root / "text_encoder" / ENCODER)
    write(root / "VAE" / "vae.safetensors", parts["vae"].state_dict())
    write(
        root / "Stable-diffusion" / "flux2.safetensors", original_tensors(TABLE, parts["transformer"].state_dict(), "")
    )
    return root


def text_tensors(parts: dict[str, Any], level: str = "model.") -> dict[str, Tensor]:
    """The text encoder's tensors by the names that published files have, with its tokenizer."""
    state = {f"{level}{key}": tensor.bfloat16() for key, tensor in parts["text"].state_dict().items()}
    return {**state, "tekken_model": torch.frombuffer(bytearray(tekken()), dtype=torch.uint8)}


@pytest.fixture(scope="module")
def pipeline(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Flux2Pipeline:
    tokenizer, scheduler = Tokenizer(tmp_path_factory.mktemp("tokenizer")), FlowMatchEulerDiscreteScheduler()
    pipe = Flux2Pipeline(scheduler, parts["vae"], None, None, parts["transformer"])
    pipe.text_encoder, pipe.tokenizer = parts["text"], tokenizer
    pipe.set_progress_bar_config(disable=True)
    return pipe


@pytest.mark.parametrize("text", [PROMPT, "", "a snowy mountain " * 300])
def test_the_texts_are_those_of_the_pipeline(pipeline: Flux2Pipeline, root: Path, text: str) -> None:
    wanted, _ = pipeline.encode_prompt(text, torch.device("cpu"), text_encoder_out_layers=(10, 20, 30))
    encoded = engine_of(root).conditioner(None).encode([text], [""], 4, Settings(), (64, 64))
    ((found, _),) = encoded.prompts[0].at(0)
    assert found.crossattn.shape == wanted[0].shape and relative(found.crossattn, wanted[0]) < 1e-4


@pytest.mark.parametrize("shown", [0, 2])
def test_the_image_is_that_of_the_pipeline(pipeline: Flux2Pipeline, root: Path, shown: int) -> None:
    """With images that it is shown, and without."""
    images = [Image.linear_gradient("L").resize((96, 64 + 32 * number)).convert("RGB") for number in range(shown)]
    times = np.linspace(1, 1 / STEPS, STEPS)
    height, width = SIDES
    wanted = pipeline(
        image=images or None,
        prompt=PROMPT,
        guidance_scale=GUIDANCE,
        num_inference_steps=STEPS,
        sigmas=list(SHIFT * times / (1 + (SHIFT - 1) * times)),
        height=height,
        width=width,
        latents=torch.randn(1, 128, 9, 13, generator=torch.Generator().manual_seed(1234)),
        output_type="np",
    ).images[0]
    start = FromNoise(tuple(SourceImage.of(each) for each in images))
    found = pixels(made(engine_of(root), root, prompt=PROMPT, distilled_cfg_scale=GUIDANCE, start=start))
    difference = np.abs(found - np.floor(wanted * 255))
    assert difference.max() <= 2 and difference.mean() < 0.05


def test_the_scale_is_an_input_that_counts_and_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root))
    assert np.abs(pixels(made(engine, root, distilled_cfg_scale=30.0)) - plain).mean() > 0.5
    int8 = {"fp8_storage": "Enable", "fp8_format": "int8_row", "compute_mode": "int8 matmul"}
    for stored in ({"fp8_storage": "Enable"}, {**int8, "stream_weights": "Blocks"}):
        assert np.abs(pixels(made(engine, root, Settings().with_changes(stored))) - plain).mean() < 16


def test_every_layout_makes_the_same_image(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    wanted = pixels(made(engine_of(root), root))
    folder = tmp_path / "folder" / "Stable-diffusion" / "flux2"
    for name in ("transformer", "vae"):
        write(folder / name / "diffusion_pytorch_model.safetensors", parts[name].state_dict())
    text = {key: value for key, value in text_tensors(parts, "language_model.").items() if key != "tekken_model"}
    text["vision_tower.ln_pre.weight"] = torch.ones(8)
    write(folder / "text_encoder" / "model.safetensors", text)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tekken.json").write_bytes(tekken())
    (folder / "model_index.json").write_text('{"_class_name": "Flux2Pipeline"}')
    assert np.array_equal(pixels(made(engine_of(tmp_path / "folder"), tmp_path / "folder")), wanted)


@pytest.fixture(scope="module")
def full() -> TensorSource:
    """All tensors of the model in full size in one file."""
    with torch.device("meta"):
        transformer = Flux2Transformer2DModel()
        config = MistralConfig(
            vocab_size=TEKKEN_TOKENS, hidden_size=5120, intermediate_size=32768, num_hidden_layers=40, head_dim=128
        )
        text = MistralModel(config).state_dict()
    tensors = original_tensors(TABLE, transformer.state_dict(), "model.diffusion_model.")
    tensors |= {f"text_encoders.mistral3_24b.transformer.model.{key}": tensor for key, tensor in text.items()}
    entries = {key: TensorEntry(torch.bfloat16, tuple(tensor.shape), 0, 0) for key, tensor in tensors.items()}
    return unfused(HeaderOnly({**entries, **full_header("vae-flux2", "first_stage_model.")}), all_families())


@pytest.fixture(scope="module")
def components(full: TensorSource) -> tuple[Component, ...]:
    architecture = sized_by_header(full.entries, read_architecture(CONFIGS / FAMILY.config_name))
    return FAMILY.components(full.entries, architecture, ())


def test_the_full_models_tensors_all_have_a_place(full: TensorSource, components: tuple[Component, ...]) -> None:
    assert detect_family(full) is FAMILY
    used = {assignment.original_key for assignment in assign_tensors(full, components, FAMILY.is_ignored)}
    left = {key for key in full.entries if key not in used}
    assert all(".model.layers.3" in key or key.endswith(".model.norm.weight") for key in left) and len(left) == 91
    counts = [sum(one.numel() for one in component.module.parameters()) for component in components[:2]]
    assert sorted(counts) == pytest.approx([17.35e9, 32.2e9], rel=0.02)


def test_names_of_loras_find_the_layers_that_diffusers_means(components: tuple[Component, ...]) -> None:
    table = TargetTable({item.name: (item.module, item.keymap.to_original) for item in components})
    single = "single_transformer_blocks.40.attn.to_out"
    for name, path in {
        "diffusion_model.double_blocks.3.img_attn.proj.lora_A.weight": "transformer_blocks.3.attn.to_out.0",
        f"transformer.{single}.lora_A.weight": single,
        "lora_unet_guidance_in_in_layer.lora_down.weight": "time_guidance_embed.guidance_embedder.linear_1",
    }.items():
        target = table.find(split_key(name)[0])
        assert target is not None and target.path == path, name


def test_an_encoder_of_another_mistral_is_no_part_of_it(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    assert type_of(root / "text_encoder" / ENCODER) == "mistral_small"
    narrow = {
        key: tensor[: HIDDEN * 3] if ".mlp.gate" in key else tensor for key, tensor in text_tensors(parts).items()
    }
    for folder in ("Stable-diffusion", "VAE"):
        (tmp_path / folder).symlink_to(root / folder)
    (tmp_path / "text_encoder").mkdir()
    save_file({key: tensor.contiguous() for key, tensor in narrow.items()}, tmp_path / "text_encoder" / ENCODER)
    assert type_of(tmp_path / "text_encoder" / ENCODER) == "mistral"
    with pytest.raises(CheckpointError, match=r"needs Mistral Small 3 24B"):
        made(engine_of(tmp_path), tmp_path)
