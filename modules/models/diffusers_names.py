"""What the tensors of the diffusers layout are called in the original one: the key maps, read backwards.

Sizes follow from the names and shapes alone. Text models are named as `OpenClipLayout` presents them: one tensor for
each projection.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from modules.models.diffusers_sd3 import is_sd3, sd3_map
from modules.models.keymaps import clip_text, ldm_unet, ldm_vae
from modules.models.keymaps.keymap import KeyMap
from modules.models.keymaps.open_clip_text import open_clip_keymap
from modules.models.tensor_file import TensorEntry

Header = Mapping[str, TensorEntry]
Shape = tuple[int, ...]
OLD_VAE_ATTENTION = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
"""What the attention of the autoencoder was called before diffusers 0.15."""
OLD_VAE_NAME = re.compile(rf"(\.mid_block\.attentions\.0)\.({'|'.join(OLD_VAE_ATTENTION)})\.")
SIZES_EMBEDDING, OUR_EMBEDDING = "add_embedding.", "class_embedding."
SD1_TEXT, SD2_TEXT = clip_text.PREFIX, "cond_stage_model.model"
SDXL_FIRST, SDXL_SECOND, REFINER_TEXT = (
    "conditioner.embedders.0.transformer",
    "conditioner.embedders.1.model",
    "conditioner.embedders.0.model",
)
LAYER = re.compile(r"^encoder\.layers\.(\d+)\.")


@dataclass(frozen=True)
class Named:
    """The original name of a tensor, and its shape there."""

    name: str
    shape: Shape


def original_names(parts: Mapping[str, Header]) -> dict[tuple[str, str], Named]:
    """Names in the original layout by part ("unet", "vae", "text_encoder" ...) and name there.

    What belongs to no known network keeps its name behind that of its part, so that loading can name it.
    """
    unet = parts.get("unet", {})
    found: dict[tuple[str, str], Named] = {}
    for part, header in parts.items():
        if part == "unet":
            keymap: KeyMap | None = _unet_map(header)
            ours = {name: name.replace(SIZES_EMBEDDING, OUR_EMBEDDING, 1) for name in header}
        elif part == "vae":
            keymap, ours = vae_map(header), {name: modern_vae_name(name) for name in header}
        elif is_sd3(parts):
            keymap, ours = sd3_map(part, header)
        else:
            keymap, ours = _text_map(part, header, unet, parts)
        for name, entry in header.items():
            original = keymap.to_original(ours[name]) if keymap is not None else None
            if original is None or keymap is None:
                found[part, name] = Named(f"{part}.{name}", entry.shape)
                continue
            shell = keymap.tensor_to_original(ours[name], torch.empty(entry.shape, device="meta"))
            found[part, name] = Named(original, tuple(shell.shape))
    return found


def left_out_layer(parts: Mapping[str, Header]) -> dict[str, TensorEntry]:
    """The last layer of SD2's text model, by original names, as tensors without bytes in any file.

    The original takes the output of the last but one of its layers; the diffusers layout leaves the last one out and
    takes the end. With a layer of zeros, which adds nothing to what it is given, both are the same model.
    """
    header = parts.get("text_encoder", {})
    if not is_sd2(parts):
        return {}
    layers = {match[1] for name in header if (match := LAYER.match(_level_down(name)))}
    keymap = open_clip_keymap(SD2_TEXT, len(layers) + 1, with_projection=False)
    found = {}
    for name, entry in header.items():
        inner = _level_down(name)
        match = LAYER.match(inner)
        if match is None or match[1] != "0" or not inner.endswith((".weight", ".bias")):
            continue
        original = keymap.to_original(f"encoder.layers.{len(layers)}.{inner[match.end() :]}")
        dtype = entry.dtype if entry.dtype.itemsize > 1 else torch.float16
        if original is not None:
            found[original] = TensorEntry(dtype, entry.shape, 0, 0)
    return found


def is_sd2(parts: Mapping[str, Header]) -> bool:
    """Whether it is SD2: its UNet has linear layers where SD1 has 1x1 convolutions, and no embedding of sizes."""
    unet = parts.get("unet", {})
    return not _is_xl(unet) and any(
        name.endswith(".proj_in.weight") and len(entry.shape) == 2 for name, entry in unet.items()
    )


def vae_map(header: Header) -> KeyMap:
    """The key map of an autoencoder with these (diffusers) names."""
    levels = _count(header, "encoder.down_blocks.")
    return ldm_vae.vae_keymap(levels, _count(header, "encoder.down_blocks.0.resnets."))


def modern_vae_name(name: str) -> str:
    """A name of an autoencoder's tensor as diffusers has it today."""
    return OLD_VAE_NAME.sub(lambda match: f"{match[1]}.{OLD_VAE_ATTENTION[match[2]]}.", name)


def _unet_map(header: Header) -> KeyMap:
    levels = _count(header, "down_blocks.")
    with_attention = {
        level
        for level in range(levels)
        for block in (f"down_blocks.{level}.", f"up_blocks.{levels - 1 - level}.")
        if any(name.startswith(f"{block}attentions.") for name in header)
    }
    has_middle = any(name.startswith("mid_block.attentions.") for name in header)
    blocks = _count(header, "down_blocks.0.resnets.")
    return ldm_unet.unet_keymap(ldm_unet.UNetLayout(levels, blocks, frozenset(with_attention), has_middle))


def _text_map(
    part: str, header: Header, unet: Header, parts: Mapping[str, Header]
) -> tuple[KeyMap | None, dict[str, str]]:
    """The map, and what our module calls the tensors; transformers has had the level `text_model` and has not."""
    inner = {name: _level_down(name) for name in header}
    layers = len({match[1] for name in inner.values() if (match := LAYER.match(name))})
    if part == "text_encoder_2":
        prefix = SDXL_SECOND if "text_encoder" in parts else REFINER_TEXT
        ours = {name: short if short.startswith("text_projection") else f"text_model.{short}"
                for name, short in inner.items()}  # fmt: skip
        return open_clip_keymap(prefix, layers, with_projection=True), ours
    if is_sd2(parts):
        return open_clip_keymap(SD2_TEXT, layers, with_projection=False), inner
    prefix = SDXL_FIRST if _is_xl(unet) else SD1_TEXT
    return clip_text.clip_text_keymap(prefix=prefix), inner


def _level_down(name: str) -> str:
    return name.removeprefix("text_model.")


def _is_xl(unet: Header) -> bool:
    return any(name.startswith(SIZES_EMBEDDING) for name in unet)


def _count(header: Header, prefix: str) -> int:
    return len(set(_numbers(header, prefix)))


def _numbers(header: Header, prefix: str) -> Iterator[str]:
    for name in header:
        if name.startswith(prefix):
            yield name[len(prefix) :].split(".", 1)[0]
