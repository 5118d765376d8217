"""Original names of the tensors of the diffusers layout: the key maps, read backwards.

Sizes follow from the names and shapes alone. UNets are the same in all families; the other parts are named by the
family's `FolderLayout`, and the autoencoder by its type.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch

from modules.models.detection.families import SIZES_EMBEDDING
from modules.models.files.tensor_file import TensorEntry
from modules.models.names import ldm_unet, ldm_vae
from modules.models.names.clip_text import open_clip_keymap
from modules.models.names.folder_layout import (
    FIRST,
    LAYER,
    FolderLayout,
    Header,
    Names,
    level_down,
    text_layers,
)
from modules.models.names.keymap import KeyMap

Shape = tuple[int, ...]
OLD_VAE_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""What the attention of the autoencoder was called before diffusers 0.15."""
OLD_VAE_NAME = re.compile(rf"(\.mid_block\.attentions\.0)\.({'|'.join(OLD_VAE_ATTENTION)})\.")
OUR_EMBEDDING = "class_embedding."


@dataclass(frozen=True)
class Named:
    """The original name of a tensor, and its shape there."""

    name: str
    shape: Shape


def original_names(
    parts: Mapping[str, Header],
    layout: FolderLayout | None = None,
    vae_names: Callable[[Header], Names] | None = None,
) -> dict[tuple[str, str], Named]:
    """Names in the original layout by part ("unet", "vae", "text_encoder" ...) and name there. `vae_names` are those of
    the type of autoencoder that the VAE is.

    What belongs to no known component keeps its name behind that of its part, so that loading can name it.
    """
    found: dict[tuple[str, str], Named] = {}
    for part, header in parts.items():
        if part == "unet":
            keymap: KeyMap | None = _unet_map(header)
            ours = {name: name.replace(SIZES_EMBEDDING, OUR_EMBEDDING, 1) for name in header}
        elif part == "vae" and vae_names is not None:
            keymap, ours = vae_names(header)
        elif layout is not None and part in layout.names:
            keymap, ours = layout.names[part](header)
        else:
            keymap, ours = None, {}
        for name, entry in header.items():
            original = keymap.to_original(ours[name]) if keymap is not None else None
            if original is None or keymap is None:
                found[part, name] = Named(f"{part}.{name}", entry.shape)
                continue
            shell = keymap.tensor_to_original(ours[name], torch.empty(entry.shape, device="meta"))
            found[part, name] = Named(original, tuple(shell.shape))
    return found


def left_out_layer(parts: Mapping[str, Header], layout: FolderLayout) -> dict[str, TensorEntry]:
    """The last layer of a text model that is left out, by original names, as tensors without bytes in any file.

    The original takes the output of the last but one of its layers; the diffusers layout leaves the last one out and
    takes the end. With a layer of zeros, which adds nothing to what it is given, both are the same model.
    """
    if layout.left_out_layer is None:
        return {}
    header = parts.get(FIRST, {})
    layers = text_layers(header)
    keymap = open_clip_keymap(layout.left_out_layer, layers + 1, with_projection=False)
    found = {}
    for name, entry in header.items():
        inner = level_down(name)
        match = LAYER.match(inner)
        if match is None or match[1] != "0" or not inner.endswith((".weight", ".bias")):
            continue
        original = keymap.to_original(f"encoder.layers.{layers}.{inner[match.end() :]}")
        dtype = entry.dtype if entry.dtype.itemsize > 1 else torch.float16
        if original is not None:
            found[original] = TensorEntry(dtype, entry.shape, 0, 0)
    return found


def vae_map(header: Header) -> KeyMap:
    """The key map of an autoencoder with these (diffusers) names."""
    levels = count(header, "encoder.down_blocks.")
    return ldm_vae.vae_keymap(levels, count(header, "encoder.down_blocks.0.resnets."))


def modern_vae_name(name: str) -> str:
    """A name of an autoencoder's tensor as diffusers has it today."""
    return OLD_VAE_NAME.sub(lambda match: f"{match[1]}.{OLD_VAE_ATTENTION[match[2]]}.", name)


def _unet_map(header: Header) -> KeyMap:
    levels = count(header, "down_blocks.")
    with_attention = {
        level
        for level in range(levels)
        for block in (f"down_blocks.{level}.", f"up_blocks.{levels - 1 - level}.")
        if any(name.startswith(f"{block}attentions.") for name in header)
    }
    has_middle = any(name.startswith("mid_block.attentions.") for name in header)
    blocks = count(header, "down_blocks.0.resnets.")
    return ldm_unet.unet_keymap(ldm_unet.UNetLayout(levels, blocks, frozenset(with_attention), has_middle))


def count(header: Header, prefix: str) -> int:
    """How many different names follow `prefix`, up to the next dot."""
    return len(set(_numbers(header, prefix)))


def _numbers(header: Header, prefix: str) -> Iterator[str]:
    for name in header:
        if name.startswith(prefix):
            yield name[len(prefix) :].split(".", 1)[0]
