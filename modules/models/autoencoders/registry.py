"""The types of autoencoders, by the name of the class that a YAML's `first_stage_config.target` ends in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import PREFIX, Autoencoder, AutoencoderType
from modules.models.autoencoders.kl import KL
from modules.models.autoencoders.packed_kl import PACKED_KL
from modules.models.autoencoders.qwen_image import QWEN_IMAGE
from modules.registry import Registry

if TYPE_CHECKING:
    from modules.models.names.component import Header

LEVELS = (f"{PREFIX}.", "vae.")
"""Before the names of a VAE in a whole checkpoint."""
AUTOENCODERS: Registry[AutoencoderType] = Registry("autoencoder")
AUTOENCODERS.add("AutoencoderKLQwenImage", QWEN_IMAGE)
AUTOENCODERS.add("AutoencoderKLFlux2", PACKED_KL)
AUTOENCODERS.add("AutoencoderKL", KL)
"""From the most special to the most general, the order in which a file is compared with them."""


def read_autoencoder(model: Mapping[str, Any]) -> Autoencoder:
    """What `model.params` of a YAML says; any class that is not listed is one of Stable Diffusion's. Raises `KeyError`
    and `ValueError` for entries that are missing or impossible."""
    target = str(model["first_stage_config"].get("target", "")).rpartition(".")[2]
    found = dict(AUTOENCODERS.items()).get(target, KL)
    autoencoder: Autoencoder = found.read(model)
    return autoencoder


def autoencoder_type(header: Header) -> tuple[AutoencoderType, bool] | None:
    """What a VAE's own file (without the names of a checkpoint) holds, and whether it has the names of diffusers; None
    for other files."""
    for _, item in AUTOENCODERS.items():
        for signs, is_diffusers in ((item.original_signs, False), (item.diffusers_signs, True)):
            if all(name in header and len(header[name].shape) == axes for name, axes in signs.items()):
                return item, is_diffusers
    return None


def holds_autoencoder(header: Header) -> bool:
    """Whether a file holds a VAE and nothing else, or a checkpoint with one, in any layout."""
    return autoencoder_type(without_level(header)) is not None


def without_level(header: Header) -> Header:
    """The tensors of a VAE by their names in a file of its own, also where they are those of a whole checkpoint."""
    level = next((level for level in LEVELS if any(name.startswith(level) for name in header)), "")
    return {name.removeprefix(level): entry for name, entry in header.items() if name.startswith(level)}
