"""Stable Diffusion 3 and 3.5 (Esser et al. 2024, arXiv:2403.03206): a transformer that sees image and text side by
side and predicts a flow.

CLIP-L and OpenCLIP bigG are side by side, filled up to the width of T5, whose tokens follow; without T5 zeros do, as it
was trained. Sizes, the second attention and the normed queries and keys of SD3.5 follow from the tensors.
"""

from collections.abc import Collection, Mapping, Sequence
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
    LoraNaming,
    Make,
    OptionalEncoder,
    UsualSettings,
    mask_and_masked,
    text_inputs,
)
from modules.models.families.ldm.parts import is_left_over
from modules.models.families.sd3.conditioning import CLIP, ClipAndT5
from modules.models.families.sd3.folder import FOLDER
from modules.models.families.sd3.layout import (
    CLIP_L_PREFIX,
    SIGN,
    T5_PREFIX,
    is_transformer,
    transformer_rows,
)
from modules.models.families.sd3.t5 import T5, is_unused_of_t5, notes_on_converting, notes_on_merging, t5_components
from modules.models.families.sd3.text import CLIP_G, CLIP_L, clip_g_component, clip_l_component
from modules.models.families.sd3.transformer import run_transformer, transformer_component, transformer_inputs
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header, built
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting
from modules.models.text_encoders.encoding import TextParts
from modules.prompting.chunks import CHUNK_TOKENS
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024
from modules.settings.values import Settings

UNUSED = f"{CLIP_L_PREFIX}.text_projection."


class StableDiffusion3:
    """A `ModelFamily`."""

    label = "SD 3"
    is_large = True
    leaves_fp16 = False
    schedule_table = ALIGN_YOUR_STEPS_1024
    config_name = "sd3-inference.yaml"
    v_latent_side: int | None = None
    tiny_vae = "taesd3"
    approx_vae = "vaeapprox-sd3"
    embedding_components = CLIP.components
    optional_encoder: OptionalEncoder | None = T5
    external_encoders = (
        CLIP_L,
        CLIP_G,
        ExternalTextEncoder("t5xxl", T5_PREFIX, wanted_by=SIGN, any_ending=True, is_optional=True),
    )
    external_vae: ExternalVae | None = None
    context_tokens = 2 * CHUNK_TOKENS
    counting: TokenCounting = BY_CHUNKS
    reads_weights = reads_breaks = True
    latent_multiple = 1  # `run_transformer` continues odd sides
    aliases: tuple[tuple[str, str], ...] = ()
    lora_base: LoraBase | None = LoraBase("sd3", "stable-diffusion-3", LoraNaming.KOHYA_FUSED, part="transformer")
    adapter_version: AdapterVersion | None = None
    folder = FOLDER

    def row_map_of(self, header: Header) -> RowMap | None:
        """See `ModelFamily`, as all methods here."""
        return transformer_rows(header)

    def detects(self, header: Header) -> bool:
        return is_transformer(header)

    def detects_denoiser(self, header: Header) -> bool:
        return is_transformer(header)

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        return "flow"

    def has_zero_snr(self, header: Header) -> bool:
        return False

    def as_told(self, architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
        return architecture

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        del config_folders
        return built(
            header,
            partial(clip_l_component, header),
            partial(clip_g_component, header),
            partial(t5_components, header),
            partial(self.denoiser_components, header, architecture),
            architecture.autoencoder.component,
        )

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        return (transformer_component(header, architecture.latent_side),)

    def conditioning(self, parts: TextParts) -> Conditioning:
        return ClipAndT5(parts)

    def noise_levels(
        self, trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]
    ) -> NoiseLevels:
        """The settings for downcast and zero-terminal-SNR mean nothing to flow models."""
        assert trained.flow_shift is not None, "a flow model's YAML has no shift"
        return FlowSchedule(trained.flow_shift, trained.timesteps)

    def guidance(self, denoiser: Any) -> GuidanceType:
        return GuidanceType.CFG

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        return run_transformer(denoiser, inputs)

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        return text_inputs(transformer_inputs(denoiser), self.context_tokens, shape, dtype, make)

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        return transformer_inputs(denoiser)

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        return None

    def takes_references(self, denoiser: Any, name: str) -> bool:
        return False

    def inpainting_input(self, masked: Tensor, mask: Tensor) -> Tensor:
        return mask_and_masked(masked, mask)

    def is_ignored(self, key: str) -> bool:
        return is_left_over(key) or key.startswith(UNUSED) or is_unused_of_t5(key)

    def notes_on_converting(self, entries: Header) -> tuple[str, ...]:
        return notes_on_converting(entries)

    def notes_on_merging(self, files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
        return notes_on_merging(files, result)
