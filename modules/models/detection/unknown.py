"""Messages about files that are no checkpoints of a known family, by the names and shapes in their headers. Imports no
torch."""

from modules.models.detection.families import Shapes, has_vector, input_channels
from modules.models.detection.others import other_of

DEPTH_CHANNELS, UPSCALER_CHANNELS = 5, 7
LISTED = 3
ADAPTER_MARKS = ("lora_down", "lora_up", "lora_A.", "lora_B.", "hada_w1", "lokr_w1", "dora_scale")
Marks = tuple[tuple[tuple[str, ...], str], ...]
OF_PARTS: Marks = (  # of a name, and what a file with such a name is
    (ADAPTER_MARKS, "a LoRA (put it into models/Lora)"),
    (("emb_params", "string_to_param"), "an embedding (put it into embeddings)"),
    (("control_model.", "controlnet_", "input_hint_block"), "a ControlNet"),
)
ENCODER_ADVICE = "put it into models/text_encoder and choose a denoiser that uses it"
OF_MODELS: Marks = (  # of names, and what a file with all of these is
    (("token_embd.weight", "blk.0.attn_q.weight"), f"a language model in llama.cpp's form ({ENCODER_ADVICE})"),
    (("layers.0.self_attn.q_proj.weight", "embed_tokens.weight"), f"a text encoder ({ENCODER_ADVICE})"),
    (("block.0.layer.0.SelfAttention.q.weight",), f"a text encoder, T5 ({ENCODER_ADVICE})"),
    (("vision_model.embeddings.",), "an image encoder (put it into models/clip_vision)"),
    (("text_model.embeddings.token_embedding.",), f"a text encoder, CLIP ({ENCODER_ADVICE})"),
)
OF_OTHERS: Marks = (
    (("double_blocks.", "single_blocks."), "a model of the Flux family"),
    (("body.0.rdb1.", "RRDB_trunk", "params_ema", "upsampler."), "an upscaler (put it into models/ESRGAN)"),
    (("decoder.conv_in", "decoder.up"), "a VAE (put it into models/VAE)"),
)
"""All three are looked for in this order."""


def describe_unknown(header: Shapes) -> str:
    """Say in half a sentence what the names and shapes of its tensors look like: "it looks like a LoRA"."""
    other = other_of(header)
    if other is not None:
        return f"it is {other.sentence}"
    channels = input_channels(header)
    if channels is not None:
        return f"it has {_described_unet(header, channels)}"
    for marks, what in OF_PARTS:
        if any(mark in key for key in header for mark in marks):
            return f"it looks like {what}"
    for marks, what in OF_MODELS:
        if all(any(mark in key for key in header) for mark in marks):
            return f"it looks like {what}"
    for marks, what in OF_OTHERS:
        if any(mark in key for key in header for mark in marks):
            return f"it looks like {what}"
    first = ", ".join(list(header)[:LISTED])
    return f"its tensors begin with {first}" if first else "it has no tensors"


def _described_unet(header: Shapes, channels: int) -> str:
    if channels == DEPTH_CHANNELS:
        return "the UNet of a depth model (5 channels), which is not supported"
    if channels == UPSCALER_CHANNELS:
        return "the UNet of Stable Diffusion's x4 upscaler (7 channels), which is not supported"
    if has_vector(header):
        return (
            "a UNet of SDXL's kind, but no text encoders of its own: put CLIP-L and CLIP-G into models/text_encoder "
            "and a VAE into models/VAE"
        )
    return f"a UNet of {channels} channels, which no known family has"
