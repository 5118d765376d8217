"""Tiny segmentation models with random weights, as files in the layouts that people have."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.scripts.program import Program
from tests.models.family_files import write_family
from tests.recordings import CONFIGS, cpu_machine

SIDE_PX = 128
SAM_SIZES: dict[str, Any] = {
    "vision_config": {
        "model_type": "sam2_vision_model",
        "backbone_config": {
            "model_type": "sam2_hiera_det_model",
            "hidden_size": 16,
            "blocks_per_stage": [1, 1, 2, 1],
            "embed_dim_per_stage": [16, 32, 64, 128],
            "window_size_per_stage": [4, 2, 4, 2],
            "global_attention_blocks": [3],
            "window_positional_embedding_background_size": [4, 4],
        },
        "backbone_channel_list": [128, 64, 32, 16],
        "backbone_feature_sizes": [[32, 32], [16, 16], [8, 8]],
        "fpn_hidden_size": 64,
    },
    "prompt_encoder_config": {"hidden_size": 64, "image_size": SIDE_PX},
    "mask_decoder_config": {"hidden_size": 64, "mlp_dim": 128},
}
TOWER = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 1}


def sam() -> Any:
    """SAM 2 with masks of about half of the image."""
    from transformers import Sam2Config, Sam2Model

    return _random(Sam2Model(Sam2Config(**SAM_SIZES)))


def clipseg(layers: int = 10) -> Any:
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    vision = {**TOWER, "num_hidden_layers": layers, "image_size": 64, "patch_size": 16}
    text = {**TOWER, "num_hidden_layers": 2}
    return _random(
        CLIPSegForImageSegmentation(
            CLIPSegConfig(
                vision_config=vision,
                text_config=text,
                projection_dim=64,
                reduce_dim=16,
                decoder_intermediate_size=48,
                use_complex_transposed_convolution=True,
                extract_layers=(3, 6, 9) if layers > 9 else tuple(range(layers)),
            )
        )
    )


def owl() -> Any:
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    vision = {**TOWER, "num_hidden_layers": 2, "image_size": 64, "patch_size": 16}
    text = {**TOWER, "num_hidden_layers": 2}
    return _random(Owlv2ForObjectDetection(Owlv2Config(vision_config=vision, text_config=text, projection_dim=64)))


def _random(network: Any) -> Any:
    torch.manual_seed(7)
    for weight in network.parameters():
        torch.nn.init.normal_(weight, std=0.05)
    return network.eval()


def save(network: Any, path: Path, config: bool = False) -> Path:
    """Write a network in transformers' layout, with its config.json where that is wanted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in network.state_dict().items()}, path)
    if config:
        path.with_name("config.json").write_text(json.dumps(network.config.to_dict()))
    return path


def weight_of(name: str, shape: tuple[int, ...]) -> Tensor:
    """Numbers that follow from a tensor's name alone."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    return torch.randn(shape, generator=generator) * 0.2


@contextmanager
def running(folder: Path) -> Iterator[tuple[Engine, Program]]:
    """An engine with a tiny checkpoint, and the program of an extension whose models lie in this folder."""
    folder.mkdir(exist_ok=True)
    write_family(folder, "sd1")
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)
    yield engine, Program(folders=lambda name: (folder / name,), compute_alone=engine.compute_alone)
    engine.close()
