"""The smallest decoder there is, for previews: eight convolutions from latents to images of twice the latents' size.

The reference UI's `VAE-approx` models; sizes follow from the tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.files.tensor_source import open_tensors

LAYERS = tuple(f"conv{number}" for number in range(1, 9))
SLOPE = 0.1  # of the leaky ReLU behind every convolution
ENLARGES = 2


@dataclass
class ApproxDecoder:
    """Weights [out,in,k,k] and biases [out] of the convolutions, in order, in float32."""

    layers: Sequence[tuple[Tensor, Tensor]]

    def run(self, latents: Tensor) -> Tensor:
        """Scaled latents [B,C,h,w] to images [B,3,2h,2w] in about -1..1, float32, on the latents' device."""
        self.layers = [(weight.to(latents.device), bias.to(latents.device)) for weight, bias in self.layers]
        border = sum(weight.shape[-1] // 2 for weight, _ in self.layers)
        x = F.interpolate(latents.float(), scale_factor=float(ENLARGES))
        x = F.pad(x, (border,) * 4)
        for weight, bias in self.layers:
            x = F.leaky_relu(F.conv2d(x, weight, bias), SLOPE)
        return x


def read_approx(path: Path, latent_channels: int) -> ApproxDecoder:
    """Read a file with `conv1.weight` to `conv8.bias`. Raises `CheckpointError` for any other, and for one that is made
    for latents of another number of channels."""
    with open_tensors(path) as file:
        channels = latent_channels
        for name in LAYERS:
            weight, bias = (file.entries.get(f"{name}.{part}") for part in ("weight", "bias"))
            shape = () if weight is None else weight.shape
            if len(shape) != 4 or bias is None or bias.shape != shape[:1] or shape[2] != shape[3] or not shape[2] % 2:
                raise CheckpointError(f"{path.name}: is no VAE-approx model: {name} is missing or of another shape.")
            if shape[1] != channels:
                raise CheckpointError(
                    f"{path.name}: {name} takes {shape[1]} channels and would be given {channels}. "
                    "Use the file of this model's family."
                )
            channels = shape[0]
        if channels != 3:
            raise CheckpointError(f"{path.name}: is no VAE-approx model: it makes {channels} channels, not 3.")
        read = [(file.read(f"{name}.weight").float(), file.read(f"{name}.bias").float()) for name in LAYERS]
    return ApproxDecoder(read)
