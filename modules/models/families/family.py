"""A model family: everything that differs between SD1, SD2, SDXL ... stands in one entry of this registry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn

from modules.memory.formats import FORMATS
from modules.memory.storage import StorageRules
from modules.models.architecture import LdmArchitecture
from modules.models.layouts.keymaps.keymap import KeyMap
from modules.models.reading.tensor_file import TensorEntry
from modules.registry import Registry

Header = Mapping[str, TensorEntry]


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
class TextTowerRecipe:
    """How one text encoder is used.

    `layer_from_end` says which hidden states count, 1 being the last layer's; None: as the clip skip setting says, and
    with `skips_by_options` that decides where the setting "Clip skip SDXL" is on. `final_norm` applies the final layer
    norm to them. `pad_id` fills chunks up after the end token (None: with the end token); `pooled` begins the vector
    with the projected output at the end token.
    """

    component: str
    layer_from_end: int | None = None
    skips_by_options: bool = False
    final_norm: bool = True
    pad_id: int | None = None
    pooled: bool = False


@dataclass(frozen=True)
class DenoiserInputSizes:
    """What a network takes: channels of x, width of the tokens it attends to, width of the vector (None: takes none),
    and how many latents of a side lie in one of its patches."""

    channels: int
    context_width: int
    vector_width: int | None = None
    patch: int = 1


@dataclass(frozen=True)
class OptionalEncoder:
    """A text encoder that the models of a family can do without: one is read where a setting asks for it and a file
    holds it.

    `setting` is the key of that setting and `field` what images made with the encoder say of it. `tokenizer` gives
    the file of its tokenizer for a checkpoint, or raises `CheckpointError` that says which one belongs where;
    `missing` is what a user reads after the checkpoint's name, where no file holds the encoder.
    """

    component: str
    setting: str
    field: str
    tokenizer: Callable[[Path], Path]
    missing: str


class SizeVector(StrEnum):
    """What follows the pooled text in the vector that is added to the time embedding (Podell et al. 2023,
    arXiv:2307.01952): sinusoidal embeddings of these numbers."""

    NONE = "nothing"
    SIZES = "original size, crop, target size"
    AESTHETIC = "original size, crop, aesthetic score"


@dataclass(frozen=True)
class ConditioningRecipe:
    """From texts to what the UNet is given. The towers' outputs lie side by side on the feature axis."""

    towers: tuple[TextTowerRecipe, ...]
    sizes: SizeVector = SizeVector.NONE
    zero_empty_negative: bool = False  # a negative prompt without text becomes zeros
    joins_pooled: bool = False  # the vector begins with the pooled outputs of all towers, and not of the last alone
    extra_encoder: OptionalEncoder | None = None
    """The text encoder whose tokens follow those of the towers, as many as they have; zeros where the model has none.
    The towers' features are then filled up with zeros to the network's width."""


class ModelFamily(Protocol):
    """One kind of model."""

    @property
    def label(self) -> str:
        """For people: "SD 1.x"."""

    @property
    def is_large(self) -> bool:
        """Whether it is SDXL or larger: the setting "FP8 weight: Enable for SDXL" means these."""

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
    def recipe(self) -> ConditioningRecipe:
        """How texts become conditionings."""

    def detects(self, header: Header) -> bool:
        """Whether the names and shapes in a file's header are of this family."""

    def prediction_type(self, header: Header, metadata: Mapping[str, str]) -> str | None:
        """ "epsilon" or "v_prediction" where the file says it; "probe" where only a run of the network can tell; None:
        as the YAML says."""

    def components(
        self, header: Header, architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """The empty modules to fill. `config_folders` are searched for a text model's folder that the YAML names."""

    def run(self, adapter: Any, x: Tensor, timesteps: Tensor, crossattn: Tensor, vector: Tensor | None) -> Tensor:
        """The network's prediction for x [B,C,h,w], of its shape, at `timesteps` [B]; `crossattn` [B,tokens,width],
        `vector` [B,V] for families that have one."""

    def input_sizes(self, adapter: Any) -> DenoiserInputSizes:
        """What this network takes."""

    def is_ignored(self, key: str) -> bool:
        """Tensors of the file that no module needs: training leftovers, schedules that follow from the YAML."""


FAMILIES: Registry[ModelFamily] = Registry("model family")
