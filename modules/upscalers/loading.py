"""From an upscaler file to a model: weights are read as weights only, spandrel finds out the architecture."""

import pickle
import struct
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from modules.errors import CheckpointError
from modules.upscalers.spandrel_import import import_spandrel

# What PyTorch's reader of weights raises when it meets other bytes than it expects.
_DAMAGED = (
    *(SafetensorError, OSError, EOFError, pickle.UnpicklingError, struct.error),
    *(RuntimeError, ValueError, LookupError, AttributeError, TypeError, OverflowError),
)


class PixelModel(Protocol):
    """Part that is used of spandrel's `ImageModelDescriptor`."""

    @property
    def scale(self) -> int: ...

    def __call__(self, image: Tensor) -> Tensor:
        """[1,3,H,W] in 0..1 to [1,3,scale*H,scale*W] in 0..1; pads to what the architecture needs, and cuts again."""


def load_upscaler(path: Path, device: torch.device) -> PixelModel:
    """The model of a file, in fp32 on `device`. Raises `CheckpointError` that names the file."""
    spandrel = import_spandrel()
    loaded = load_network(path, device, "is no upscaler that can be read")
    if not isinstance(loaded, spandrel.ImageModelDescriptor) or (loaded.input_channels, loaded.output_channels) != (
        3,
        3,
    ):
        raise CheckpointError(
            f"{path.name} holds a model of architecture {loaded.architecture.name}, which does not turn one "
            "color image into another. Choose another upscaler."
        )
    model: PixelModel = loaded
    return model


def load_network(path: Path, device: torch.device, problem: str) -> Any:
    """Load a file by spandrel, in fp32 on `device`, for inference. Raises `CheckpointError`: the file's
    name, then `problem`, then why."""
    weights = read_weights(path)
    spandrel = import_spandrel()
    try:
        loaded = spandrel.ModelLoader(device=device).load_from_state_dict(weights)
    except (spandrel.UnsupportedModelError, RuntimeError, KeyError, ValueError, TypeError, IndexError) as error:
        reason = str(error).strip().splitlines()
        raise CheckpointError(
            f"{path.name} {problem}: {reason[0] if reason else type(error).__name__} "
            "Take the file out of the folder, or choose another one."
        ) from error
    loaded.eval().float()
    loaded.model.requires_grad_(False)
    return loaded


def read_weights(path: Path) -> dict[str, Any]:
    """The tensors of a .safetensors file or of a pickled state dict; no other object is ever made from a pickle."""
    try:
        if path.suffix.lower() == ".safetensors":
            return dict(load_file(path))
        weights = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.name} is not there any more; press the refresh button.") from error
    except _DAMAGED as error:
        raise CheckpointError(
            f"{path.name} cannot be read: it is damaged, or holds other things than weights, which are never run. "
            "Download it again from a source you trust, if there is one as .safetensors."
        ) from error
    if not isinstance(weights, dict):
        raise CheckpointError(f"{path.name} holds a {type(weights).__name__} instead of named weights. Choose another.")
    return weights
