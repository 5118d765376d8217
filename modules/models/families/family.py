"""A model family: everything that differs between the architectures of checkpoints.

Each family is in a folder of its own next to this file, and `registry.FAMILIES` lists them; no other code names one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import CheckpointError
from modules.models.autoencoders.autoencoder import Autoencoder
from modules.models.detection.families import PREFIX, VAE_QWEN, FamilySigns, Need
from modules.models.detection.parts import own_channels
from modules.models.families.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.families.denoiser_context import ModelInputs
from modules.models.files.tensor_source import TensorSource
from modules.models.names.component import Component, Header, built
from modules.models.names.folder_layout import FolderLayout
from modules.models.names.row_map import RowMap
from modules.models.text_encoders.counting import BY_CHUNKS, TokenCounting
from modules.models.text_encoders.encoding import TextParts, TextRequest
from modules.models.text_encoders.vision import EDITED_PIXELS
from modules.models.text_encoders.writing import Writing
from modules.prompting.chunks import CHUNK_TOKENS
from modules.prompting.conditioning import TextConditioner
from modules.sampling.flow import FlowSchedule, NoiseLevels
from modules.sampling.schedules import ALIGN_YOUR_STEPS_1024
from modules.settings.values import Settings

LEFT_OVER = re.compile(
    r"^model_ema\.|^(alphas|betas|sqrt|log_one_minus|posterior|logvar|scale_factor|lvlb_weights)[a-z0-9_]*$"
    r"|^denoiser\.|^first_stage_model\.loss\.|\.position_ids$|\.attn_mask$|\.logit_scale$|^(v_pred|ztsnr)$"
    r"|^cond_stage_model\.text_projection|^edm_(mean|std|vpred\.sigma_(min|max))$"
)


@dataclass(frozen=True)
class DenoiserInputSizes:
    """The sizes of a denoiser's inputs: channels of x, width of the tokens it attends to, the vector's width (None: has
    none)."""

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
    the beginnings of what adapters call its layers, and `level` that of its tensors, and of what is next to them,
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
    checkpoint, and is added to it. Such a file is known by what its family `need`s, where that is given; of several the
    one whose name begins with `stem` is taken first. `forms`: what its files may be.
    """

    stem: str
    prefix: str
    any_ending: bool = False
    is_optional: bool = False
    is_part: bool = False
    need: Need | None = None
    forms: str = "safetensors or GGUF"

    @property
    def type(self) -> str:
        """The type of the encoder, see `detection.parts.Part`; "" where files of it are known by name alone."""
        return "" if self.need is None or not self.is_part else self.need.type

    @property
    def title(self) -> str:
        """Its name for people."""
        return "" if self.need is None else self.need.title

    def width(self, header: Header) -> int | None:
        """Return how wide its tokens are for the denoiser in a header; None for any."""
        return None if self.need is None else self.need.width_in(header)

    @property
    def hint(self) -> str:
        """Return what to do if it is missing."""
        return (
            f"It needs {self.title}: put its file ({self.forms}) into models/text_encoder, where it is found by "
            "itself, or choose it in VAE / Text encoder."
        )


@dataclass(frozen=True)
class ExternalVae:
    """The VAE of a family whose models come as a denoiser alone: what the family needs, and what names of such files
    begin with (of several that fit, the first named so is taken)."""

    need: Need
    stems: tuple[str, ...]

    @property
    def hint(self) -> str:
        """Return what to do if it is missing."""
        return (
            f"It needs {self.need.title}: put its file into models/VAE, where it is found by itself, or choose it in "
            "VAE / Text encoder."
        )


@dataclass(frozen=True)
class UsualSettings:
    """The settings with which models of a family are usually sampled; `distilled_cfg_scale`: None if it is no input."""

    steps: int
    cfg_scale: float = 1.0
    distilled_cfg_scale: float | None = None
    sampler: str = "Euler"
    scheduler: str = "Simple"

    @property
    def infotext(self) -> str:
        """Return the settings as an infotext."""
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
    """The names in the metadata of LoRAs for the models that they were trained on: `ss_base_model_version`, and the
    beginning of `modelspec.architecture`; `naming` is what their files call the layers. Trained are linear layers with
    one of `blocks` in their path, except those that scale and shift by the time. diffusers calls the denoiser
    `part`."""

    version: str
    architecture: str
    naming: LoraNaming = LoraNaming.KOHYA
    blocks: tuple[str, ...] = (".attentions.", "transformer_blocks.")
    part: str = "unet"


