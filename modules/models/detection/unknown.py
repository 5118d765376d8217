"""What is said of a file that is no checkpoint of a known family, by the names and shapes in its header. Imports no
torch."""

from modules.models.detection.families import Shapes, has_vector, input_channels

DEPTH_CHANNELS, UPSCALER_CHANNELS = 5, 7
LISTED = 3
ADAPTER_MARKS = ("lora_down", "lora_up", "lora_A.", "lora_B.", "hada_w1", "lokr_w1", "dora_scale")
Marks = tuple[tuple[tuple[str, ...], str], ...]
OF_PARTS: Marks = (  # of a name, and what a file with such a name is
    (ADAPTER_MARKS, "a LoRA (put it into models/Lora)"),
    (("emb_params", "string_to_param"), "an embedding (put it into embeddings)"),
    (("control_model.", "controlnet_", "input_hint_block"), "a ControlNet"),
)
VIDEO, NOT_READ = "a video model: only models of images are supported", "which is not supported"
ENCODER_ADVICE = "put it into models/text_encoder and choose a denoiser that uses it"
OF_MODELS: Marks = (  # of names, and what a file with all of these is
    (("patch_embedding.weight", "time_projection.1.weight"), f"Wan, {VIDEO}"),
    (("txt_in.individual_token_refiner.",), f"HunyuanVideo, {VIDEO}"),
    (("patchify_proj.weight", "adaln_single.linear."), f"LTX-Video, {VIDEO}"),
    (("t5_yproj.weight", "t5_y_embedder."), f"Mochi, {VIDEO}"),
    (("x_embedder.proj.1.weight", "t_embedder.1.linear_1."), f"Cosmos-Predict2 without a text adapter, {NOT_READ}"),
    (("txt_in.text_norm.weight", "modulation.1.weight"), f"Qwen-Image-2.1, {NOT_READ}"),
    (("early_stream_modulations.",), f"FLUX.3 klein, {NOT_READ}"),
    (("double_stream_modulation_img.", "guidance_in."), f"FLUX.2 dev, {NOT_READ}"),
    (("cap_embedder.0.weight", "noise_refiner.0."), f"Lumina 2, {NOT_READ}"),
    (("double_stream_blocks.0.block.",), f"HiDream, {NOT_READ}"),
    (("double_layers.0.attn.w1q.weight",), f"AuraFlow, {NOT_READ}"),
    (("y_embedder.y_proj.fc1.", "scale_shift_table"), f"PixArt, {NOT_READ}"),
    (("token_embd.weight", "blk.0.attn_q.weight"), f"a language model in llama.cpp's form ({ENCODER_ADVICE})"),
    (("layers.0.self_attn.q_proj.weight", "embed_tokens.weight"), f"a text encoder ({ENCODER_ADVICE})"),
    (("block.0.layer.0.SelfAttention.q.weight",), f"a text encoder, T5 ({ENCODER_ADVICE})"),
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
        return "a UNet of SDXL's kind, but no text encoders of its own"
    return f"a UNet of {channels} channels, which no known family has"
