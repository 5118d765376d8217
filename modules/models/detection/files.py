"""What a model file is, by its header alone, and the folder of `models/` that it belongs into. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from modules.models.detection.families import (
    PREFIX,
    FamilySigns,
    HasShape,
    Shapes,
    checkpoint_family,
    denoiser_family,
    folder_family,
    is_diffusers_file,
    whole_names,
)
from modules.models.detection.parts import VISION, VISION_TYPES, Part, parts_in
from modules.models.files.header import Header
from modules.models.files.other_files import adapter_or_embedding

CHECKPOINTS, VAES, ENCODERS = "Stable-diffusion", "VAE", "text_encoder"
LORAS, EMBEDDINGS, CONTROL, UPSCALERS = "Lora", "embeddings", "ControlNet", "ESRGAN"
TINY_VAES = "VAE-taesd"
"""Folders below `models/` (embeddings: the folder of embeddings) by the type of files in them."""
WORDS = {
    CHECKPOINTS: "a checkpoint",
    VAES: "a VAE",
    ENCODERS: "a text encoder",
    LORAS: "a LoRA",
    EMBEDDINGS: "an embedding",
    CONTROL: "a ControlNet",
    UPSCALERS: "an upscaler",
    TINY_VAES: "a tiny VAE (TAESD)",
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


VIDEO_PATCHES, VIDEO_SIDES = ("patch_embedding.weight", "img_in.proj.weight", "patch_embed.proj.weight"), 5
"""Convolutions over time, height and width that video models cut their latents with."""
TINY_MARKS = ("3.conv.0.weight", "decoder.layers.3.conv.0.weight", "taesd_decoder.3.conv.0.weight")
"""Whole names: each half has a block of three convolutions there, whatever comes before it."""
MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((PREFIX, "conditioner.embedders.", "cond_stage_model."), CHECKPOINTS),
    (("control_model.", "controlnet_", "input_hint_block", "lora_controlnet", "t2i_adapter"), CONTROL),
    (("body.0.rdb1.", "RRDB_trunk", "params_ema", "upsampler."), UPSCALERS),
    (("self_attn.q_proj", "SelfAttention.q", "text_model.encoder.", "transformer.resblocks."), ENCODERS),
    (("decoder.conv_in", "decoder.up", "encoder.down_blocks", "decoder.middle"), VAES),
    (
        ("transformer_blocks.", "double_blocks.", "joint_blocks.", "down_blocks.", "layers.0.attention", "blocks.0."),
        CHECKPOINTS,
    ),
)
"""Parts of tensors' names, looked for in this order, and what a file with such a name is."""
GGUF_ENCODERS = ("t5", "t5encoder", "qwen3", "clip")
GGUF_LANGUAGE = ("llama", "qwen2", "gemma", "gemma2", "gemma3", "phi3", "mistral", "qwen2vl", "deepseek2", "gptoss")
GGUF_VIDEO = ("wan", "hyvid", "ltxv", "cosmos")
ENCODER_WIDTHS = (768, 1024, 1280, 2560, 4096)
"""Of the encoders that families of image models read their prompts with."""


def detected(header: Header) -> Detected:
    """Return what a file is by its header."""
    if header.format == "pickle":
        return Detected(CHECKPOINTS, "a pickle, whose contents are not known before it is here")
    if header.format == "gguf":
        return _gguf(header.architecture)
    tensors = header.tensors
    named = {"embedding": EMBEDDINGS, "adapter": LORAS}.get(adapter_or_embedding(tensors), "")
    if named:
        return Detected(named, WORDS[named])
    if any(name in tensors for name in TINY_MARKS):
        return Detected(TINY_VAES, WORDS[TINY_VAES])
    parts = parts_in(tensors)
    for name, entry in tensors.items():
        is_video = name.endswith(VIDEO_PATCHES) and len(entry.shape) == VIDEO_SIDES and VISION not in name
        if is_video or "time_stack." in name:
            return Detected(refusal=f"is a video model ({name} says so); this program makes images.")
    found = next((found for marks, found in MARKS if any(mark in name for name in tensors for mark in marks)), "")
    family, width = (None, 0) if found in (CONTROL, UPSCALERS) else _denoiser(tensors)
    if family is not None:
        return Detected(CHECKPOINTS, WORDS[CHECKPOINTS], family, (Part(family.name, width), *parts))
    if not found:
        first = ", ".join(list(tensors)[:3]) or "none"
        return Detected(refusal=f"is of no known kind of model: its tensors begin with {first}.")
    if found == ENCODERS and "lm_head.weight" in tensors:
        wide = next((each.shape[1] for name, each in tensors.items() if "embed" in name and len(each.shape) == 2), 0)
        if wide and wide not in ENCODER_WIDTHS and not any(part.type in dict(VISION_TYPES) for part in parts):
            return Detected(refusal=f"is a language model ({wide} wide); no model of images here reads with it.")
    return Detected(found, WORDS[found], parts=parts)


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
    return folder_family(parts)
