"""Tiny ESRGAN networks with random weights, written in the key layouts that files have."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

FEATURES = 8
GROWTH = 32  # the only one there is


def esrgan_weights(scale: int = 4, blocks: int = 1, seed: int = 0) -> dict[str, Tensor]:
    """RRDBNet (arXiv:1809.00219) in the "new" layout: conv_first, body.N.rdbM.convK, conv_body, conv_up ..."""
    generator = torch.Generator().manual_seed(seed)
    weights: dict[str, Tensor] = {}

    def conv(name: str, inputs: int, outputs: int) -> None:
        weights[f"{name}.weight"] = torch.randn(outputs, inputs, 3, 3, generator=generator) / (3 * inputs**0.5)
        weights[f"{name}.bias"] = torch.randn(outputs, generator=generator) * 0.05

    conv("conv_first", 3, FEATURES)
    for block in range(blocks):
        for dense in (1, 2, 3):
            for layer in range(1, 6):
                inputs = FEATURES + (layer - 1) * GROWTH
                conv(f"body.{block}.rdb{dense}.conv{layer}", inputs, GROWTH if layer < 5 else FEATURES)
    conv("conv_body", FEATURES, FEATURES)
    for index in range({2: 1, 4: 2}[scale]):
        conv(f"conv_up{index + 1}", FEATURES, FEATURES)
    conv("conv_hr", FEATURES, FEATURES)
    conv("conv_last", FEATURES, 3)
    weights["conv_last.bias"] += 0.4
    return weights


def old_layout(weights: dict[str, Tensor], blocks: int = 1) -> dict[str, Tensor]:
    """The same weights as the first ESRGAN files named them: model.0, model.1.sub.N.RDBM.convK.0, model.3 ..."""
    names = {"conv_first": "model.0", "conv_body": f"model.1.sub.{blocks}"}
    names |= {"conv_up1": "model.3", "conv_up2": "model.6", "conv_hr": "model.8", "conv_last": "model.10"}
    for block in range(blocks):
        for dense in (1, 2, 3):
            for layer in range(1, 6):
                names[f"body.{block}.rdb{dense}.conv{layer}"] = f"model.1.sub.{block}.RDB{dense}.conv{layer}.0"
    return {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in weights.items()}


def save_esrgan(path: Path, scale: int = 4) -> Path:
    """A file of this name, as .safetensors or pickled below "params_ema", by its suffix."""
    path.parent.mkdir(parents=True, exist_ok=True)
    weights = esrgan_weights(scale)
    if path.suffix == ".safetensors":
        save_file(weights, path)
    else:
        torch.save({"params_ema": weights}, path)
    return path
