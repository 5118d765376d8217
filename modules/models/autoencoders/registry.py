"""The types of autoencoders, by the name of the class that a YAML's `first_stage_config.target` ends in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from modules.models.autoencoders.autoencoder import Autoencoder, AutoencoderType
from modules.models.autoencoders.kl import KL
from modules.models.autoencoders.packed_kl import PACKED_KL
from modules.models.autoencoders.qwen_image import QWEN_IMAGE
from modules.models.autoencoders.qwen_image21 import QWEN_IMAGE21
from modules.models.detection.parts import vae_signs, without_level
from modules.system.registry import Registry

if TYPE_CHECKING:
    from modules.models.names.component import Header

AUTOENCODERS: Registry[AutoencoderType] = Registry("autoencoder")
AUTOENCODERS.add("AutoencoderKLQwenImage", QWEN_IMAGE)
AUTOENCODERS.add("AutoencoderKLQwenImage21", QWEN_IMAGE21)
AUTOENCODERS.add("AutoencoderKLFlux2", PACKED_KL)
AUTOENCODERS.add("AutoencoderKL", KL)


def read_autoencoder(model: Mapping[str, Any]) -> Autoencoder:
    """Read the autoencoder from `model.params` of a YAML; any class that is not listed is one of Stable Diffusion's.
    Raises `KeyError` and `ValueError` for entries that are missing or impossible."""
    target = str(model["first_stage_config"].get("target", "")).rpartition(".")[2]
    found = dict(AUTOENCODERS.items()).get(target, KL)
    autoencoder: Autoencoder = found.read(model)
    return autoencoder


def autoencoder_type(header: Header) -> tuple[AutoencoderType, bool] | None:
    """Return what a VAE's own file (without the names of a checkpoint) holds, and whether it has the names of
    diffusers; None for other files."""
    found = vae_signs(header)
    return None if found is None else (AUTOENCODERS.get(found[0].type), found[1])


def holds_autoencoder(header: Header) -> bool:
    """Return whether a file holds a VAE and nothing else, or a checkpoint with one, in any layout."""
    return vae_signs(without_level(header)) is not None