class GuidanceType(Enum):
    """How a denoiser receives how closely to follow the prompt."""

    CFG = "a second call with the negative prompt, see `processing.pipeline.guidance`; none at a CFG scale of 1"
    CFG_RESCALED = "as CFG; what comes of it is as long, token by token, as what the prompt alone predicts"
    DISTILLED = "the distilled CFG scale is an input, `guidance` in `ModelInputs.extra`; CFG comes on top of it"
    NONE = "not at all: the denoiser was trained to be called once, without a scale"


def is_left_over(key: str) -> bool:
    """Return whether a tensor is of the training, or follows from the YAML."""
    return LEFT_OVER.search(key) is not None


def mask_and_masked(masked: Tensor, mask: Tensor) -> Tensor:
    """Return the input of inpainting models that see the mask as one channel before the latents."""
    return torch.cat([F.interpolate(mask, size=masked.shape[-2:]).to(masked), masked], dim=1)


def context_width(header: Header) -> int | None:
    """Return how wide the tokens are that a denoiser with a `txt_in` takes; None for other files."""
    entry = header.get(f"{PREFIX}txt_in.weight")
    return entry.shape[1] if entry is not None and len(entry.shape) == 2 else None


def check_heads(width: int, head: int, usual: int) -> None:
    """Raise `CheckpointError` for a transformer whose heads are not `usual` wide, or that is no whole number of heads
    wide."""
    if head != usual or width % head:
        raise CheckpointError(
            f"its transformer is {width} wide with heads of {head}, and that of such models has a whole number of "
            f"heads of {usual}. Choose another file."
        )


