"""Detection of model files by their headers alone, and the folders of `models/` that they belong into. Imports no
torch."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from modules.models.detection.families import (
    PREFIX,
    FamilySigns,
    HasShape,
    Shapes,
    checkpoint_family,
    denoiser_family,
    folder_family,
    input_channels,
    is_diffusers_file,
    whole_names,
)
from modules.models.detection.others import other_of
from modules.models.detection.parts import ENCODER_TYPES, VISION, Part, parts_in
from modules.models.detection.unknown import DEPTH_CHANNELS, UPSCALER_CHANNELS, describe_unknown
from modules.models.files.header import Header
from modules.models.files.other_files import adapter_or_embedding

CHECKPOINTS, VAES, ENCODERS = "Stable-diffusion", "VAE", "text_encoder"
LORAS, EMBEDDINGS, CONTROL, UPSCALERS = "Lora", "embeddings", "ControlNet", "ESRGAN"
IMAGE_ENCODERS, TINY_VAES = "clip_vision", "VAE-taesd"
"""Folders below `models/` (embeddings: the folder of embeddings) by the type of files in them."""
WORDS = {
    CHECKPOINTS: "a checkpoint",
    VAES: "a VAE",
    TINY_VAES: "a tiny VAE",
    ENCODERS: "a text encoder",
    IMAGE_ENCODERS: "an image encoder",
    LORAS: "a LoRA",
    EMBEDDINGS: "an embedding",
    CONTROL: "a ControlNet",
    UPSCALERS: "an upscaler",
}


@dataclass(frozen=True)
class Detected:
    """A file as its header says it. `folder`: where it belongs. `what`: the type of file, for people. `family`: that of
    the denoiser in it; None where it has none, or one of no known family. `parts`: the models in it, the denoiser among
    them. `refusal`: what is wrong with a file that no model of images is made of, to be read after its name; "" for
    others."""

    folder: str = ""
    what: str = ""
    family: FamilySigns | None = None
    parts: tuple[Part, ...] = ()
    refusal: str = ""


MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            *("control_model.", "controlnet_", "input_hint_block", "lora_controlnet", "t2i_adapter", "lllite"),
            *("control_all_x_embedder.", "pos_embed_input.", "control_add_embedding.", "ip_adapter.", "adapter.body."),
            *("image_proj.", "adapter.conv_in.", "body.0.block1.", "body.0.in_conv."),
        ),
        CONTROL,
    ),
    ((PREFIX, "conditioner.embedders.", "cond_stage_model."), CHECKPOINTS),
    (("body.0.rdb1.", "RRDB_trunk", "params_ema", "upsampler."), UPSCALERS),
    (("llm_adapter.", "t_embedder."), CHECKPOINTS),
    (("self_attn.q_proj", "SelfAttention.q", "text_model.encoder.", "transformer.resblocks."), ENCODERS),
    (("decoder.conv_in", "decoder.up", "encoder.down_blocks", "decoder.middle"), VAES),
    (
        ("transformer_blocks.", "double_blocks.", "joint_blocks.", "down_blocks.", "layers.0.attention", "blocks.0."),
        CHECKPOINTS,
    ),
)
"""Parts of tensors' names, looked for in this order, and what a file with such a name is."""
AT_BEGIN = frozenset({"image_proj.", "ip_adapter.", "body.0.block1.", "body.0.in_conv.", "pos_embed_input."})
"""Those that stand at the beginning of a name only."""
IMAGE_ENCODER = re.compile(r"^(?:vision_model|visual)\.(?:embeddings\.|encoder\.layers\.0|conv1|class_embedding)")
TINY_VAE = re.compile(r"^(?:(?:decoder|encoder)\.layers\.|taesd_(?:decoder|encoder)\.)?[34]\.conv\.0\.weight$")
VIDEO_PATCHES, VIDEO_SIDES = ("patch_embedding.weight", "img_in.proj.weight", "patch_embed.proj.weight"), 5
"""Convolutions over time, height and width that video models cut their latents with."""
OF_LANGUAGE_MODELS = ("lm_head.weight", "layers.0.mlp.gate_proj.weight")
GGUF_ENCODERS = ("t5", "t5encoder", "qwen3", "clip", "qwen3vl", "qwen2vl")
GGUF_LANGUAGE = ("llama", "qwen2", "gemma", "gemma2", "gemma3", "phi3", "mistral", "deepseek2", "gptoss")
GGUF_VIDEO = ("wan", "hyvid", "ltxv")


