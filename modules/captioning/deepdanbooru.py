"""DeepDanbooru as published for torch: `model-resnet_custom_v3.pt`, a ResNet with its tags in the same file.

He et al. 2016 (arXiv:1512.03385), bottleneck blocks in six stages, converted from Keras with the norms folded into the
convolutions, which are called `n_Conv_0` to `n_Conv_178`. Keras pads what it halves at the right and below.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.images.resize import ResizeMode, resize_image
from modules.upscalers.loading import read_weights

SIDE_PX = 512
RATING = "rating:"  # how tags begin that say how explicit an image is
STEM_CHANNELS = 64


@dataclass(frozen=True)
class StageOfNet:
    """Some blocks of one width; the first halves the size where `stride` is 2, and has a convolution around it, which
    is counted before its own three, or behind them."""

    width: int
    channels: int
    blocks: int
    stride: int = 2
    shortcut_last: bool = False


STAGES = (
    StageOfNet(64, 256, 3, stride=1),
    StageOfNet(128, 512, 8),
    StageOfNet(256, 1024, 20),
    StageOfNet(256, 1024, 20, shortcut_last=True),
    StageOfNet(512, 2048, 3),
    StageOfNet(1024, 4096, 3),
)


class Block(nn.Module):
    """Narrow, look around, widen; added to the input, or to what `shortcut` makes of it."""

    def __init__(self, inputs: int, stage: StageOfNet, is_first: bool) -> None:
        super().__init__()
        stride = stage.stride if is_first else 1
        self.narrow = nn.Conv2d(inputs, stage.width, 1)
        self.look = nn.Conv2d(stage.width, stage.width, 3, stride)
        self.widen = nn.Conv2d(stage.width, stage.channels, 1)
        self.shortcut = nn.Conv2d(inputs, stage.channels, 1, stride) if is_first else None
        self._padding = (0, 1, 0, 1) if stride == 2 else (1, 1, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[B,C,h,w] to [B,C',h/stride,w/stride]."""
        y = F.pad(F.relu(self.narrow(x)), self._padding)
        y = self.widen(F.relu(self.look(y)))
        return F.relu(y + (x if self.shortcut is None else self.shortcut(x)))


class DeepDanbooruNet(nn.Module):
    """Images [B,3,h,w], red first in 0 to 1, sides multiples of 64, to a score from 0 to 1 for each tag, [B,tags]."""

    def __init__(self, tags: int, stages: tuple[StageOfNet, ...] = STAGES) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, STEM_CHANNELS, 7, 2)
        blocks: list[nn.Module] = []
        channels = STEM_CHANNELS
        self.in_file_order: list[nn.Conv2d] = [self.stem]
        for stage in stages:
            for number in range(stage.blocks):
                block = Block(channels, stage, number == 0)
                own = [block.narrow, block.look, block.widen]
                if block.shortcut is not None:
                    own = [*own, block.shortcut] if stage.shortcut_last else [block.shortcut, *own]
                self.in_file_order += own
                blocks.append(block)
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Conv2d(channels, tags, 1, bias=False)
        self.in_file_order.append(self.head)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(F.pad(x, (2, 3, 2, 3))))
        x = F.max_pool2d(F.pad(x, (0, 1, 0, 1), value=float("-inf")), 3, 2)
        likely: Tensor = self.head(self.blocks(x)).mean(dim=(2, 3)).sigmoid()
        return likely


class DeepDanbooru:
    """A file on a device."""

    def __init__(self, path: Path, device: torch.device, stages: tuple[StageOfNet, ...] = STAGES) -> None:
        """Raises `CheckpointError` that names the file."""
        self.path = path
        self._device = device
        weights = read_weights(path)
        tags = weights.get("tags")
        if not isinstance(tags, list) or not all(isinstance(tag, str) for tag in tags):
            raise _other_file(path, "it names no tags")
        self._tags: list[str] = tags
        with torch.device("meta"):
            self._net = DeepDanbooruNet(len(tags), stages)
        _put(self._net, weights, path)
        self._net.to(device=device).eval().requires_grad_(False)

    @torch.inference_mode()
    def scores(self, image: Image.Image) -> dict[str, float]:
        """Every tag that is no rating, with its score from 0 to 1."""
        square = resize_image(image.convert("RGB"), SIDE_PX, SIDE_PX, ResizeMode.RESIZE_AND_FILL)
        pixels = torch.from_numpy(np.array(square, np.float32) / 255).permute(2, 0, 1)[None].to(self._device)
        found = self._net(pixels)[0].tolist()
        return {tag: score for tag, score in zip(self._tags, found, strict=True) if not tag.startswith(RATING)}


def _put(net: DeepDanbooruNet, weights: dict[str, Any], path: Path) -> None:
    """The weights in float32 into the network, each with its name in the file."""
    for number, layer in enumerate(net.in_file_order):
        for name, parameter in list(layer.named_parameters()):
            key = f"n_Conv_{number}.{name}"
            value = weights.get(key)
            if not isinstance(value, Tensor) or value.shape != parameter.shape:
                found = list(value.shape) if isinstance(value, Tensor) else "missing"
                raise _other_file(path, f"{key} is {found}, and should be {list(parameter.shape)}")
            setattr(layer, name, nn.Parameter(value.float(), requires_grad=False))


def _other_file(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path.name} is not DeepDanbooru's model-resnet_custom_v3.pt: {why}. Take another file, or put a folder with "
        "model.onnx and selected_tags.csv next to it."
    )
