"""What all families of the latent-diffusion layout do alike: a UNet and an autoencoder of the sizes that the
architecture says, CLIP text encoders, and noise levels from a table of betas."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modules.models.families.adapter_version import AdapterVersion
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import (
    Conditioning,
    DenoiserInputSizes,
    ExternalTextEncoder,
    ExternalVae,
    GuidanceType,
    LoraBase,
    Make,
    OptionalEncoder,
    UsualSettings,
    mask_and_masked,
    text_inputs,
)
from modules.models.families.ldm.conditioning import ClipConditioning
from modules.models.families.ldm.edm import edm_architecture
from modules.models.families.ldm.parts import (
    V_KEY,
    ZERO_SNR_KEY,
    is_left_over,
    prediction_in,
    run_unet,
    unet_component,
    unet_inputs,
)
from modules.models.families.ldm.rectified import rectified_architecture
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header, built
from modules.models.names.folder_layout import FolderLayout
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.prompting.chunks import CHUNK_TOKENS
from modules.sampling.discrete import (
    DiscreteSchedule,
    downcast_alphas_cumprod,
    log_uniform_alphas_cumprod,
    rescale_zero_terminal_snr,
    scaled_linear_alphas_cumprod,
)
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.sampling.schedules import ALIGN_YOUR_STEPS_512
from modules.settings.values import Settings

TextEncoders = Callable[[Header, LdmArchitecture, tuple[Path, ...]], tuple[Component, ...]]
"""From a header, its architecture and the folders for text models that a YAML names."""


def _by_yaml(header: Header) -> str | None:
    del header
    return None


def _never(key: str) -> bool:
    del key
    return False


@dataclass(frozen=True, kw_only=True)
class LdmFamily:
    """A `ModelFamily`. `unsaid_prediction` is what a header means that says nothing of the prediction, and
    `ignores_too` names tensors that no module needs besides those of every family."""

    label: str
    config_name: str
    tiny_vae: str
    approx_vae: str
    text: ClipConditioning
    folder: FolderLayout
    detects: Callable[[Header], bool]
    detects_denoiser: Callable[[Header], bool]
    text_encoders: TextEncoders
    is_large: bool = False
    leaves_fp16: bool = False
    schedule_table: tuple[float, ...] = ALIGN_YOUR_STEPS_512
    v_latent_side: int | None = None
    unsaid_prediction: Callable[[Header], str | None] = _by_yaml
    ignores_too: Callable[[str], bool] = _never
    optional_encoder: OptionalEncoder | None = None
    external_encoders: tuple[ExternalTextEncoder, ...] = ()
    external_vae: ExternalVae | None = None
    context_tokens: int = CHUNK_TOKENS
    latent_multiple: int = 1
    counting: TokenCounting = BY_CHUNKS
    reads_weights: bool = True
    reads_breaks: bool = True
    aliases: tuple[tuple[str, str], ...] = ()
    lora_base: LoraBase | None = None
    adapter_version: AdapterVersion | None = None

    @property
    def embedding_components(self) -> tuple[str, ...]:
        """See `ModelFamily`, as all methods here."""
        return self.text.components

    def row_map_of(self, header: Header) -> RowMap | None:
        return None

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "v_prediction" if V_KEY in header else prediction_in(metadata) or self.unsaid_prediction(header)

    def has_zero_snr(self, header: Header) -> bool:
        return ZERO_SNR_KEY in header

    def as_told(self, architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
        return rectified_architecture(edm_architecture(architecture, file), file)

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        return built(
            header,
            partial(self.text_encoders, header, architecture, config_folders),
            partial(self.denoiser_components, header, architecture),
            architecture.autoencoder.component,
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        del header
        return (unet_component(architecture.unet_sizes),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return partial(self.text.conditioner, parts)

    def noise_levels(
        self, trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]
    ) -> NoiseLevels:
        if trained.flow_shift is not None:
            return FlowSchedule(trained.flow_shift, trained.timesteps)
        if trained.sigma_range is not None:
            return DiscreteSchedule(log_uniform_alphas_cumprod(*trained.sigma_range, trained.timesteps))
        zero_snr = trained.zero_terminal_snr or settings.sampler.sd_noise_schedule == "Zero Terminal SNR"
        alphas = scaled_linear_alphas_cumprod(trained.linear_start, trained.linear_end, trained.timesteps)
        if settings.compatibility.use_downcasted_alpha_bar:
            alphas = downcast_alphas_cumprod(alphas)
        if zero_snr:
            alphas = rescale_zero_terminal_snr(alphas)
        return DiscreteSchedule(alphas, quantize=settings.stable_diffusion.enable_quantization)

    def guidance(self, denoiser: Any) -> GuidanceType:
        return GuidanceType.CFG

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_unet(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(unet_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return unet_inputs(denoiser)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        return None

    def takes_references(self, denoiser: Any, name: str) -> bool:
        return False

    def inpainting_input(self, masked: Tensor, mask: Tensor) -> Tensor:
        return mask_and_masked(masked, mask)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key) or self.ignores_too(key)

    def notes_on_converting(self, entries: Header) -> tuple[str, ...]:
        return ()

    def notes_on_merging(self, files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
        return ()
