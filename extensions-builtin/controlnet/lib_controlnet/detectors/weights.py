"""From a file of weights to a network that computes on the CPU in fp32. Nothing is kept: a map is made once a job, and
takes no memory of the GPU."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lib_controlnet.pixels import Pixels
from modules.errors import CheckpointError
from modules.models.files.tensor_source import open_tensors

PREFIXES = ("module.", "netNetwork.")
"""What training programs put before all names."""
Word = str | Callable[[re.Match[str]], str]
COUNTER = ".num_batches_tracked"
"""How many batches a norm has seen, which counts in training only and old files do without."""


def tensors_of(path: Path) -> dict[str, Tensor]:
    """All tensors of a file, by their names in the network. Raises `CheckpointError`."""
    found: dict[str, Tensor] = {}
    with open_tensors(path) as file:
        for key in file.entries:
            name = key
            for prefix in PREFIXES:
                name = name.removeprefix(prefix)
            found[name] = file.read(key).float()
    return found


def filled(net: nn.Module, path: Path, rename: Callable[[dict[str, Tensor]], dict[str, Tensor]] | None = None) -> Any:
    """The network with the weights of a file, ready to compute. Raises `CheckpointError` for a file that is none of
    this network's."""
    tensors = tensors_of(path)
    if rename is not None:
        tensors = rename(tensors)
    wanted = {name: weight for name, weight in net.state_dict().items() if not name.endswith(COUNTER)}
    missing = [name for name in wanted if name not in tensors]
    wrong = [name for name in wanted if name in tensors and tensors[name].shape != wanted[name].shape]
    if missing or wrong:
        what = f"{missing[0]} is missing" if missing else f"{wrong[0]} has another shape"
        raise CheckpointError(
            f"{path.name}: {what}, and {len(missing) + len(wrong) - 1} more of {len(wanted)} tensors. It is another "
            "network's file, or damaged; put the right one in its place."
        )
    net.load_state_dict({name: tensors[name] for name in wanted}, strict=False)
    return net.eval().requires_grad_(False)


def as_batch(image: Pixels) -> Tensor:
    """[H,W,C] of bytes as [1,C,H,W] in 0..255."""
    return torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None].float()


def as_bytes(values: Tensor) -> Pixels:
    """[...,H,W] in 0..1 as bytes [H,W]."""
    scaled = (values.reshape(values.shape[-2:]) * 255.0).clamp(0, 255)
    found: Pixels = scaled.numpy().astype(np.uint8)
    return found


def renamed(
    tensors: Mapping[str, Tensor],
    names: Iterable[tuple[re.Pattern[str], Word]],
    fused: Iterable[tuple[re.Pattern[str], str]],
) -> dict[str, Tensor]:
    """Tensors by other names, each pattern of `names` replaced in its turn. Query, key and value that are one tensor
    become three: `fused` has their names with `{}` for "q", "k", "v", or `{1}` for the whole word."""
    names, fused = tuple(names), tuple(fused)
    found: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        name = key
        for pattern, word in names:
            name = pattern.sub(word, name)
        split = next((pattern.sub(parts, name) for pattern, parts in fused if pattern.match(name)), None)
        if split is None:
            found[name] = tensor
            continue
        for word, part in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
            found[split.format(word[0], word)] = part
    return found