Make = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Makes a tensor of a shape and dtype."""
Conditioning = Callable[[TextRequest], TextConditioner]
"""Made once for a loaded model, asked once for a job."""
Built = Component | tuple[Component, ...]
BuildEncoder = Callable[[Header, LdmArchitecture, tuple[Path, ...]], Built]
"""Makes the empty text encoders for a header, its architecture and the folders for text models that a YAML names."""


@dataclass(frozen=True)
class Blocks:
    """The classes of a denoiser's blocks, by their names in diffusers.

    `decoded`: those whose 8-bit weights are decoded together, and `compiled`: those that are compiled, besides the ones
    that the library itself says are repeated. `stacked`: those with equal `transformer_blocks` one after the other.
    `mergeable`: those whose `attn1` is self-attention over the tokens of the image.
    """

    decoded: tuple[str, ...] = ("TimestepEmbedding",)
    compiled: tuple[str, ...] = ()
    stacked: str = ""
    mergeable: str = ""


@dataclass(frozen=True, kw_only=True)
class Denoiser:
    """The denoiser of a family's models.

    `build` makes the empty components that a file fills which is a denoiser alone. `run` calls it: a prediction of the
    shape of `ModelInputs.x`; where it takes patches in a row and not an image, they are packed and unpacked there.
    `sizes` says what it takes. `rows`: the row map of the tensors in a header of this family that are fused or in
    another order than in our modules; None where the key map is written by hand. `guidance`: how it is guided.
    `usual_settings`: what a denoiser, of a checkpoint of this name, is usually sampled with, for the page to offer;
    None: nothing that the form does not begin with. `takes_references`: whether a denoiser, of a checkpoint of this
    name, is shown the image of img2img next to the one that it makes: then its scaled latents are `reference` in
    `ModelInputs.extra`. `inpainting_input`: what an inpainting model is shown behind its latents [1,C,h,w], from the
    scaled latents of the image without what is painted, and a mask [1,1,H,W] of pixels, 1 where that is.
    `reads_end`: whether a denoiser receives the end of the step that it is called for, as `END` in `ModelInputs.extra`.
    `references_in_text`: whether references have places in the text that a language model sees them with: without its
    vision tower they cannot be taken, and the model was not trained to edit alone.
    `edits_by_adapter`: whether it edits by adapters alone: it is shown the references that are given, as the adapter
    was trained (see `AdapterFiles.references_shown_as`), and not the image of img2img.
    `runs_on_meta`: whether a call asks no tensor for its device, so that tensors on the meta device can stand in.
    """

    build: Callable[[Header, LdmArchitecture], tuple[Component, ...]]
    run: Callable[[Any, ModelInputs], Tensor]
    sizes: Callable[[Any], DenoiserInputSizes]
    rows: Callable[[Header], RowMap] | None = None
    guidance: Callable[[Any], GuidanceType] = lambda denoiser: GuidanceType.CFG
    usual_settings: Callable[[Any, str], UsualSettings | None] = lambda denoiser, name: None
    takes_references: Callable[[Any, str], bool] = lambda denoiser, name: False
    reads_end: Callable[[Any], bool] = lambda denoiser: False
    inpainting_input: Callable[[Tensor, Tensor], Tensor] = mask_and_masked
    blocks: Blocks = Blocks()
    references_in_text: bool = False
    edits_by_adapter: bool = False
    runs_on_meta: bool = False


@dataclass(frozen=True, kw_only=True)
class Texts:
    """How the models of a family read prompts.

    `encoders` make its text encoders. `conditioning`: how the texts of one loaded model become conditionings. `tokens`:
    how many the denoiser attends to for a prompt of one chunk; `counting`: how those of a prompt are counted.
    `reads_weights`: whether weights in a prompt, as in (word:1.3), do anything; `reads_breaks`: whether BREAK does.
    `embedding_components`: the text encoders that take the vectors of textual inversion. `optional`: the text encoder
    that its models can do without. `external`: the text encoders that may be in files of their own. `tower`: what the
    language model sees images with, from a header with the names of a whole checkpoint; raises `CheckpointError` that
    says what is missing. `shown_pixels`: how large one of so many images is that a model of this name is shown.
    `writing`: how it writes; None: it only reads.
    """

    encoders: tuple[BuildEncoder, ...]
    conditioning: Callable[[TextParts], Conditioning]
    tokens: int = CHUNK_TOKENS
    counting: TokenCounting = BY_CHUNKS
    reads_weights: bool = False
    reads_breaks: bool = False
    embedding_components: tuple[str, ...] = ()
    optional: OptionalEncoder | None = None
    external: tuple[ExternalTextEncoder, ...] = ()
    tower: Callable[[Header], Component] | None = None
    shown_pixels: Callable[[str, int], int] = lambda name, count: EDITED_PIXELS
    writing: Writing | None = None


@dataclass(frozen=True)
class Latents:
    """The latents of a family's models.

    `tiny_vae` is what files of tiny autoencoders for them are called ("taesd" for `taesd_decoder.safetensors`), and
    `approx_vae` the file of the approximate decoder, without suffix. `external`: the VAE, where that often is a file of
    its own. `multiple`: latent units that their sides are multiples of; 1: any size can be computed.
    """

    tiny_vae: str
    approx_vae: str
    external: ExternalVae | None = None
    multiple: int = 1


def flow_levels(trained: NoiseScheduleArchitecture, settings: Settings, latent_size: tuple[int, int]) -> NoiseLevels:
    """Return the noise levels of a flow model. The settings for downcast and zero-terminal-SNR mean nothing to it."""
    assert trained.flow_shift is not None, "a flow model's YAML has no shift"
    return FlowSchedule(trained.flow_shift, trained.timesteps, table=trained.flow_table)


@dataclass(frozen=True, kw_only=True)
class Noise:
    """The noise that a family's models were trained on; what is not given is that of models that predict a flow.

    `levels` are the noise levels of a model for latents of a size (height, width). `prediction_type`: "epsilon" or
    "v_prediction" where a header or its metadata says it; "probe" where only a run of the denoiser can tell; None: as
    the YAML says. `has_zero_snr`: whether a header says that the last timestep is pure noise. `told`: the architecture
    with what the values of small tensors in the file say of noise levels and latents. `schedule_table`: the sigmas that
    Align Your Steps published for such models, from the largest, without the final 0. `v_latent_side`: the side of the
    latents that models with v prediction were trained on, if that is another.
    """

    levels: Callable[[NoiseScheduleArchitecture, Settings, tuple[int, int]], NoiseLevels] = flow_levels
    prediction_type: Callable[[Header, Mapping[str, str]], str | None] = lambda header, metadata: "flow"
    has_zero_snr: Callable[[Header], bool] = lambda header: False
    told: Callable[[LdmArchitecture, TensorSource], LdmArchitecture] = lambda architecture, file: architecture
    schedule_table: tuple[float, ...] = ALIGN_YOUR_STEPS_1024
    v_latent_side: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelFamily:
    """Everything that differs between one architecture of models and another.

    `config_name`: the YAML in `configs/` for files without one of their own. `folder`: how a folder of diffusers with
    such a model is read. `is_large`: whether the user can ask for 8 bits and streaming for large models alone, and
    these are such. `leaves_fp16`: whether its activations go beyond fp16's largest number, 65504, and become NaN there:
    such models compute in bf16 or fp32. `aliases`: beginnings of names that whole files have for a part, and that by
    which the part is known here. `lora_base`: how LoRAs that are trained for its models say so; None: none can be
    trained. `grown`: by the number of blocks of a denoiser those that were inserted between the blocks of a smaller
    one, whose adapters do not count them. `is_ignored`: which tensors of a file no module needs. `notes_on_converting`
    and `notes_on_merging`: what a user should know where a checkpoint of these tensors is saved in another format, and
    where files become one with these names; the first gives the names.
    """

    signs: FamilySigns
    denoiser: Denoiser
    texts: Texts
    latents: Latents
    folder: FolderLayout
    config_name: str
    noise: Noise = Noise()
    is_large: bool = True
    leaves_fp16: bool = False
    aliases: tuple[tuple[str, str], ...] = ()
    lora_base: LoraBase | None = None
    grown: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    is_ignored: Callable[[str], bool] = is_left_over
    notes_on_converting: Callable[[Header], tuple[str, ...]] = lambda entries: ()
    notes_on_merging: Callable[[Sequence[TensorSource], Collection[str]], tuple[str, ...]] = lambda files, result: ()

    @property
    def label(self) -> str:
        """The name for people."""
        return self.signs.label

    def row_map_of(self, header: Header) -> RowMap | None:
        """Return the row map of a file's header; None for other families' headers, and where there is none."""
        return self.denoiser.rows(header) if self.denoiser.rows and self.signs.has_denoiser(header) else None

    def components(
        self, header: Header, architecture: LdmArchitecture, folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """Make the empty modules to fill. `folders` are searched for a text model's folder that the YAML names."""
        vae, external = architecture.autoencoder, self.latents.external
        return built(
            header,
            *(partial(build, header, architecture, folders) for build in self.texts.encoders),
            partial(self.denoiser.build, header, architecture),
            vae.component if external is None else partial(_vae_component, vae, header, external),
        )

    def example_inputs(self, denoiser: Any, shape: tuple[int, int, int], dtype: torch.dtype, make: Make) -> ModelInputs:
        """Make inputs of a call for `shape` (rows, height, width in latent units), for the memory estimate: what they
        hold does not matter."""
        sizes, (rows, height, width) = self.denoiser.sizes(denoiser), shape
        inputs = ModelInputs(
            make((rows, sizes.channels, height, width), dtype),
            make((rows,), torch.float32),
            make((rows, self.texts.tokens, sizes.context_width), dtype),
            make((rows, sizes.vector_width), dtype) if sizes.vector_width else None,
        )
        if self.denoiser.guidance(denoiser) is GuidanceType.DISTILLED:
            inputs = replace(inputs, extra={"guidance": make((rows,), torch.float32)})
        return inputs


