"""Anima from its files to an image, against the classes of diffusers and transformers on the same random weights."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AnimaTextConditioner, AutoencoderKLQwenImage, CosmosTransformer3DModel
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import Qwen3Config, Qwen3Model

from modules.models.families.anima.layout import adapter_keymap, transformer_keymap
from modules.models.families.registry import FAMILIES
from modules.models.text_encoders.tokenizers import LlmTokenizer, standard_t5
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.processing.test_z_image import engine_of, made, pixels

BLOCKS = 2
PROMPT, NEGATIVE = "a photo of a red fox in the snow, sharp focus", "blurry, lowres"
SIGMAS = (1.0, 0.9, 0.75, 0.5, 0.0)  # 3 t / (1 + 2 t) of 1, 3/4, 1/2, 1/4


def modules() -> dict[str, Any]:
    torch.manual_seed(7)
    parts: dict[str, Any] = {
        "transformer": CosmosTransformer3DModel(
            in_channels=17,  # with that of the padding mask, which diffusers adds where torchvision is installed
            out_channels=16,
            num_attention_heads=2,
            attention_head_dim=128,
            num_layers=BLOCKS,
            text_embed_dim=64,
            adaln_lora_dim=32,
            rope_scale=(1.0, 4.0, 4.0),
            concat_padding_mask=False,
            extra_pos_embed_type=None,
        ),
        "adapter": AnimaTextConditioner(
            source_dim=64, target_dim=64, model_dim=64, num_layers=2, num_attention_heads=1, target_vocab_size=32128
        ),
        "text": Qwen3Model(
            Qwen3Config(
                vocab_size=151_936,
                hidden_size=64,
                intermediate_size=96,
                num_hidden_layers=3,
                num_attention_heads=2,
                num_key_value_heads=1,
                head_dim=128,
                rope_parameters={"rope_type": "default", "rope_theta": 1_000_000.0},
            )
        ),
        "vae": AutoencoderKLQwenImage(base_dim=16, z_dim=16, dim_mult=[1, 2, 2, 2], num_res_blocks=1),
    }
    for part in parts.values():
        part.eval().requires_grad_(False)
        for name, parameter in part.named_parameters():
            scale = 1.0 if "embed" in name else 1.0 / max(parameter[0].numel(), 1) ** 0.5
            is_gain = parameter.ndim == 1 and ("norm" in name or "gamma" in name)
            parameter.copy_((torch.randn_like(parameter) * (0.1 if is_gain else scale) + is_gain).bfloat16().float())
    return parts


@pytest.fixture(scope="module")
def parts() -> dict[str, Any]:
    return modules()


@pytest.fixture(scope="module")
def root(parts: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("anima")
    write_anima(root, parts)
    return root


def write_anima(root: Path, parts: dict[str, Any]) -> Path:
    """A denoiser whose names begin with `net.`, and its parts beside it; returns the denoiser's file."""
    path = root / "Stable-diffusion" / "anima.safetensors"
    write(path, {f"net.{key}": tensor for key, tensor in denoiser_tensors(parts).items()})
    text = {f"model.{key}": tensor.bfloat16() for key, tensor in parts["text"].state_dict().items()}
    write(root / "text_encoder" / "some_qwen.safetensors", text)
    write(root / "VAE" / "vae.safetensors", {key: t.bfloat16() for key, t in parts["vae"].state_dict().items()})
    return path


def denoiser_tensors(parts: dict[str, Any]) -> dict[str, Tensor]:
    """By their names in the original layout."""
    tensors = {}
    for part, keymap in (("transformer", transformer_keymap(BLOCKS)), ("adapter", adapter_keymap())):
        for key, tensor in parts[part].state_dict().items():
            name = str(keymap.to_original(key)).removeprefix("model.diffusion_model.")
            tensors[name] = tensor.bfloat16().contiguous()
    return tensors


def write(path: Path, tensors: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path)


@torch.no_grad()
def tokens_of(parts: dict[str, Any], text: str) -> Tensor:
    ids = LlmTokenizer.standard().ids(text)
    states = parts["text"](input_ids=torch.tensor([ids])).last_hidden_state if ids else torch.zeros(1, 1, 64)
    found: Tensor = parts["adapter"](states, torch.tensor([standard_t5().text_ids(text)]))
    return found


@torch.no_grad()
def reference(parts: dict[str, Any], negative: str, cfg_scale: float) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """The image of 4 steps of Euler, 208 x 144."""
    x = torch.randn(1, 16, 18, 26, generator=torch.Generator().manual_seed(1234))
    texts = [tokens_of(parts, text) for text in (PROMPT, negative)]
    for sigma, following in pairwise(SIGMAS):
        cond, uncond = (
            parts["transformer"](
                F.pad(x, (0, 0, 0, 0, 0, 1))[:, :, None], torch.tensor([sigma]), text, return_dict=False
            )[0][:, :, 0]
            for text in texts
        )
        x = x + (following - sigma) * (uncond + cfg_scale * (cond - uncond))
    config = parts["vae"].config
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (config.latents_mean, config.latents_std))
    image = parts["vae"].decode((x * std + mean)[:, :, None], return_dict=False)[0][0, :, 0]
    levels = ((image.clamp(-1, 1) + 1) * 127.5).floor().permute(1, 2, 0)
    return np.asarray(levels.numpy(), dtype=np.int64)


