"""The three components of the small model, read from a file in the original SD1 layout, and its noise schedule."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from omegaconf import OmegaConf
from safetensors.torch import load_file
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModel

from modules.errors import CheckpointError
from modules.sampling.discrete import scaled_linear_alphas_cumprod
from modules.system.devices import wide_dtype

TEXT_PREFIX = "cond_stage_model.transformer.text_model."
TOKENS = 77


def in_bf16(device: str | torch.device) -> torch.autocast:
    """Return the context in which recipes compute: in bf16 where the device multiplies it itself, else in fp32, which
    is faster than emulating it: 15 times on a CPU with AVX2."""
    kind = torch.device(device)
    return torch.autocast(kind.type, torch.bfloat16, enabled=wide_dtype(kind) is torch.bfloat16)


@dataclass(frozen=True)
class SceneModel:
    """UNet, VAE and text model in fp32, with the factor between VAE latents and the UNet's unit variance."""

    unet: Any
    vae: Any
    text: Any
    scale_factor: float
    alphas_cumprod: Tensor  # [1000], fp32


def load_model(path: Path) -> SceneModel:
    """Read `path` (.safetensors) and the YAML of the same name next to it.

    Raises CheckpointError where either file is missing.
    """
    config_path = path.with_suffix(".yaml")
    for needed in (path, config_path):
        if not needed.is_file():
            raise CheckpointError(f"{needed} does not exist. Training starts from a .safetensors and its .yaml.")
    state = {name: tensor.float() for name, tensor in load_file(path).items()}
    config = OmegaConf.to_container(OmegaConf.load(config_path), resolve=True)
    assert isinstance(config, dict)
    params = config["model"]["params"]
    unet = UNet2DConditionModel.from_single_file(dict(state), original_config=config, local_files_only=True)
    vae = AutoencoderKL.from_single_file(dict(state), original_config=config, local_files_only=True)
    return SceneModel(
        unet=unet.float().train(),
        vae=vae.float().eval(),
        text=_load_text(state).train(),
        scale_factor=float(params["scale_factor"]),
        alphas_cumprod=scaled_linear_alphas_cumprod(params["linear_start"], params["linear_end"], params["timesteps"]),
    )


def _load_text(state: dict[str, Tensor]) -> Any:
    tensors = {name.removeprefix(TEXT_PREFIX): t for name, t in state.items() if name.startswith(TEXT_PREFIX)}
    vocabulary, width = tensors["embeddings.token_embedding.weight"].shape
    layers = 1 + max(int(name.split(".")[2]) for name in tensors if name.startswith("encoder.layers."))
    model = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=tensors["encoder.layers.0.mlp.fc1.weight"].shape[0],
            num_hidden_layers=layers,
            num_attention_heads=max(1, width // 64),
            max_position_embeddings=TOKENS,
            hidden_act="quick_gelu",
            bos_token_id=49406,
            eos_token_id=49407,
            pad_token_id=49407,
        )
    )
    tensors.pop("embeddings.position_ids", None)
    model.load_state_dict(tensors, strict=True)
    return model
