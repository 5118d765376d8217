"""A checkpoint of Stable Diffusion 1's full size with random weights, written without ever holding it."""

import json
import math
import struct
from pathlib import Path

import torch
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from modules.models.architecture import LdmArchitecture, read_architecture
from modules.models.families.ldm_parts import build_unet, build_vae
from modules.models.keymaps.clip_text import clip_text_keymap
from modules.models.keymaps.keymap import KeyMap
from modules.models.keymaps.ldm_unet import UNetLayout, unet_keymap
from modules.models.keymaps.ldm_vae import vae_keymap

ROOT = Path(__file__).parent.parent
SD1_YAML = ROOT / "configs" / "v1-inference.yaml"


def sd1_modules(architecture: LdmArchitecture) -> list[tuple[nn.Module, KeyMap]]:
    """The three networks on the meta device with their key maps."""
    unet, vae = architecture.unet, architecture.vae
    text = CLIPTextConfig(
        vocab_size=49408,
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        hidden_act="quick_gelu",
    )
    with torch.device("meta"):
        return [
            (CLIPTextModel(text), clip_text_keymap()),
            (build_unet(unet), unet_keymap(UNetLayout(unet.levels, unet.blocks_per_level, unet.attention_levels))),
            (build_vae(vae), vae_keymap(vae.levels, vae.blocks_per_level)),
        ]


def write_full_size_checkpoint(path: Path) -> int:
    """Write fp16 weights of the original layout, tensor by tensor; returns the number of weights.

    Values are small (normal, deviation 0.02) so that a forward pass stays finite.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for module, keymap in sd1_modules(read_architecture(SD1_YAML)):
        for key, tensor in module.state_dict().items():
            original = keymap.to_original(key)
            assert original is not None
            shapes[original] = tuple(keymap.tensor_to_original(key, tensor).shape)
    header: dict[str, object] = {}
    position = 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [position, position + size]}
        position += size
    text = json.dumps(header).encode()
    generator = torch.Generator().manual_seed(0)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for shape in shapes.values():
            weights = torch.randn(shape, generator=generator).mul_(0.02).half()
            file.write(weights.numpy().tobytes())
    return position // 2
