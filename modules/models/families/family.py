"""What a model family is: everything that differs between the architectures of checkpoints.

Each family is in a folder of its own next to this file, and `registry.FAMILIES` lists them; no other code names one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.models.families.adapter_version import AdapterVersion
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header
from modules.models.names.folder_layout import FolderLayout
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import TokenCounting
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.prompting.conditioning import TextConditioner
from modules.sampling.flow import NoiseLevels
from modules.settings.values import Settings


@dataclass(frozen=True)
class DenoiserInputSizes:
    """What a denoiser takes: channels of x, width of the tokens it attends to, the vector's width (None: has none)."""

    channels: int
    context_width: int
    vector_width: int | None = None


@dataclass(frozen=True)
class OptionalEncoder:
    """A text encoder that the models of a family can do without: one is read where a setting asks for it and a file
    holds it.

    `setting` is the key of that setting and `field` what images made with the encoder say of it. `tokenizer`
    gives its tokenizer for a checkpoint and a number of tokens that the encoder knows, or raises `CheckpointError` that
    says which one belongs where;
    `missing` is what a user reads after the checkpoint's name, where no file holds the encoder. `adapter_names` are
    the beginnings of what adapters call its layers, and `level` that of its tensors, and of what is alongside them,
    in a whole checkpoint.
    """

    component: str
    setting: str
    field: str
    tokenizer: Callable[[Path, int], object]
    missing: str
    adapter_names: tuple[str, ...]
    level: str


@dataclass(frozen=True)
class ExternalTextEncoder:
    """A text encoder that may be in a file of its own: the name of the file, or with `any_ending` its beginning, and
    the prefix of its names in a whole checkpoint.

    `is_part`: it has transformers' names, and is looked for where the checkpoint is a denoiser alone; the folder
    layout of its family says what its tensors are called in a whole one. One that is no part has the names of a whole
    checkpoint, and is added to those that have the tensor `wanted_by`. Such a file is known by its `type` (see
    `text_encoders.file_names`) and the `width` of tokens that the denoiser in a header takes, where these are given; of
    several the one whose name begins with `stem` is taken first. `title` says for people which encoder that is.
    """

    stem: str
    prefix: str
    wanted_by: str = ""
    any_ending: bool = False
    is_optional: bool = False
    is_part: bool = False
    type: str = ""
    width: Callable[[Header], int | None] | None = None
    title: str = ""

    @property
    def hint(self) -> str:
        """What to do where it is missing."""
        return (
            f"It needs {self.title}: put its file (safetensors or GGUF) into models/text_encoder, where it is found by "
            "itself, or choose it in VAE / Text encoder."
        )


@dataclass(frozen=True)
class ExternalVae:
    """The VAE of a family whose models come as a denoiser alone: the name of its type in `autoencoders.registry`, the
    channels of its own latents, what names of such files begin with (of several that fit, the first named so is
    taken), and what people call it."""

    type: str
    channels: int
    stems: tuple[str, ...]
    title: str

    @property
    def hint(self) -> str:
        """What to do where it is missing."""
        return (
            f"It needs {self.title}: put its file into models/VAE, where it is found by itself, or choose it in VAE / "
            "Text encoder."
        )


@dataclass(frozen=True)
class UsualSettings:
    """What models of a family are usually sampled with; `distilled_cfg_scale`: None where it is no input."""

    steps: int
    cfg_scale: float = 1.0
    distilled_cfg_scale: float | None = None
    sampler: str = "Euler"
    scheduler: str = "Simple"

    @property
    def infotext(self) -> str:
        """As an infotext says it."""
        guidance = "" if self.distilled_cfg_scale is None else f", Distilled CFG Scale: {self.distilled_cfg_scale:g}"
        return (
            f"Steps: {self.steps}, Sampler: {self.sampler}, Schedule type: {self.scheduler}, "
            f"CFG scale: {self.cfg_scale:g}{guidance}"
        )


