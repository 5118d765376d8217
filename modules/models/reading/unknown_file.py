"""What a file holds that is no checkpoint of a known family: for people who chose the wrong one."""

from modules.models.families.family import Header
from modules.models.families.ldm.parts import has_vector, input_channels

DEPTH_CHANNELS, UPSCALER_CHANNELS = 5, 7
LISTED = 3
NETWORK_MARKS = ("lora_down", "lora_up", "lora_A.", "lora_B.", "hada_w1", "lokr_w1", "dora_scale")
PARTS = (  # of a name, and what a file with such names is
    (NETWORK_MARKS, "a LoRA (put it into models/Lora)"),
    (("emb_params", "string_to_param"), "an embedding (put it into embeddings)"),
    (("control_model.", "controlnet_", "input_hint_block"), "a ControlNet"),
    (("double_blocks.", "single_blocks."), "a model of the Flux family"),
    (("body.0.rdb1.", "RRDB_trunk", "params_ema", "upsampler."), "an upscaler (put it into models/ESRGAN)"),
    (("decoder.conv_in", "decoder.up"), "a VAE (put it into models/VAE)"),
)
"""Looked for in this order."""


def describe_unknown(header: Header) -> str:
    """In half a sentence what its tensors' names and shapes say: "it looks like a LoRA"."""
    channels = input_channels(header)
    if channels is not None:
        return f"it has {_described_unet(header, channels)}"
    for marks, what in PARTS:
        if any(mark in key for key in header for mark in marks):
            return f"it looks like {what}"
    first = ", ".join(list(header)[:LISTED])
    return f"its tensors begin with {first}" if first else "it has no tensors"


def _described_unet(header: Header, channels: int) -> str:
    if channels == DEPTH_CHANNELS:
        return "the UNet of a depth model (5 channels), which is not supported"
    if channels == UPSCALER_CHANNELS:
        return "the UNet of Stable Diffusion's x4 upscaler (7 channels), which is not supported"
    if has_vector(header):
        return "a UNet of SDXL's kind, but no text encoders of its own"
    return f"a UNet of {channels} channels, which no known family has"
