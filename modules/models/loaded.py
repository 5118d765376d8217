"""A model in memory: its networks, its latent format, and the three things processing asks of it."""

from dataclasses import dataclass, field

import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor, nn
from transformers import CLIPTextModel

from modules.errors import NumericalError
from modules.models.architecture import LdmArchitecture
from modules.models.catalogue import CheckpointInfo


@dataclass
class LoadedModel:
    """Networks of one checkpoint, in eval mode, without gradients, on one device.

    `compute_dtype` is what the UNet and text encoder compute in; `vae_dtype` likewise for the autoencoder. Neither is
    ever read from a parameter: storage and computation may differ.
    """

    info: CheckpointInfo
    family_label: str
    architecture: LdmArchitecture
    text_encoder: CLIPTextModel
    unet: UNet2DConditionModel
    vae: AutoencoderKL
    device: torch.device
    compute_dtype: torch.dtype
    vae_dtype: torch.dtype
    load_seconds: float = 0.0
    modules: tuple[nn.Module, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.modules = (self.text_encoder, self.unet, self.vae)

    @property
    def parameters(self) -> int:
        """Number of weights in all networks."""
        return sum(p.numel() for module in self.modules for p in module.parameters())

    @property
    def stored_bytes(self) -> int:
        """Bytes of all weights as they lie in memory."""
        return sum(p.numel() * p.element_size() for module in self.modules for p in module.parameters())

    @property
    def default_size_px(self) -> int:
        """The side of the pictures the model was trained on."""
        return self.architecture.latent_side * self.downscale

    @property
    def downscale(self) -> int:
        """Pixels a latent stands for, along one side."""
        return 1 << (self.architecture.vae.levels - 1)

    @property
    def latent_channels(self) -> int:
        """Channels of a latent."""
        return self.architecture.vae.latent_channels

    def predict(self, x: Tensor, timesteps: Tensor, context: Tensor) -> Tensor:
        """The UNet's raw prediction (eps or v).

        `x` [B,C,h,w] as the network wants it, `timesteps` [B] (fractions allowed), `context` [B,tokens,width].
        Computes in `compute_dtype`, returns x's dtype.
        """
        output = self.unet(
            x.to(self.compute_dtype), timesteps, encoder_hidden_states=context.to(self.compute_dtype), return_dict=False
        )[0]
        result: Tensor = output.to(x.dtype)
        return result

    def decode(self, latent: Tensor) -> Tensor:
        """Scaled latents [B,C,h,w] to pictures [B,3,8h,8w] in -1..1, float32; NaN raises `NumericalError`."""
        unscaled = (latent / self.architecture.latent.scale_factor).to(self.device, self.vae_dtype)
        pictures: Tensor = self.vae.decode(unscaled, return_dict=False)[0].float()
        if not torch.isfinite(pictures).all():
            raise NumericalError(
                "The VAE produced NaN. Start with --no-half-vae to compute it in 32 bit, or choose another VAE."
            )
        return pictures

    def encode_moments(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures [B,3,H,W] in -1..1 to mean and standard deviation of their scaled latents, float32."""
        posterior = self.vae.encode(pictures.to(self.device, self.vae_dtype)).latent_dist
        scale = self.architecture.latent.scale_factor
        return posterior.mean.float() * scale, posterior.std.float() * scale