class LoraNaming(Enum):
    """Names of layers in adapter files that all programs for a family read."""

    KOHYA = "lora_unet_ and the path in diffusers' module, with underscores"
    KOHYA_ORIGINAL = "lora_unet_ and the path in the original layout, with underscores"
    KOHYA_FUSED = "as KOHYA_ORIGINAL; layers that are one in the original layout are one in the file"
    PEFT = "unet. or transformer. and the path in diffusers' module, with lora_A and lora_B"
    DOTTED = "diffusion_model. and the path in diffusers' module, with lora_A and lora_B"
    DOTTED_ORIGINAL = "diffusion_model. and the path in the original layout, with lora_A and lora_B"


@dataclass(frozen=True)
class LoraBase:
    """What the metadata of LoRAs calls the models that they were trained on: `ss_base_model_version`, and the beginning
    of `modelspec.architecture`; `naming` is what their files call the layers. Trained are linear layers with one of
    `blocks` in their path, but for those that scale and shift by the time. diffusers calls the denoiser `part`."""

    version: str
    architecture: str
    naming: LoraNaming = LoraNaming.KOHYA
    blocks: tuple[str, ...] = (".attentions.", "transformer_blocks.")
    part: str = "unet"


class GuidanceType(Enum):
    """How a denoiser is told how closely to follow the prompt."""

    CFG = "a second call with the negative prompt, see `processing.pipeline.guidance`; none at a CFG scale of 1"
    CFG_RESCALED = "as CFG; what comes of it is as long, token by token, as what the prompt alone predicts"
    DISTILLED = "the distilled CFG scale is an input, `guidance` in `ModelInputs.extra`; CFG comes on top of it"
    NONE = "not at all: the denoiser was trained to be called once, without a scale"


