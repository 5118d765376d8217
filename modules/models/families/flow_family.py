"""What families of transformers that predict a flow have in common: most facts are the same for all of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from modules.errors import CheckpointError
from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.autoencoders.held import own_channels
from modules.models.families.adapter_version import AdapterVersion
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.family import (
    ExternalTextEncoder,
    ExternalVae,
    GuidanceType,
    LoraBase,
    OptionalEncoder,
    UsualSettings,
    mask_and_masked,
)
from modules.models.families.ldm.parts import is_left_over
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024
from modules.settings.values import Settings

DENOISER = "model.diffusion_model."
"""Before the names of a denoiser's tensors in a whole checkpoint."""
QWEN_IMAGE_VAE = ExternalVae(
    "AutoencoderKLQwenImage", 16, ("qwen_image", "wan"), "the VAE of Qwen-Image (qwen_image_vae.safetensors, 0.25 GB)"
)


def context_width(header: Header) -> int | None:
    """How wide the tokens are that a denoiser with a `txt_in` takes; None for other files."""
    entry = header.get(f"{DENOISER}txt_in.weight")
    return entry.shape[1] if entry is not None and len(entry.shape) == 2 else None


class FlowFamily:
    """The part of a `ModelFamily` that a family only writes where it differs; see there."""

    is_large = True
    leaves_fp16 = False
    schedule_table = ALIGN_YOUR_STEPS_1024
    v_latent_side: int | None = None
    embedding_components: tuple[str, ...] = ()
    optional_encoder: OptionalEncoder | None = None
    external_encoders: tuple[ExternalTextEncoder, ...] = ()
    external_vae: ExternalVae | None = None
    counting: TokenCounting = BY_CHUNKS
    reads_weights = reads_breaks = False
    latent_multiple = 1
    aliases: tuple[tuple[str, str], ...] = ()
    lora_base: LoraBase | None = None
    adapter_version: AdapterVersion | None = None

    def row_map_of(self, header: Header) -> RowMap | None:
        return None

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "flow"

    def has_zero_snr(self, header: Header) -> bool:
        return False

    def as_told(self, architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
        return architecture

    def noise_levels(
        self, trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]
    ) -> NoiseLevels:
        """The settings for downcast and zero-terminal-SNR mean nothing to flow models."""
        assert trained.flow_shift is not None, "a flow model's YAML has no shift"
        return FlowSchedule(trained.flow_shift, trained.timesteps)

    def guidance(self, denoiser: Any) -> GuidanceType:
        return GuidanceType.CFG

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        return None

    def takes_references(self, denoiser: Any, name: str) -> bool:
        return False

    def inpainting_input(self, masked: Tensor, mask: Tensor) -> Tensor:
        return mask_and_masked(masked, mask)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key)

    def notes_on_converting(self, entries: Header) -> tuple[str, ...]:
        return ()

    def notes_on_merging(self, files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
        return ()


def vae_component(autoencoder: Autoencoder, header: Header, external: ExternalVae) -> Component:
    """The VAE on the meta device. Raises `CheckpointError` for one whose latents the denoiser does not take."""
    component = autoencoder.component()
    held = own_channels(header)
    if held is not None and held != external.channels:
        path = next((e.file for key, e in header.items() if key.startswith(component.prefixes) and e.file), None)
        raise CheckpointError(
            f"its VAE{f' {path.name}' if path else ''} has latents of {held} channels, and the model takes "
            f"{external.channels}. {external.hint}"
        )
    return replace(component, missing_hint=external.hint)
