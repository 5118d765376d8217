"""What a model family is: everything that differs between the architectures of checkpoints.

Each family is in a folder of its own next to this file, and `registry.FAMILIES` lists them; no other code names one.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from modules.memory.formats import FORMATS
from modules.memory.storage import StorageRules
from modules.models.architecture import LdmArchitecture, NoiseScheduleArchitecture
from modules.models.denoiser_context import ModelInputs
from modules.models.families.adapter_version import AdapterVersion
from modules.models.layouts.folder_layout import FolderLayout
from modules.models.layouts.keymaps.keymap import KeyMap
from modules.models.layouts.row_map import RowMap
from modules.models.reading.tensor_file import TensorEntry
from modules.models.reading.tensor_source import TensorSource
from modules.prompting.conditioning import TextConditioner
from modules.prompting.embeddings import EmbeddingTable
from modules.prompting.encode import TextOptions
from modules.prompting.tokens import ClipTokenizer
from modules.sampling.flow import NoiseLevels
from modules.settings.values import Settings

Header = Mapping[str, TensorEntry]


INITIALISERS = frozenset({nn.init.constant_, nn.init.kaiming_uniform_, nn.init.normal_, nn.init.uniform_})
"""Those of PyTorch's initialisers that can be told apart from what they call; the others end in one of these, or in a
method of a tensor without numbers."""


class _WithoutValues(TorchFunctionMode):
    """Initialisers return at once."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func in INITIALISERS:
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


@contextmanager
def on_meta() -> Iterator[None]:
    """Tensors made in here are on the meta device, and no time is spent on how their numbers would be drawn."""
    with torch.device("meta"), _WithoutValues():
        yield


@dataclass(frozen=True)
class Component:
    """A part of a model as it is to be built: an empty module on the meta device and how the file names its tensors.

    `prefixes` are the beginnings of the original keys that belong to it; `missing_hint` says what a file without any
    of them probably is. `plain_skip` are patterns of layers that formats without scales leave alone, because the
    reference UI does; `skip` of those that every 8-bit format does.
    """

    name: str  # "unet", "vae", "text_encoder", "text_encoder_2"
    module: nn.Module
    keymap: KeyMap
    prefixes: tuple[str, ...]
    missing_hint: str
    plain_skip: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    def rules(self, rules: StorageRules | None) -> StorageRules | None:
        """`rules` with the patterns of this component's own added."""
        if rules is None or not (self.skip or self.plain_skip):
            return rules
        own = self.skip if FORMATS.get(rules.storage).scaled else (*self.skip, *self.plain_skip)
        return replace(rules, skip=replace(rules.skip, patterns=(*rules.skip.texts, *own)))


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

    `setting` is the key of that setting and `field` what images made with the encoder say of it. `tokenizer` gives
    the file of its tokenizer for a checkpoint, or raises `CheckpointError` that says which one belongs where;
    `missing` is what a user reads after the checkpoint's name, where no file holds the encoder. `adapter_names` are
    the beginnings of what adapters call its layers, and `level` that of its tensors, and of what is alongside them,
    in a whole checkpoint.
    """

    component: str
    setting: str
    field: str
    tokenizer: Callable[[Path], Path]
    missing: str
    adapter_names: tuple[str, ...]
    level: str


@dataclass(frozen=True)
class ExternalTextEncoder:
    """A text encoder that may be in a file of its own: the name of the file, or with `any_ending` its beginning, the
    prefix of its names in a whole checkpoint, and a tensor of the checkpoints that want it.

    `is_part`: it has transformers' names, and is looked for where the checkpoint is a denoiser alone; the folder
    layout of its family says what its tensors are called in a whole one.
    """

    stem: str
    prefix: str
    wanted_by: str
    any_ending: bool = False
    is_optional: bool = False
    is_part: bool = False


class LoraNaming(Enum):
    """Names of layers in adapter files that all programs for a family read."""

    KOHYA = "lora_unet_ and the path in diffusers' module, with underscores"
    KOHYA_ORIGINAL = "lora_unet_ and the path in the original layout, with underscores"
    KOHYA_FUSED = "as KOHYA_ORIGINAL; layers that are one in the original layout are one in the file"
    PEFT = "unet. or transformer. and the path in diffusers' module, with lora_A and lora_B"


@dataclass(frozen=True)
class LoraBase:
    """What the metadata of LoRAs calls the models that they were trained on: `ss_base_model_version`, and the beginning
    of `modelspec.architecture`; `naming` is what their files call the layers."""

    version: str
    architecture: str
    naming: LoraNaming = LoraNaming.KOHYA


class GuidanceType(Enum):
    """How a denoiser is told how closely to follow the prompt."""

    CFG = "a second call with the negative prompt, see `processing.pipeline.guidance`"
    DISTILLED = "the scale is an input of the denoiser, `guidance` in `ModelInputs.extra`; there is no negative prompt"
    NONE = "not at all: the denoiser was trained to be called once, without a scale"


@dataclass(frozen=True, eq=False)
class TextParts:
    """What the texts of one loaded model are encoded with: its text encoders by component, the tokenizer of CLIP, the
    device that computes, the path of the checkpoint, and the width of the tokens that the denoiser takes."""

    encoders: Mapping[str, Any]
    tokenizer: ClipTokenizer
    device: torch.device
    checkpoint: Path
    context_width: int


@dataclass(frozen=True, eq=False)
class TextRequest:
    """What a job asks of the text encoders: embeddings by the width of an encoder, the options, all settings, and the
    size of the image (width, height). With `has_gradients` CLIP's encodings can be trained through."""

    embeddings: Mapping[int, EmbeddingTable]
    options: TextOptions
    settings: Settings
    size_px: tuple[int, int]
    has_gradients: bool = False


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

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """The empty modules to fill. `config_folders` are searched for a text model's folder that the YAML names."""

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

    def is_ignored(self, key: str) -> bool:
        """Tensors of the file that no module needs: training leftovers, schedules that follow from the YAML."""

    def notes_on_converting(self, entries: Header) -> tuple[str, ...]:
        """What a user should know where a checkpoint of these tensors is saved in another format."""

    def notes_on_merging(self, files: Sequence[TensorSource], result: Collection[str]) -> tuple[str, ...]:
        """What a user should know where `files` become one with the names `result`; the first gives the names."""
