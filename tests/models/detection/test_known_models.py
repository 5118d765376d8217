"""Every entry of `configs/known-models.yaml` is what detection says of its file, by recorded names and shapes."""

import gzip
from collections.abc import Mapping
from functools import cache

import pytest

from modules.downloads.known import entries_for, known_models
from modules.models.detection.files import Detected, detected
from modules.models.detection.kinds import Kind
from modules.models.files.header import Header, Stored
from tests.models.detection.strangers import lora
from tests.models.detection.test_detection import ROOT
from tests.models.dit_files import DIT

Shapes = Mapping[str, tuple[int, ...]]
UNET, CLIP_L = "model.diffusion_model.", "text_model.embeddings.token_embedding.weight"
VAE = {
    "first_stage_model.decoder.conv_in.weight": (512, 4, 3, 3),
    "first_stage_model.decoder.mid.block_1.conv1.weight": (512, 512, 3, 3),
}


def text_model(prefix: str, width: int) -> Shapes:
    return {f"{prefix}{CLIP_L}": (49408, width), f"{prefix}text_model.final_layer_norm.weight": (width,)}


def open_clip(prefix: str, width: int) -> Shapes:
    return {f"{prefix}token_embedding.weight": (49408, width), f"{prefix}ln_final.weight": (width,)}


def unet(context: int, **more: tuple[int, ...]) -> Shapes:
    """What tells UNets apart."""
    inner = f"{UNET}input_blocks.4.1."
    return {
        f"{UNET}input_blocks.0.0.weight": (320, 4, 3, 3),
        f"{inner}proj_in.weight": (640, 640, 1, 1) if context == 768 else (640, 640),
        f"{inner}transformer_blocks.0.attn2.to_k.weight": (640, context),
        **{f"{UNET}{name}.weight": shape for name, shape in more.items()},
        **VAE,
    }


