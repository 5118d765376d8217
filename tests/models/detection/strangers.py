"""Headers of files as other programs write them: what they hold by name, and what each is."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from modules.models.detection.files import Detected, detected
from modules.models.files.header import Header, Stored

Shapes = Mapping[str, tuple[int, ...]]
Layers = Mapping[str, tuple[int, int]]
KOHYA, PEFT, DIFFUSERS = ("lora_down", "lora_up"), ("lora_A", "lora_B"), ("lora.down", "lora.up")


@dataclass(frozen=True)
class Stranger:
    """A header, and what is to be said of it: the line, the folder; or a part of the refusal."""

    shapes: Shapes
    line: str
    folder: str = ""
    dtype: str = "F16"
    format: str = "safetensors"
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def found(self) -> Detected:
        tensors = {name: Stored(shape, self.dtype) for name, shape in self.shapes.items()}
        return detected(Header(self.format, tensors, self.metadata))


def lora(layers: Layers, ends: tuple[str, str] = KOHYA, before: str = "lora_unet_", rank: int = 8) -> Shapes:
    """A LoRA with these layers [out, in]."""
    found: dict[str, tuple[int, ...]] = {}
    for name, (rows, columns) in layers.items():
        found |= {f"{before}{name}.{ends[0]}.weight": (rank, columns), f"{before}{name}.{ends[1]}.weight": (rows, rank)}
        found |= {f"{before}{name}.alpha": ()} if ends is KOHYA else {}
    return found


def of(layers: Layers, *ends: str, before: str = "lora_unet_") -> Shapes:
    """An adapter of another algorithm: tensors of these ends for each layer."""
    return {f"{before}{name}.{end}": (8, columns) for name, (_, columns) in layers.items() for end in ends}


SELF, CROSS = "attentions_0_transformer_blocks_0_attn1_to_q", "attentions_0_transformer_blocks_0_attn2_to_k"
SD1 = {f"down_blocks_0_{SELF}": (320, 320), f"down_blocks_0_{CROSS}": (320, 768)}
SDXL = {"input_blocks_4_1_transformer_blocks_0_attn2_to_k": (640, 2048)}
TEXT = "text_model_encoder_layers_0_mlp_fc1"
FLUX = {"double_blocks_0_img_attn_proj": (3072, 3072), "single_blocks_0_linear2": (3072, 15360)}
VIDEO = "a video model: only models of images are supported."

STRANGERS = {
    "SAM 2": Stranger(
        {
            "vision_encoder.backbone.patch_embed.projection.weight": (96, 3, 7, 7),
            "mask_decoder.iou_token.weight": (1, 256),
        },
        "SAM 2, fp16",
        "segmentation",
    ),
    "kohya SD1": Stranger(
        {**lora(SD1), **lora({TEXT: (3072, 768)}, before="lora_te_")}, "a LoRA for SD 1.x, kohya names, fp16", "Lora"
    ),
    "kohya SD2, text alone": Stranger(
        lora({TEXT: (4096, 1024)}, before="lora_te_"), "a LoRA for SD 2.x, kohya names, fp16", "Lora"
    ),
    "kohya SDXL": Stranger(lora(SDXL), "a LoRA for SDXL, kohya names, fp16", "Lora"),
    "kohya SDXL, text alone": Stranger(
        lora({TEXT: (5120, 1280)}, before="lora_te2_"), "a LoRA for SDXL, kohya names, fp16", "Lora"
    ),
    "diffusers SDXL": Stranger(
        lora({"unet.down_blocks.1.attentions.0.attn2.to_k": (640, 2048)}, DIFFUSERS, ""),
        "a LoRA for SDXL, diffusers names, fp16",
        "Lora",
    ),
    "kohya FLUX.1": Stranger(lora(FLUX), "a LoRA for FLUX.1 dev, kohya names, fp16", "Lora"),
    "klein 4B": Stranger(
        lora({**FLUX, "single_blocks_0_linear2": (3072, 12288)}), "a LoRA for FLUX.2 klein, kohya names, fp16", "Lora"
    ),
    "FLUX.2 dev": Stranger(
        lora({"single_blocks_0_linear2": (6144, 24576)}), "a LoRA for FLUX.2 dev, kohya names, fp16", "Lora"
    ),
    "PEFT FLUX.1": Stranger(
        lora({"single_transformer_blocks.0.attn.to_q": (3072, 3072)}, PEFT, "transformer."),
        "a LoRA for FLUX.1 dev, PEFT names, fp16",
        "Lora",
    ),
    "AI toolkit FLUX.1": Stranger(
        lora({"double_blocks.0.img_attn.proj": (3072, 3072)}, PEFT, "diffusion_model."),
        "a LoRA for FLUX.1 dev, PEFT names, fp16",
        "Lora",
    ),
    "Chroma": Stranger(
        lora({**FLUX, "distilled_guidance_layer_layers_0_in_layer": (5120, 5120)}),
        "a LoRA for Chroma1, kohya names, fp16",
        "Lora",
    ),
    "Qwen-Image with the name of an adapter": Stranger(
        {
            "transformer.transformer_blocks.0.img_mlp.net.0.proj.lora_A.default.weight": (8, 3072),
            "transformer.transformer_blocks.0.img_mlp.net.0.proj.lora_B.default.weight": (12288, 8),
        },
        "a LoRA for Qwen-Image, PEFT names, fp16",
        "Lora",
    ),
    "Qwen-Image, attention alone": Stranger(
        lora({f"transformer_blocks.{number}.attn.add_k_proj": (3072, 3072) for number in range(60)}, PEFT, ""),
        "a LoRA for Qwen-Image, PEFT names, fp16",
        "Lora",
    ),
    "Z-Image": Stranger(
        lora({"layers_0_attention_to_q": (3840, 3840)}), "a LoRA for Z-Image, kohya names, fp16", "Lora"
    ),
    "Lumina 2": Stranger(
        lora({"layers_0_attention_qkv": (6912, 2304)}), "is a LoRA for Lumina 2, which is not supported."
    ),
    "Anima": Stranger(
        lora({"blocks_0_cross_attn_k_proj": (2048, 1024)}), "a LoRA for Anima, kohya names, fp16", "Lora"
    ),
    "Krea 2": Stranger(
        lora({"blocks.0.attn.wq": (6144, 6144)}, PEFT, "diffusion_model."),
        "a LoRA for Krea 2, PEFT names, fp16",
        "Lora",
    ),
    "SD3": Stranger(
        lora({"joint_blocks_0_context_block_attn_qkv": (4608, 1536)}), "a LoRA for SD 3, kohya names, fp16", "Lora"
    ),
    "Wan": Stranger(
        lora({"blocks.0.self_attn.q": (5120, 5120)}, before="diffusion_model."), f"a LoRA for Wan, {VIDEO}"
    ),
    "HunyuanVideo": Stranger(
        lora({f"double_blocks_{number}_img_attn_qkv": (9216, 3072) for number in range(20)}),
        f"a LoRA for HunyuanVideo, {VIDEO}",
    ),
    "LTX-Video": Stranger(
        lora({"transformer_blocks.0.attn1.to_q": (2048, 2048)}, PEFT, "diffusion_model."),
        f"a LoRA for LTX-Video, {VIDEO}",
    ),
    "motion LoRA": Stranger(
        lora({"down_blocks.0.motion_modules.0.temporal_transformer.q": (320, 320)}, before=""),
        f"a LoRA for AnimateDiff, {VIDEO}",
    ),
    "LoHa": Stranger(
        of(SDXL, "hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "alpha"),
        "a LoHa for SDXL, kohya names, fp16",
        "Lora",
    ),
    "LoKr": Stranger(
        of({"input_blocks_7_1_transformer_blocks_9_attn2_to_k": (8, 8)}, "lokr_w1", "lokr_w2", before="lycoris_"),
        "a LoKr for SDXL, LyCORIS names, fp16",
        "Lora",
    ),
    "DoRA": Stranger({**lora(SD1), **of(SD1, "dora_scale")}, "a DoRA for SD 1.x, kohya names, fp16", "Lora"),
    "OFT": Stranger(of(SD1, "oft_blocks", "alpha", before="oft_unet_"), "an OFT for SD 1.x, fp16", "Lora"),
    "GLoRA": Stranger(of(SD1, "a1.weight", "a2.weight"), "a GLoRA for SD 1.x, kohya names, fp16", "Lora"),
    "IA3": Stranger(of(SD1, "weight", "on_input"), "an IA3 for SD 1.x, kohya names, fp16", "Lora"),
    "whole differences": Stranger(of(SD1, "diff"), "a LoRA for SD 1.x, kohya names, fp16", "Lora"),
    "alphas alone": Stranger(of(SD1, "alpha"), "is a LoRA without its factors: the file is not whole."),
    "IP-adapter FaceID": Stranger(
        {
            "image_proj.proj.0.weight": (1024, 512),
            "ip_adapter.0.to_q_lora.down.weight": (128, 320),
            "ip_adapter.1.to_k_ip.weight": (320, 768),
        },
        "an IP-adapter for SD 1.x, fp16",
        "ControlNet",
    ),
    "InstantID": Stranger(
        {"image_proj.latents": (1, 16, 1280), "ip_adapter.1.to_k_ip.weight": (640, 2048)},
        "an IP-adapter for SDXL, fp16",
        "ControlNet",
    ),
    "union ControlNet of FLUX.1": Stranger(
        {
            "controlnet_x_embedder.weight": (3072, 64),
            "time_text_embed.text_embedder.linear_1.weight": (3072, 768),
            "controlnet_mode_embedder.weight": (10, 3072),
        },
        "a ControlNet for FLUX.1, fp16",
        "ControlNet",
    ),
    "ControlNet of diffusers": Stranger(
        {
            "controlnet_cond_embedding.conv_in.weight": (16, 3, 3, 3),
            "down_blocks.1.attentions.0.transformer_blocks.0.attn2.to_k.weight": (640, 2048),
        },
        "a ControlNet of diffusers' layout for SDXL, fp16",
        "ControlNet",
    ),
    "ControlNet of Hunyuan-DiT": Stranger(
        {"controlnet_blocks.0.weight": (9, 9)}, "is a ControlNet of an unknown kind, which is not supported."
    ),
    "Control-LoRA": Stranger(
        {
            "lora_controlnet": (0,),
            "input_hint_block.0.weight": (16, 3, 3, 3),
            "input_hint_block.2.weight": (16, 16, 3, 3),
            "input_blocks.1.0.emb_layers.1.up": (9, 9),
            "input_blocks.2.0.emb_layers.1.up": (9, 9),
        },
        "a Control-LoRA, fp16",
        "ControlNet",
    ),
    "embedding of SDXL": Stranger(
        {"clip_g": (4, 1280), "clip_l": (4, 768)}, "an embedding for SDXL, fp16", "embeddings"
    ),
    "embedding of SD1": Stranger({"emb_params": (4, 768)}, "an embedding for SD 1.x, fp16", "embeddings"),
    "embedding of diffusers": Stranger({"<my-style>": (1, 768)}, "an embedding for SD 1.x, fp16", "embeddings"),
    "CLIP with both halves": Stranger(
        {
            "text_model.embeddings.token_embedding.weight": (49408, 768),
            "text_model.final_layer_norm.weight": (768,),
            "vision_model.embeddings.class_embedding": (1024,),
        },
        "a text encoder, CLIP, transformers names, fp16",
        "text_encoder",
    ),
    "SAM": Stranger(
        {"image_encoder.patch_embed.proj.weight": (9, 3, 16, 16), "prompt_encoder.not_a_point_embed.weight": (1, 256)},
        "is SAM, which cuts objects out, which is not supported.",
    ),
    "YOLOv8": Stranger({"model.22.dfl.conv.weight": (1, 16, 1, 1)}, "a YOLO detector, fp16", "adetailer"),
    "BiRefNet": Stranger(
        {"bb.patch_embed.proj.weight": (192, 3, 4, 4), "squeeze_module.0.conv_in.weight": (64, 5760, 3, 3)},
        "BiRefNet or RMBG-2.0, fp16",
        "background_removal",
    ),
    "IS-Net": Stranger(
        {"net.stage1.rebnconvin.conv_s1.weight": (64, 64, 3, 3), "net.conv_in.weight": (64, 3, 3, 3)},
        "U-2-Net, IS-Net or RMBG-1.4, fp16",
        "background_removal",
    ),
    "YOLOv5": Stranger(
        {"model.24.anchors": (3, 3, 2), "model.2.cv1.conv.weight": (9, 9, 1, 1)},
        "is YOLOv5 or older, which is not supported.",
    ),
    "RealESRGAN": Stranger(
        {"conv_first.weight": (64, 3, 3, 3), "body.0.rdb1.conv1.weight": (32, 64, 3, 3)},
        "an ESRGAN upscaler, fp16",
        "ESRGAN",
    ),
    "UltraSharp": Stranger({"model.1.sub.0.RDB1.conv1.0.weight": (32, 64, 3, 3)}, "an ESRGAN upscaler, fp16", "ESRGAN"),
    "compact": Stranger(
        {"body.0.weight": (64, 3, 3, 3), "body.1.weight": (64,), "body.2.weight": (64, 64, 3, 3)},
        "a compact RealESRGAN upscaler, fp16",
        "ESRGAN",
    ),
    "SwinIR": Stranger(
        {"params.conv_first.weight": (9, 3, 3, 3), "params.layers.0.residual_group.blocks.0.norm1.weight": (9,)},
        "an upscaler, fp16",
        "ESRGAN",
    ),
    "GFPGAN": Stranger(
        {"toRGB.0.weight": (3, 512, 1, 1), "stylegan_decoder.style_mlp.1.weight": (512, 512)},
        "a GFPGAN face restorer, fp16",
        "GFPGAN",
    ),
    "CodeFormer": Stranger(
        {"position_emb": (256, 512), "idx_pred_layer.1.weight": (9, 9), "quantize.embedding.weight": (1024, 256)},
        "a CodeFormer face restorer, fp16",
        "Codeformer",
    ),
    "RestoreFormer": Stranger(
        {"quantize.embedding.weight": (1024, 256), "decoder.mid.attn_1.norm1.weight": (9,)},
        "a RestoreFormer face restorer, fp16",
        "RestoreFormer",
    ),
    "RIFE": Stranger({"module.block0.conv0.0.0.weight": (45, 7, 3, 3)}, f"is RIFE, {VIDEO}"),
    "TAEHV": Stranger(
        {"decoder.1.weight": (256, 16, 3, 3), "decoder.3.conv.0.weight": (256, 512, 3, 3)},
        "is TAEHV, the tiny VAE of a video model, which is not supported.",
    ),
    "Depth Anything": Stranger(
        {"depth_head.scratch.output_conv1.weight": (9, 9, 3, 3), "pretrained.blocks.0.attn.qkv.weight": (9, 9)},
        "Depth Anything, fp16",
        "ControlNetPreprocessor",
    ),
    "SVDQuant": Stranger(
        {
            "transformer_blocks.0.attn.to_qkv.qweight": (9216, 1536),
            "transformer_blocks.0.attn.to_qkv.wscales": (48, 9216),
        },
        "is a denoiser in SVDQuant, a format of Nunchaku's, which is not supported.",
    ),
    "Mistral": Stranger(
        {"model.layers.0.self_attn.q_proj.weight": (4096, 5120), "model.embed_tokens.weight": (131072, 5120)},
        "is a language model (5120 wide); no model of images here reads with it.",
    ),
    "hypernetwork": Stranger({"768.0.linear.0.weight": (1536, 768)}, "a hypernetwork, fp16", "hypernetworks"),
    "T5 in GGUF": Stranger(
        {},
        "a text encoder, T5, llama.cpp names, GGUF Q6_K",
        "text_encoder",
        format="gguf",
        metadata={"general.architecture": "t5encoder", "general.file_type": "18"},
    ),
    "a language model in GGUF": Stranger(
        {},
        "is a language model (llama); no model of images here reads with it.",
        format="gguf",
        metadata={"general.architecture": "llama"},
    ),
    "mmproj": Stranger(
        {"v.blk.0.attn_q.weight": (1280, 1280)},
        "is mmproj, what a language model sees with, with which no model of images here reads.",
        format="gguf",
        metadata={"general.architecture": "clip"},
    ),
}
"""By the name of the program or the kind of file."""