@pytest.mark.parametrize(("negative", "cfg_scale"), [("", 1.0), (NEGATIVE, 4.0), ("", 4.0)])
def test_the_image_is_that_of_diffusers(parts: dict[str, Any], root: Path, negative: str, cfg_scale: float) -> None:
    result = made(engine_of(root), root, prompt=PROMPT, negative_prompt=negative, cfg_scale=cfg_scale)
    difference = np.abs(pixels(result) - reference(parts, negative, cfg_scale))
    assert difference.max() <= 2 and difference.mean() < 0.02


def test_weights_act_on_the_tokens_of_the_adapter(parts: dict[str, Any], root: Path) -> None:
    engine = engine_of(root)
    settings = Settings()
    encoded = engine.conditioner(None).encode(["a (red fox:1.5)"], [""], 4, settings, (64, 64))
    ((weighted, _),) = encoded.prompts[0].at(0)
    ids = standard_t5().weighted_ids([("a ", 1.0), ("red fox", 1.5)])
    with torch.no_grad():
        states = parts["text"](input_ids=torch.tensor([LlmTokenizer.standard().ids("a red fox")])).last_hidden_state
        plain = parts["adapter"](states, torch.tensor([ids[0]]))[0]
    expected = plain[: len(ids[1])] * torch.tensor(ids[1])[:, None]
    torch.testing.assert_close(weighted.crossattn[: len(expected)], expected, rtol=1e-3, atol=1e-3)
    assert weighted.crossattn.shape == (512, 64)


OF_28 = (0, 5)
"""Which blocks of a model with 28 the two of the tiny one are taken for."""


def grown(parts: dict[str, Any]) -> dict[str, Tensor]:
    """The tiny model with 40 blocks: all but two change nothing, as after a model is grown."""
    inserted, tensors = FAMILIES.get("anima").grown[40], {}
    kept = [number for number in range(40) if number not in inserted]
    places = [kept[number] for number in OF_28]
    for key, tensor in denoiser_tensors(parts).items():
        if not key.startswith("blocks."):
            tensors[key] = tensor
            continue
        _, number, rest = key.split(".", 2)
        if number == "0":
            tensors |= {f"blocks.{n}.{rest}": still_of(rest, tensor) for n in range(40) if n not in places}
        tensors[f"blocks.{places[int(number)]}.{rest}"] = tensor
    return tensors


def still_of(name: str, tensor: Tensor) -> Tensor:
    """Of a block that adds nothing."""
    return torch.zeros_like(tensor) if name.endswith(("output_proj.weight", "mlp.layer2.weight")) else tensor.clone()


def test_a_grown_model_takes_the_loras_of_the_smaller_one(parts: dict[str, Any], root: Path, tmp_path: Path) -> None:
    write(tmp_path / "Stable-diffusion" / "anima_2.9b.safetensors", grown(parts))
    for name in ("text_encoder", "VAE"):
        (tmp_path / name).symlink_to(root / name)
    generator = torch.Generator().manual_seed(5)
    sides = {"A": (4, 256), "B": (1024, 4)}
    lora = {
        (number, side): torch.randn(*shape, generator=generator) / 16
        for number in range(BLOCKS)
        for side, shape in sides.items()
    }
    images = []
    for folder, numbers in ((root, range(BLOCKS)), (tmp_path, OF_28)):
        names = {key: f"diffusion_model.blocks.{numbers[key[0]]}.mlp.layer1.lora_{key[1]}.weight" for key in lora}
        write(folder / "Lora" / "a.safetensors", {names[key]: tensor for key, tensor in lora.items()})
        engine = engine_of(folder, adapters_of(folder / "Lora"))
        images.append([pixels(made(engine, folder, prompt=text)) for text in (PROMPT, f"{PROMPT} <lora:a:1>")])
    (plain, changed), (plain_grown, changed_grown) = images
    assert np.abs(plain - plain_grown).max() <= 2 and np.abs(changed - changed_grown).max() <= 2
    assert np.abs(changed - plain).max() > 8


def test_features_make_images(root: Path) -> None:
    engine = engine_of(root)
    plain = pixels(made(engine, root))
    for changes in ({"sampler": "DPM++ 2M SDE", "scheduler": "Beta"}, {"width": 200, "height": 136}):
        assert pixels(made(engine, root, **changes)).std() > 1
    for stored in ({"fp8_storage": "Enable"}, {"stream_weights": "Layers"}):
        near = pixels(made(engine, root, Settings().with_changes(stored)))
        assert np.abs(near - plain).mean() < 16