def mask_and_masked(masked: Tensor, mask: Tensor) -> Tensor:
    """`ModelFamily.inpainting_input` of models that see the mask as one channel before the latents."""
    return torch.cat([F.interpolate(mask, size=masked.shape[-2:]).to(masked), masked], dim=1)


Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor of a shape and dtype."""


def text_inputs(
    sizes: DenoiserInputSizes, tokens: int, shape: tuple[int, int, int], dtype: torch.dtype, make: Make
) -> ModelInputs:
    """`ModelFamily.example_inputs` of a denoiser that takes latents, time, `tokens` tokens and maybe a vector."""
    rows, height, width = shape
    return ModelInputs(
        make((rows, sizes.channels, height, width), dtype),
        make((rows,), torch.float32),
        make((rows, tokens, sizes.context_width), dtype),
        make((rows, sizes.vector_width), dtype) if sizes.vector_width else None,
    )


Conditioning = Callable[[TextRequest], TextConditioner]
"""Made once for a loaded model, asked once for a job."""


class ModelFamily(Protocol):
    """Everything that differs between one architecture of models and another. Read-only attributes are facts."""

    @property
    def label(self) -> str:
        """For people."""

    @property
    def is_large(self) -> bool:
        """Whether its weights are those of a large model: for such the user can ask for 8 bits and streaming alone."""

    @property
    def leaves_fp16(self) -> bool:
        """Whether its activations go beyond fp16's largest number, 65504, and become NaN there: such models compute in
        bf16 or fp32."""

    @property
    def schedule_table(self) -> tuple[float, ...]:
        """The sigmas that Align Your Steps published for such models, from the largest, without the final 0."""

    @property
    def config_name(self) -> str:
        """The YAML in `configs/` for files without one of their own."""

    @property
    def v_latent_side(self) -> int | None:
        """The side of the latents that its models with v prediction were trained on, if that is another."""

    @property
    def tiny_vae(self) -> str:
        """What files of tiny autoencoders for its latents are called: "taesd" for `taesd_decoder.safetensors`."""

    @property
    def approx_vae(self) -> str:
        """What the file of the approximate decoder for its latents is called, without suffix."""

    @property
    def embedding_components(self) -> tuple[str, ...]:
        """The text encoders that take the vectors of textual inversion."""

    @property
    def optional_encoder(self) -> OptionalEncoder | None:
        """The text encoder that its models can do without, if it has one."""

    @property
    def external_encoders(self) -> tuple[ExternalTextEncoder, ...]:
        """Its text encoders that may be in files of their own."""

    @property
    def external_vae(self) -> ExternalVae | None:
        """Its VAE, where that often is a file of its own."""

    @property
    def aliases(self) -> tuple[tuple[str, str], ...]:
        """Beginnings of names that whole files have for a part, and that by which the part is known here."""

    @property
    def lora_base(self) -> LoraBase | None:
        """How LoRAs that are trained for its models say so; None: none can be trained."""

    @property
    def adapter_version(self) -> AdapterVersion | None:
        """How adapters for its models are known by their metadata; None: model cards have no word for the family."""

    @property
    def latent_multiple(self) -> int:
        """Latent units that the sides of its latents are multiples of; 1: any size can be computed."""

    @property
    def context_tokens(self) -> int:
        """Tokens that the denoiser attends to for a prompt of one chunk."""

    @property
    def reads_weights(self) -> bool:
        """Whether weights in a prompt, as in (word:1.3), do anything for its models."""

    @property
    def reads_breaks(self) -> bool:
        """Whether BREAK does: where texts are encoded in chunks."""

    @property
    def counting(self) -> TokenCounting:
        """How the tokens of a prompt for its models are counted."""

    @property
    def folder(self) -> FolderLayout:
        """How a folder of diffusers with such a model is known and read."""

    @property
    def row_map_of(self) -> Callable[[Header], RowMap | None]:
        """The row map of the tensors in a file's header that are fused or in another order than in our modules; None
        for other families' headers, and for families whose key maps are written by hand."""

    def detects(self, header: Header) -> bool:
        """Whether the names and shapes in a file's header are of this family."""

    def detects_denoiser(self, header: Header) -> bool:
        """Whether the denoiser in a file's header is of this family; its text encoders may be in other files."""

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        """ "epsilon" or "v_prediction" where the file says it; "probe" where only a run of the denoiser can tell; None:
        as the YAML says."""

    def has_zero_snr(self, header: Header) -> bool:
        """Whether the file says that its last timestep is pure noise."""

    def as_told(self, architecture: LdmArchitecture, file: TensorSource) -> LdmArchitecture:
        """The architecture with what the values of small tensors in the file say of noise levels and latents."""

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """The empty modules to fill. `config_folders` are searched for a text model's folder that the YAML names."""

    def denoiser_components(self, header: Header, architecture: LdmArchitecture) -> tuple[Component, ...]:
        """Those of them that a file fills which is a denoiser alone."""

    def conditioning(self, parts: TextParts) -> Conditioning:
        """How the texts of one loaded model become conditionings."""

    def noise_levels(
        self, trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]
    ) -> NoiseLevels:
        """The noise levels of a model for latents of this size (height, width)."""

    def guidance(self, denoiser: Any) -> GuidanceType:
        """How this denoiser is guided."""

    def run(self, denoiser: Any, inputs: ModelInputs) -> Tensor:
        """The denoiser's prediction, of the shape of `inputs.x`. Where a denoiser takes patches in a row and not an
        image, they are packed and unpacked here."""

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        """Inputs of a model call for `shape` (rows, height, width in latent units), for the memory estimate: what they
        hold does not matter."""

    def input_sizes(self, denoiser: Any) -> DenoiserInputSizes:
        """What this denoiser takes."""

    def usual_settings(self, denoiser: Any, name: str) -> UsualSettings | None:
        """What this denoiser, of a checkpoint of this name, is usually sampled with, for the page to offer; None:
        nothing that the form does not begin with."""

    def takes_references(self, denoiser: Any, name: str) -> bool:
        """Whether this denoiser, of a checkpoint of this name, is shown the image of img2img next to the one that it
        makes: then its scaled latents are `reference` in `ModelInputs.extra`."""

    def inpainting_input(self, masked: Tensor, mask: Tensor) -> Tensor:
        """What an inpainting model is shown behind its latents [1,C,h,w]: from the scaled latents `masked` of the image
        without what is painted, and `mask` [1,1,H,W] of pixels, 1 where it is."""

    def is_ignored(self, key: str) -> bool:
        """Tensors of the file that no module needs: training leftovers, schedules that follow from the YAML."""

    def notes_on_converting(self, entries: Header) -> tuple[str, ...]:
        """What a user should know where a checkpoint of these tensors is saved in another format."""

    def notes_on_merging(self, files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
        """What a user should know where `files` become one with the names `result`; the first gives the names."""