SDXL = {
    **unet(2048, **{"label_emb.0.0": (1280, 2816)}),
    **text_model("conditioner.embedders.0.transformer.", 768),
    **open_clip("conditioner.embedders.1.model.", 1280),
}
KREA2 = {
    "first.weight": (6144, 64),
    "txtfusion.projector.weight": (1, 12),
    "txtmlp.0.scale": (2560,),
    "blocks.0.attn.wq.weight": (6144, 6144),
}
SEEING = {
    "model.visual.patch_embed.proj.weight": (1024, 3, 2, 16, 16),
    "model.language_model.embed_tokens.weight": (151936, 2560),
    "model.language_model.layers.0.self_attn.q_norm.weight": (128,),
}
QWEN_IMAGE21 = {"txt_in.text_norm.weight": (4096,), "modulation.1.weight": (16384, 4096)}
TAESD = {"1.weight": (64, 4, 3, 3), "3.conv.0.weight": (64, 64, 3, 3)}
SAM2 = {"image_encoder.trunk.patch_embed.proj.weight": (96, 3, 7, 7), "sam_mask_decoder.iou_token.weight": (1, 256)}
BIREFNET = {"bb.patch_embed.proj.weight": (192, 3, 4, 4), "squeeze_module.0.conv_in.weight": (64, 5760, 3, 3)}
FLUX_LORA = {"img_in.lora_A.weight": (128, 128), "double_blocks.0.img_attn.proj.lora_B.bias": (3072,)}
KREA2_LORA = {
    "diffusion_model.blocks.0.attn.wq.lora_A.weight": (64, 6144),
    "diffusion_model.blocks.0.attn.wq.lora_B.weight": (6144, 64),
}
DOWN = "down_blocks_1_attentions_0_transformer_blocks_0_attn2_to_k"
RECORDED: Mapping[str, Shapes] = {
    "flux2-dev": {
        "double_stream_modulation_img.lin.weight": (36864, 6144),
        "guidance_in.in_layer.weight": (6144, 256),
        "txt_in.weight": (6144, 15360),
    },
    "mistral-small": {
        "model.embed_tokens.weight": (131072, 5120),
        "model.layers.0.self_attn.q_proj.weight": (4096, 5120),
        "model.layers.0.mlp.gate_proj.weight": (32768, 5120),
    },
    "sd15": {**unet(768), **text_model("cond_stage_model.transformer.", 768)},
    "sdxl": SDXL,
    "sd15-hyper": lora({DOWN: (640, 768)}, rank=64),
    "sd15-lcm": lora({DOWN: (640, 768)}, rank=64),
    "sd-turbo": {**unet(1024), **open_clip("conditioner.embedders.0.model.", 1024)},
    "sdxl-turbo": SDXL,
    "sdxl-dmd2": lora({DOWN: (640, 2048)}, rank=64),
    "sd35-medium": {
        f"{UNET}x_embedder.proj.weight": (1536, 16, 2, 2),
        f"{UNET}joint_blocks.0.x_block.attn2.qkv.weight": (4608, 1536),
        "first_stage_model.decoder.conv_in.weight": (512, 16, 3, 3),
        "first_stage_model.decoder.mid.block_1.conv1.weight": (512, 512, 3, 3),
    },
    "krea2-turbo": KREA2,
    "krea2-turbo-int8": KREA2,
    "qwen3-vl-4b": SEEING,
    "qwen-image-2.1-int8": QWEN_IMAGE21,
    "taesd": TAESD,
    "taesdxl": TAESD,
    "sam2.1-hiera-tiny": SAM2,
    "clipseg": {"clip.vision_model.embeddings.class_embedding": (768,), "decoder.film_mul.weight": (64, 512)},
    "owlv2-base": {
        "owlv2.vision_model.embeddings.class_embedding": (768,),
        "objectness_head.dense0.weight": (768, 768),
    },
    "qwen-image-control": {"controlnet_x_embedder.weight": (3072, 64), "txt_norm.weight": (3584,)},
    "krea2-identity-edit": KREA2_LORA,
    "krea2-style-reference": KREA2_LORA,
    "flux1-canny-lora": FLUX_LORA,
    "flux1-depth-lora": FLUX_LORA,
    "flux1-ip-adapter": {
        "double_blocks.0.processor.ip_adapter_double_stream_k_proj.weight": (3072, 4096),
        "ip_adapter_proj_model.proj.weight": (65536, 768),
    },
    "birefnet": BIREFNET,
    "birefnet-lite": BIREFNET,
    "rmbg-1.4": {"conv_in.weight": (64, 3, 3, 3), "stage1.rebnconvin.conv_s1.weight": (64, 64, 3, 3)},
}
"""The tensors by which files of the list are told, where no list of all names is recorded."""
LISTS = {
    **{"z-image-turbo": "z-image", "flux1-schnell": "flux1-schnell", "flux2-klein-4b": "flux2-klein-4b"},
    **{"flux2-klein-9b": "flux2-klein-9b", "anima": "anima", "chroma1-hd": "chroma1", "qwen-image": "qwen-image"},
    **{"qwen25-vl-7b": "te-qwen2.5-vl-7b", "qwen3-4b": "te-qwen3-4b", "qwen3-8b": "te-qwen3-8b"},
    **{"anima-2.9b": "anima", "qwen-image-2.1": "qwen-image-2.1", "qwen3-vl-8b": "te-qwen3-vl-8b"},
    **{"qwen-image-2.1-vae": "vae-qwen-image-2.1"},
    **{"ernie-image": "ernie-image", "ernie-image-turbo": "ernie-image", "ministral3-3b": "te-ministral3-3b"},
    **{"qwen3-06b": "te-qwen3-0.6b", "t5xxl-fp8": "te-t5xxl", "clip-l": "te-clip-l", "clip-g": "te-clip-g"},
    **{"flux-vae": "vae-flux1", "qwen-image-vae": "vae-qwen-image", "flux2-vae": "vae-flux2"},
}
"""The lists of all names of files (`tests/reference/dit/keys`)."""
TYPES = {"t5xxl-fp8": "F8_E4M3", "krea2-turbo": "F8_E4M3", "krea2-turbo-int8": "I8", "qwen3-vl-4b": "F8_E4M3"}
TYPES |= {"flux2-dev": "F8_E4M3", "mistral-small": "F8_E4M3"}
TYPES |= {"qwen-image-2.1-int8": "I8", "qwen3-vl-8b": "I8"}
SAID = {
    "sd15": "a checkpoint of SD 1.x, original names, fp16",
    "sdxl": "a checkpoint of SDXL, original names, fp16",
    "sd15-hyper": "a LoRA for SD 1.x, kohya names, fp16",
    "sd15-lcm": "a LoRA for SD 1.x, kohya names, fp16",
    "sd-turbo": "a checkpoint of SD 2.x, original names, fp16",
    "sdxl-turbo": "a checkpoint of SDXL, original names, fp16",
    "sdxl-dmd2": "a LoRA for SDXL, kohya names, fp16",
    "sd35-medium": "a checkpoint of SD 3, original names, fp16",
    "z-image-turbo": "a denoiser of Z-Image, original names, fp16",
    "flux1-schnell": "a denoiser of FLUX.1 schnell, original names, fp16",
    "flux2-klein-4b": "a denoiser of FLUX.2 klein, original names, fp16",
    "flux2-klein-9b": "a denoiser of FLUX.2 klein, original names, fp16",
    "anima": "a denoiser of Anima, original names, fp16",
    "anima-2.9b": "a denoiser of Anima, original names, fp16",
    "krea2-turbo": "a denoiser of Krea 2, original names, fp8 e4m3fn, with scales",
    "krea2-turbo-int8": "a denoiser of Krea 2, original names, int8, with scales",
    "chroma1-hd": "a denoiser of Chroma1, original names, fp16",
    "qwen-image": "a denoiser of Qwen-Image, original names, fp16",
    "qwen-image-2.1": "a denoiser of Qwen-Image-2.1, original names, fp16",
    "qwen-image-2.1-int8": "a denoiser of Qwen-Image-2.1, original names, int8, with scales",
    "qwen3-vl-8b": (
        "a text encoder, the language part of a model that sees (Qwen3-VL), transformers names, int8, with scales"
    ),
    "qwen-image-2.1-vae": "a VAE (64 channels), original names, fp16",
    "ernie-image": "a denoiser of ERNIE-Image, original names, fp16",
    "ernie-image-turbo": "a denoiser of ERNIE-Image, original names, fp16",
    "ministral3-3b": "a text encoder, a language model (Ministral 3), transformers names, fp16",
    "flux2-dev": "a denoiser of FLUX.2 dev, original names, fp8 e4m3fn, with scales",
    "mistral-small": (
        "a text encoder, a language model (Mistral Small 3), transformers names, fp8 e4m3fn, with scales"
    ),
    "qwen25-vl-7b": "a text encoder, the language part of a model that sees (Qwen2.5-VL), transformers names, fp16",
    "qwen3-4b": "a text encoder, a language model (Qwen3), transformers names, fp16",
    "qwen3-8b": "a text encoder, a language model (Qwen3), transformers names, fp16",
    "qwen3-06b": "a text encoder, a language model (Qwen3), transformers names, fp16",
    "qwen3-vl-4b": (
        "a text encoder, the language part of a model that sees (Qwen3-VL), transformers names, fp8 e4m3fn, with scales"
    ),
    "t5xxl-fp8": "a text encoder, T5, transformers names, fp8 e4m3fn",
    "clip-l": "a text encoder, CLIP, transformers names, fp16",
    "clip-g": "a text encoder, CLIP, transformers names, fp16",
    "taesd": "a tiny VAE, fp16",
    "taesdxl": "a tiny VAE, fp16",
    "sam2.1-hiera-tiny": "SAM 2, fp16",
    "clipseg": "CLIPSeg, fp16",
    "owlv2-base": "OWLv2, fp16",
    "qwen-image-control": "a ControlNet for Qwen-Image, fp16",
    "krea2-identity-edit": "a LoRA for Krea 2, PEFT names, fp16",
    "krea2-style-reference": "a LoRA for Krea 2, PEFT names, fp16",
    "flux1-canny-lora": "a control LoRA of FLUX.1 for FLUX.1 dev, fp16",
    "flux1-depth-lora": "a control LoRA of FLUX.1 for FLUX.1 dev, fp16",
    "flux1-ip-adapter": "an IP-adapter for FLUX.1, fp16",
    "birefnet": "BiRefNet or RMBG-2.0, fp16",
    "birefnet-lite": "BiRefNet or RMBG-2.0, fp16",
    "rmbg-1.4": "U-2-Net, IS-Net or RMBG-1.4, fp16",
    "flux-vae": "a VAE (16 channels), original names, fp16",
    "qwen-image-vae": "a VAE (16 channels), original names, fp16",
    "flux2-vae": "a VAE (32 channels), original names, fp16",
}


