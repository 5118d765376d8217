"""A model family: everything that differs between SD1, SD2, SDXL ... stands in one entry of this registry."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import nn

from modules.models.architecture import LdmArchitecture
from modules.models.keymaps.keymap import KeyMap
from modules.models.tensor_file import TensorEntry
from modules.registry import Registry


@dataclass(frozen=True)
class Component:
    """A part of a model as it is to be built: an empty module on the meta device and how the file names its tensors.

    `prefixes` are the beginnings of the original keys that belong to it; `missing_hint` says what a file without any
    of them probably is.
    """

    name: str  # "unet", "vae", "text_encoder"
    module: nn.Module
    keymap: KeyMap
    prefixes: tuple[str, ...]
    missing_hint: str


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

    def detects(self, header: Mapping[str, TensorEntry]) -> bool:
        """Whether the names and shapes in a file's header are of this family."""

    def components(
        self, header: Mapping[str, TensorEntry], architecture: LdmArchitecture, config_folders: tuple[Path, ...]
    ) -> tuple[Component, ...]:
        """The empty modules to fill. `config_folders` are searched for a text model's folder that the YAML names."""

    def is_ignored(self, key: str) -> bool:
        """Tensors of the file that no module needs: training leftovers, schedules that follow from the YAML."""


FAMILIES: Registry[ModelFamily] = Registry("model family")
