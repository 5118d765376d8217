"""Tiny SD3 models as folders in the diffusers layout, written by diffusers and transformers themselves."""

import warnings
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.loaders import single_file_utils as convert
from torch import Tensor
from transformers import CLIPTextConfig, CLIPTextModelWithProjection, T5Config, T5EncoderModel

from tests.models import tiny_t5
from tests.models.diffusers_folders import write_json
from tests.models.family_files import TINY_SD3, family_tensors
from tests.models.original_keys import TextSizes

Tensors = dict[str, Tensor]
MODELS = {
    "transformer": "diffusers",
    "vae": "diffusers",
    "text_encoder": "transformers",
    "text_encoder_2": "transformers",
    "text_encoder_3": "transformers",
}


def sd3_transformer(name: str) -> SD3Transformer2DModel:
    """fp16, with the weights of the tiny file as diffusers itself converts them."""
    sizes = TINY_SD3[name]
    tensors = {key: tensor for key, tensor in family_tensors(name).items() if key.startswith("model.diffusion")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        converted = convert.convert_sd3_transformer_checkpoint_to_diffusers(tensors)
    model = SD3Transformer2DModel(
        sample_size=16,
        num_layers=sizes.layers,
        attention_head_dim=64,
        num_attention_heads=sizes.width // 64,
        joint_attention_dim=sizes.text_width,
        caption_projection_dim=sizes.width,
        pooled_projection_dim=192,
        pos_embed_max_size=sizes.positions,
        dual_attention_layers=tuple(sorted(sizes.dual)),
        qk_norm="rms_norm" if sizes.head else None,
    ).half()
    model.load_state_dict(converted)
    return model


def sd3_vae(name: str) -> AutoencoderKL:
    """fp16, 16 channels that are scaled and shifted."""
    config = {"down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4}
    vae = AutoencoderKL(
        block_out_channels=tuple(TINY_SD3[name].vae_width * step for step in (1, 2, 4, 4)),
        layers_per_block=2,
        latent_channels=16,
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.5305,
        shift_factor=0.0609,
    ).half()
    vae.load_state_dict(dict(convert.convert_ldm_vae_checkpoint(family_tensors(name), config)))
    return vae


def sd3_text_encoder(name: str, part: str, projection: Tensor | None = None) -> CLIPTextModelWithProjection:
    """`text_encoder` or `text_encoder_2`; `projection` of the former's pooled output, None: what diffusers gives it
    where it converts a file, which has none."""
    sizes, kind = TINY_SD3[name], {"text_encoder": "clip_l", "text_encoder_2": "clip_g"}[part]
    text: TextSizes | None = sizes.clip_l if kind == "clip_l" else sizes.clip_g
    assert text is not None
    config = CLIPTextConfig(
        vocab_size=text.vocabulary,
        hidden_size=text.width,
        intermediate_size=text.mlp,
        projection_dim=text.width,
        num_hidden_layers=text.layers,
        num_attention_heads=text.width // 64,
        hidden_act="quick_gelu" if kind == "clip_l" else "gelu",
    )
    model = CLIPTextModelWithProjection(config).half()
    prefix = f"text_encoders.{kind}.transformer."
    own = {key.removeprefix(prefix): t for key, t in family_tensors(name).items() if key.startswith(prefix)}
    if kind == "clip_l":
        own["text_projection.weight"] = torch.eye(text.width).half() if projection is None else projection
    missing, surplus = model.load_state_dict(own, strict=False)
    assert not surplus and all("position_ids" in key for key in missing)
    return model


def sd3_t5() -> T5EncoderModel:
    """`text_encoder_3`, fp16."""
    config = T5Config(
        vocab_size=tiny_t5.VOCABULARY,
        d_model=tiny_t5.WIDTH,
        d_kv=tiny_t5.HEAD_WIDTH,
        d_ff=tiny_t5.MLP,
        num_layers=tiny_t5.LAYERS,
        num_heads=tiny_t5.HEADS,
        relative_attention_num_buckets=tiny_t5.BUCKETS,
        feed_forward_proj="gated-gelu",
    )
    model = T5EncoderModel(config).half()
    tensors = tiny_t5.t5_tensors()
    model.load_state_dict({**tensors, "encoder.embed_tokens.weight": tensors["shared.weight"]})
    return model


def write_sd3_folder(
    parent: Path,
    name: str,
    title: str | None = None,
    shards: str = "10GB",
    variant: str | None = None,
    with_t5: bool = False,
    projection: Tensor | None = None,
) -> Path:
    """Write the folder `title` (None: `name`) and give its path. `shards`: the size of a file of the transformer and of
    T5, which has its tokenizer beside it."""
    folder = parent / (title or name)
    parts: dict[str, Any] = {
        "transformer": sd3_transformer(name),
        "vae": sd3_vae(name),
        "text_encoder": sd3_text_encoder(name, "text_encoder", projection),
        "text_encoder_2": sd3_text_encoder(name, "text_encoder_2"),
    }
    if with_t5:
        parts["text_encoder_3"] = sd3_t5()
        tiny_t5.write_tokenizer(folder / "tokenizer_3" / "tokenizer.json")
    for part, model in parts.items():
        model.save_pretrained(folder / part, max_shard_size=shards, variant=variant)
    FlowMatchEulerDiscreteScheduler(shift=3.0).save_pretrained(folder / "scheduler")
    index: dict[str, object] = {part: [MODELS[part], type(model).__name__] for part, model in parts.items()}
    if not with_t5:
        index["text_encoder_3"] = [None, None]
    write_json(folder / "model_index.json", {"_class_name": "StableDiffusion3Pipeline", **index})
    return folder


def sd3_parts(name: str, with_t5: bool = False) -> dict[str, Tensors]:
    """The tensors of each part, as the folder has them."""
    models: dict[str, Any] = {
        "transformer": sd3_transformer(name),
        "vae": sd3_vae(name),
        "text_encoder": sd3_text_encoder(name, "text_encoder"),
        "text_encoder_2": sd3_text_encoder(name, "text_encoder_2"),
    }
    found = {
        part: {key: tensor.clone() for key, tensor in model.state_dict().items()} for part, model in models.items()
    }
    return {**found, "text_encoder_3": tiny_t5.t5_tensors()} if with_t5 else found
