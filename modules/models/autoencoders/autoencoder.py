"""The interface of an autoencoder: images to scaled latents and back.

Scaled latents are what samplers work on: packed and normalised as the denoiser was trained with them. What the VAE's
own module takes and gives ("own latents") is known in this folder only, and so are the classes of diffusers, what a
YAML says of them, and constants.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from torch import Tensor

    from modules.models.names.component import Component, Header
    from modules.models.names.folder_layout import Names

PREFIX = "first_stage_model"
"""Before the names of its tensors in a whole checkpoint."""
MISSING_HINT = "It may be a pruned file without a VAE: choose a full checkpoint."


@dataclass(frozen=True)
class PreviewFactors:
    """A linear fit of the decoder: red, green and blue in -1..1 are `latent @ factors + bias`, with `factors`
    [channels][3] and `bias` [3], for each scaled latent; where `patch` of them a side are packed in one, unpacked."""

    factors: tuple[tuple[float, ...], ...]
    bias: tuple[float, ...] = (0.0, 0.0, 0.0)
    patch: int = 1


class Autoencoder(Protocol):
    """One autoencoder's sizes and constants, without weights; `vae` is always the module that `component` built.

    A frozen value that imports no torch until it computes, so that the server can read it from a YAML.
    """

    @property
    def channels(self) -> int:
        """Channels of a scaled latent."""

    @property
    def downscale(self) -> int:
        """Pixels that a scaled latent stands for, along one side."""

    @property
    def preview(self) -> PreviewFactors | None:
        """How scaled latents are shown without a decoder; None: not known."""

    def component(self) -> Component:
        """The module on the meta device, with the names of its tensors in a checkpoint."""

    def sized_by(self, header: Header) -> Autoencoder:
        """Return the autoencoder with the sizes of the tensors in a checkpoint's header; unchanged if it holds none, or
        not all, so that loading can list what is missing."""

    def refined(self, folder: Path) -> Autoencoder:
        """Return the autoencoder with the constants in the settings of a diffusers folder. Raises `CheckpointError`
        that names a setting which the tensors contradict or that is unknown."""

    def own_shape(self, height: int, width: int) -> tuple[int, ...]:
        """The shape, without the batch, of own latents for scaled latents of this height and width."""

    def to_own(self, vae: Any, latents: Tensor) -> Tensor:
        """Scaled latents [B,C,h,w] as the VAE has them, in the same dtype: not scaled, not packed."""

    def moments(self, vae: Any, own: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation [B,C,h,w] of scaled latents, from what `encode` gave."""

    def decode(self, vae: Any, own: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        """Own latents to images [B,3,H,W], in the dtype of `vae`; in tiles of `tile_px` a side, 0: in one piece.
        `few_tiles` computes only the largest of them, for a look at the memory that it takes."""

    def encode(self, vae: Any, images: Tensor, tile_px: int = 0, few_tiles: bool = False) -> Tensor:
        """Images [B,3,H,W] in -1..1 to mean and log variance, side by side as channels of own latents."""


@dataclass(frozen=True)
class AutoencoderType:
    """One type of autoencoder. `read` makes one of `model.params` of a YAML.

    `diffusers_names` gives the key map of a header in the diffusers layout. `renames`: modules that
    files in the original layout may have under other names, and how they are called in it.
    """

    read: Callable[[Mapping[str, Any]], Autoencoder]
    diffusers_names: Callable[[Header], Names]
    renames: Mapping[str, str] = field(default_factory=dict)
