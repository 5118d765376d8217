"""What a file is, by its header alone, and the folder of `models/` that it belongs into. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from modules.downloads.remote_file import RemoteFile
from modules.errors import CheckpointError
from modules.models.files.header import Header
from modules.models.files.other_files import ADAPTER_WORDS, EMBEDDING_NAMES, MAX_EMBEDDING_TENSORS

CHECKPOINTS, VAES, ENCODERS = "Stable-diffusion", "VAE", "text_encoder"
LORAS, EMBEDDINGS, CONTROL, UPSCALERS = "Lora", "embeddings", "ControlNet", "ESRGAN"
VIDEO_PATCHES, VIDEO_SIDES = ("patch_embedding.weight", "img_in.proj.weight", "patch_embed.proj.weight"), 5
"""Convolutions over time, height and width that video models cut their latents with."""
MARKS: tuple[tuple[tuple[str, ...], str], ...] = (
    (("model.diffusion_model.", "conditioner.embedders.", "cond_stage_model."), CHECKPOINTS),
    (("control_model.", "controlnet_", "input_hint_block", "lora_controlnet", "t2i_adapter"), CONTROL),
    (("body.0.rdb1.", "RRDB_trunk", "params_ema", "upsampler."), UPSCALERS),
    (("self_attn.q_proj", "SelfAttention.q", "text_model.encoder.", "transformer.resblocks."), ENCODERS),
    (("decoder.conv_in", "decoder.up", "encoder.down_blocks", "decoder.middle"), VAES),
    (
        ("transformer_blocks.", "double_blocks.", "joint_blocks.", "down_blocks.", "layers.0.attention", "blocks.0."),
        CHECKPOINTS,
    ),
)
"""Parts of tensors' names, looked for in this order, and the folder of files that have them."""
GGUF_ENCODERS = ("t5", "t5encoder", "qwen3", "clip")
GGUF_LANGUAGE = ("llama", "qwen2", "gemma", "gemma2", "gemma3", "phi3", "mistral", "qwen2vl", "deepseek2", "gptoss")
GGUF_VIDEO = ("wan", "hyvid", "ltxv", "cosmos")
ENCODER_WIDTHS = (768, 1024, 1280, 2560, 4096)
"""Of the encoders that families of image models read their prompts with."""


@dataclass(frozen=True)
class Kind:
    """`folder`: below `models/` (embeddings: the folder of embeddings). `what`: for people."""

    folder: str
    what: str


WORDS = {
    CHECKPOINTS: "a checkpoint",
    VAES: "a VAE",
    ENCODERS: "a text encoder",
    LORAS: "a LoRA",
    EMBEDDINGS: "an embedding",
    CONTROL: "a ControlNet",
    UPSCALERS: "an upscaler",
}


def kind_of(remote: RemoteFile, header: Header) -> Kind:
    """Raises `CheckpointError` for what no model of images is made of: video models and language models."""
    label = remote.source.label
    if header.format == "pickle":
        return Kind(CHECKPOINTS, "a pickle, whose contents are not known before it is here")
    if header.format == "gguf":
        return _kind_of_gguf(label, header.architecture)
    names = list(header.tensors)
    if len(names) <= MAX_EMBEDDING_TENSORS and EMBEDDING_NAMES & set(names):
        return _kind(EMBEDDINGS)
    if any(word in name.lower() for name in names for word in ADAPTER_WORDS):
        return _kind(LORAS)
    for name in names:
        if "time_stack." in name or (name.endswith(VIDEO_PATCHES) and len(header.tensors[name][0]) == VIDEO_SIDES):
            raise CheckpointError(f"{label} is a video model ({name} says so); this program makes images.")
    folder = next((folder for marks, folder in MARKS if any(mark in name for name in names for mark in marks)), None)
    if folder is None:
        first = ", ".join(names[:3]) or "none"
        raise CheckpointError(f"{label} is of no known kind of model: its tensors begin with {first}.")
    if folder == ENCODERS:
        width = next(
            (shape[1] for name, (shape, _) in header.tensors.items() if "embed" in name and len(shape) == 2), 0
        )
        if width and width not in ENCODER_WIDTHS and "lm_head.weight" in header.tensors:
            raise CheckpointError(f"{label} is a language model ({width} wide); no model of images here reads with it.")
    return _kind(folder)


def _kind(folder: str) -> Kind:
    return Kind(folder, WORDS[folder])


def _kind_of_gguf(label: str, architecture: str) -> Kind:
    if architecture in GGUF_VIDEO:
        raise CheckpointError(f"{label} is a video model ({architecture}); this program makes images.")
    if architecture in GGUF_LANGUAGE:
        raise CheckpointError(f"{label} is a language model ({architecture}); no model of images here reads with it.")
    return _kind(ENCODERS if architecture in GGUF_ENCODERS else CHECKPOINTS)
