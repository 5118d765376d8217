"""Names that extensions import from the files of the reference UI's extension for LoRA (`networks`, `network`, `lora`,
`extensions-builtin.Lora...`): the files that there are, by their names, aliases and metadata. What puts them on a model
is the program's own."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Any

from compat.facades.refusal import refusing
from compat.host import host_now
from compat.looked_up import LookedUp
from modules.adapters.catalogue import AdapterInfo
from modules.model_cards.training_facts import readable_metadata, version_of

_INSIDE = (
    "adapters are put on the model by the program; `<lora:name:weight>` in a prompt asks for one, and p.prompts may "
    "hold it."
)


class SdVersion(Enum):
    """For which models a file was made, as far as it says so."""

    Unknown = 1
    SD1 = 2
    SD2 = 3
    SDXL = 4


class NetworkOnDisk:
    """A file. `alias` is what its author called it, `metadata` what stands in it, with JSON read. `hash` is taken when
    it is asked for."""

    def __init__(self, name: str, filename: str, info: AdapterInfo | None = None) -> None:
        found = info or next((one for one in _entries() if one.path == Path(filename)), None)
        self.name = name
        self.filename = str(filename)
        self.alias = found.alias if found is not None else name
        self.metadata: dict[str, Any] = readable_metadata(found.metadata) if found is not None else {}
        self.is_safetensors = self.filename.lower().endswith(".safetensors")
        version = version_of(found.metadata) if found is not None else ""
        self.sd_version = SdVersion.__members__.get(version, SdVersion.Unknown)
        self._info = found

    @property
    def hash(self) -> str:
        """sha256 of the tensors in hex, "" for a file that cannot be read."""
        return "" if self._info is None else host_now().engine.adapters.files.catalogue.hash_of(self._info)

    @property
    def shorthash(self) -> str:
        """The first 12 digits."""
        return self.hash[:12]

    def get_alias(self) -> str:
        """Return what stands for it in a prompt."""
        return self.alias if self.alias.lower() not in forbidden_network_aliases else self.name

    def read_hash(self) -> None:
        """Hashes are taken when they are asked for."""


def _entries() -> tuple[AdapterInfo, ...]:
    return host_now().engine.adapters.files.catalogue.entries


def _by_name() -> dict[str, NetworkOnDisk]:
    return {info.name: NetworkOnDisk(info.name, str(info.path), info) for info in _entries()}


def _by_alias() -> dict[str, NetworkOnDisk]:
    found = _by_name()
    return {file.alias: file for file in found.values()} | found


def _by_hash() -> dict[str, NetworkOnDisk]:
    return {file.shorthash: file for file in _by_name().values()}


available_networks = available_loras = LookedUp(_by_name)
available_network_aliases = available_lora_aliases = LookedUp(_by_alias)
available_network_hash_lookup = available_lora_hash_lookup = LookedUp(_by_hash)
forbidden_network_aliases = forbidden_lora_aliases = {"none": 1, "addams": 1}
"""Names that are no aliases; an alias of several files is one of each here."""
loaded_networks: list[Any] = []
loaded_loras = loaded_networks
"""What the reference UI has on its model; the program keeps its own."""


def list_available_networks() -> None:
    """Look at the folders again."""
    host_now().engine.adapters.files.catalogue.refresh()


list_available_loras = list_available_networks
networks = network = lora = sys.modules[__name__]
"""The files import one another, and extensions take them from there."""
__getattr__ = refusing(
    "networks",
    dict.fromkeys(
        (
            "load_networks",
            "load_network",
            "load_lora",
            "load_loras",
            "assign_network_names_to_compvis_modules",
            "originals",
        ),
        _INSIDE,
    )
    | dict.fromkeys(("Network", "NetworkModule", "ModuleType", "NetworkWeights", "networks_in_memory"), _INSIDE)
    | dict.fromkeys(("network_apply_weights", "lora_apply_weights", "LoraModule", "LoraOnDisk"), _INSIDE),
)