def _vae_component(autoencoder: Autoencoder, header: Header, external: ExternalVae) -> Component:
    """Make the VAE on the meta device. Raises `CheckpointError` for one whose latents the denoiser does not take."""
    component = autoencoder.component()
    held = own_channels(header)
    if held is not None and held != external.need.width:
        path = next((e.file for key, e in header.items() if key.startswith(component.prefixes) and e.file), None)
        raise CheckpointError(
            f"its VAE{f' {path.name}' if path else ''} has latents of {held} channels, and the model takes "
            f"{external.need.width}. {external.hint}"
        )
    return replace(component, missing_hint=external.hint)


def denoiser_alone(make: Callable[[Header], Component]) -> Callable[[Header, LdmArchitecture], tuple[Component, ...]]:
    """Return `Denoiser.build` for a denoiser that its header says all of."""
    return lambda header, architecture: (make(header),)


def usual_by_name(
    words: tuple[str, ...], named: UsualSettings, others: UsualSettings
) -> Callable[[Any, str], UsualSettings]:
    """Return `Denoiser.usual_settings` where one of these words in the name of a checkpoint tells that it was
    distilled, or was not."""
    return lambda denoiser, name: named if any(word in name.lower() for word in words) else others


QWEN_IMAGE_VAE = ExternalVae(VAE_QWEN, ("qwen_image", "wan"))