@cache
def found(name: str) -> Detected:
    """What detection says of the file of an entry."""
    if name in RECORDED:
        shapes = RECORDED[name]
    else:
        lines = gzip.decompress((DIT / "keys" / f"{LISTS[name]}.txt.gz").read_bytes()).decode().splitlines()
        rows = (line.split("\t") for line in lines)
        shapes = {key: tuple(int(side) for side in sides.split("x") if side.isdecimal()) for _, sides, key in rows}
    tensors = {key: Stored(shape, TYPES.get(name, "F16")) for key, shape in shapes.items()}
    if name in TYPES and name != "t5xxl-fp8":
        tensors["some.weight_scale"] = Stored((1,), "F32")
    return detected(Header("safetensors", tensors))


def test_all_entries_are_recorded() -> None:
    assert set(SAID) == {*RECORDED, *LISTS} == set(known_models(ROOT / "configs"))


@pytest.mark.parametrize("name", SAID)
def test_an_entry_is_what_its_header_says(name: str) -> None:
    known = known_models(ROOT / "configs")
    entry, told = known[name], found(name)
    assert (told.line, told.refusal) == (SAID[name], "")
    assert not entry.types or entry.is_among(told.parts), "its types and width are those of its file"
    if told.kind is not Kind.CHECKPOINT:  # which has text encoders and a VAE inside
        named = [one.types for one in known.values() if one.is_among(told.parts)]
        assert set(named) <= {entry.types}, "no entry of another kind has them"


@pytest.mark.parametrize("name", [name for name in SAID if "denoiser" in SAID[name] or name == "sd35-medium"])
def test_the_parts_of_an_entry_are_those_that_its_file_lacks(name: str) -> None:
    known = known_models(ROOT / "configs")
    assert {part.name for part in entries_for(found(name).missing, known)} == set(known[name].parts)


@pytest.mark.parametrize("name", ["sd15", "sdxl", "sd-turbo"])
def test_a_whole_checkpoint_lacks_nothing(name: str) -> None:
    assert found(name).missing == ()