def detected(header: Header) -> Detected:
    """Return what a file is by its header."""
    if header.format == "pickle":
        return Detected(CHECKPOINTS, "a pickle, whose contents are not known before it is here")
    if header.format == "gguf" and (not header.tensors or header.architecture in GGUF_VIDEO + GGUF_LANGUAGE):
        return _gguf(header.architecture)
    tensors = header.tensors
    other = other_of(tensors)
    if other is not None:
        return Detected(refusal=f"is {other.sentence}.")
    named = {"embedding": EMBEDDINGS, "adapter": LORAS}.get(adapter_or_embedding(tensors), "")
    found = named if named and not any("lllite" in name or "lora_controlnet" in name for name in tensors) else ""
    found = found or next((found for marks, found in MARKS if _is_marked(tensors, marks)), "")
    if found in (LORAS, EMBEDDINGS, CONTROL, UPSCALERS):
        return Detected(found, WORDS[found])
    family, width = _denoiser(tensors)
    parts = parts_in(tensors, header.architecture)
    if family is not None:
        return Detected(CHECKPOINTS, WORDS[CHECKPOINTS], family, (Part(family.name, width), *parts))
    if any(map(TINY_VAE.match, tensors)):
        return Detected(TINY_VAES, WORDS[TINY_VAES])
    if not any(part.type in ENCODER_TYPES for part in parts) and any(map(IMAGE_ENCODER.match, tensors)):
        return Detected(IMAGE_ENCODERS, WORDS[IMAGE_ENCODERS])
    for name, entry in tensors.items():
        if not parts and name.endswith(VIDEO_PATCHES) and len(entry.shape) == VIDEO_SIDES and VISION not in name:
            return Detected(refusal=f"is a video model ({name} says so); this program makes images.")
    if input_channels(tensors) in (DEPTH_CHANNELS, UPSCALER_CHANNELS):
        return Detected(refusal=f"is of no known family of models: {describe_unknown(tensors)}.")
    if parts and found in ("", ENCODERS, VAES):
        found = ENCODERS if parts[0].type in ENCODER_TYPES else VAES
    if not found:
        first = ", ".join(list(tensors)[:3]) or "none"
        return Detected(refusal=f"is of no known kind of model: its tensors begin with {first}.")
    if found == ENCODERS and not parts and any(name.endswith(OF_LANGUAGE_MODELS) for name in tensors):
        wide = next((each.shape[1] for name, each in tensors.items() if "embed" in name and len(each.shape) == 2), 0)
        return Detected(refusal=f"is a language model ({wide} wide); no model of images here reads with it.")
    return Detected(found, WORDS[found], parts=parts)


def _is_marked(names: Collection[str], marks: Collection[str]) -> bool:
    begins = tuple(mark for mark in marks if mark in AT_BEGIN)
    others = [mark for mark in marks if mark not in AT_BEGIN]
    return any(name.startswith(begins) or any(mark in name for mark in others) for name in names)


def _gguf(architecture: str) -> Detected:
    for architectures, what in ((GGUF_VIDEO, "video"), (GGUF_LANGUAGE, "language")):
        if architecture in architectures:
            why = "this program makes images" if what == "video" else "no model of images here reads with it"
            return Detected(refusal=f"is a {what} model ({architecture}); {why}.")
    found = ENCODERS if architecture in GGUF_ENCODERS else CHECKPOINTS
    return Detected(found, WORDS[found])


def _denoiser(header: Shapes) -> tuple[FamilySigns | None, int]:
    """Return the family of a file with a denoiser, whatever it puts before its names, and how wide the denoiser is."""
    names = whole_names(header) or {}
    whole = {names.get(key, key): entry for key, entry in header.items()}
    family = checkpoint_family(whole) or denoiser_family(whole) or _diffusers_family(whole)
    return family, 0 if family is None else family.width(whole)


def _diffusers_family(header: Shapes) -> FamilySigns | None:
    """Return the family of a file in the diffusers layout, whose names begin with those of its parts."""
    if not is_diffusers_file(header):
        return None
    parts: dict[str, dict[str, HasShape]] = {}
    for key, entry in header.items():
        part, _, name = key.partition(".")
        parts.setdefault(part, {})[name] = entry
    found = folder_family(parts)
    return found if found.part in parts else None
