"""Anima's transformer, and the adapter that turns a language model's states into its text tokens: sizes from the
tensors, modules on the meta device, and how they are called."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from modules.errors import InvalidValueError
from modules.models.detection.families import PREFIX
from modules.models.families.anima.layout import ADAPTER, ADAPTER_TABLE, adapter_keymap, blocks_of, transformer_keymap
from modules.models.families.denoiser_context import ModelInputs
from modules.models.families.family import Denoiser, DenoiserInputSizes
from modules.models.names.component import NO_DENOISER, Component, Header, meta_module, reading_sizes
from modules.models.text_encoders.llm import Rotation

HEAD_WIDTH, ADAPTER_HEAD_WIDTH = 128, 64
PATCH = 2
LONGEST = 1024  # latents along a side
NTK = (1.0, 4.0, 4.0)
ADAPTER_THETA = 10_000.0
TOKENS = 512
TRAINED_TIMESTEPS = 1000.0
ADAPTER_COMPONENT = "text_encoder_2"
SKIP = (r"^patch_embed\.", r"^time_embed\.", r"^norm_out\.", r"^proj_out$")
"""Small layers at the ends, which 8-bit formats leave alone."""


def adapter_component(name: str, header: Header) -> Component:
    """The adapter on the meta device. Raises `CheckpointError` for one that is not whole."""
    with reading_sizes("text adapter is not whole"):
        vocabulary, target = header[ADAPTER_TABLE].shape
        width, source = header[f"{ADAPTER}blocks.0.cross_attn.k_proj.weight"].shape
        mlp, _ = header[f"{ADAPTER}blocks.0.mlp.0.weight"].shape
        (head,) = header[f"{ADAPTER}blocks.0.cross_attn.q_norm.weight"].shape
    numbers = {int(key.removeprefix(f"{ADAPTER}blocks.").split(".")[0]) for key in header if f"{ADAPTER}blocks." in key}
    module = meta_module(
        "diffusers.AnimaTextConditioner",
        source_dim=source,
        target_dim=target,
        model_dim=width,
        num_layers=max(numbers) + 1,
        num_attention_heads=width // head,
        mlp_ratio=mlp / width,
        target_vocab_size=vocabulary,
        min_sequence_length=TOKENS,
    )
    module.rotary_emb = Rotation(head, ADAPTER_THETA)
    return Component(name, module, adapter_keymap(), (ADAPTER,), NO_DENOISER)


def transformer_component(header: Header) -> Component:
    """The transformer on the meta device. Raises `CheckpointError` for one that is not whole."""
    blocks = blocks_of(header)
    first = f"{PREFIX}blocks.0"
    with reading_sizes():
        width, patched = header[f"{PREFIX}x_embedder.proj.1.weight"].shape
        _, text = header[f"{first}.cross_attn.k_proj.weight"].shape
        mlp, _ = header[f"{first}.mlp.layer1.weight"].shape
        modulation, _ = header[f"{first}.adaln_modulation_mlp.1.weight"].shape
        (head,) = header[f"{first}.self_attn.q_norm.weight"].shape
        out, _ = header[f"{PREFIX}final_layer.linear.weight"].shape
    module = meta_module(
        "diffusers.CosmosTransformer3DModel",
        in_channels=patched // PATCH**2,  # those of the latents, and one of zeros
        out_channels=out // PATCH**2,
        num_attention_heads=width // head,
        attention_head_dim=head,
        num_layers=blocks,
        mlp_ratio=mlp / width,
        text_embed_dim=text,
        adaln_lora_dim=modulation,
        max_size=(LONGEST, LONGEST, LONGEST),
        patch_size=(1, PATCH, PATCH),
        rope_scale=NTK,
        concat_padding_mask=False,
        extra_pos_embed_type=None,
    )
    return Component("unet", module, transformer_keymap(blocks), (PREFIX,), NO_DENOISER, skip=SKIP)


def run_transformer(transformer: Any, inputs: ModelInputs) -> Tensor:
    """The velocity, see `Denoiser.run`. Latents of an odd side are continued by their last row or column for it.

    Raises `InvalidValueError` for an image that is larger than the model has positions for.
    """
    height, width = inputs.x.shape[-2:]
    if max(height, width) > LONGEST:
        raise InvalidValueError(
            f"This model makes images of at most {LONGEST} latents a side ({LONGEST * 8} pixels), and "
            f"{max(height, width)} were asked for. Choose a smaller size."
        )
    x = F.pad(inputs.x, (0, -width % PATCH, 0, -height % PATCH), mode="replicate")
    x = torch.cat([x, torch.zeros_like(x[:, :1])], dim=1)  # where a video is padded: nowhere
    output: Tensor = transformer(
        x.unsqueeze(2),  # not by name: hooks look at it
        inputs.timesteps / TRAINED_TIMESTEPS,
        inputs.crossattn,
        return_dict=False,
        **inputs.extra,
    )[0]
    return output.squeeze(2)[..., :height, :width]


def transformer_inputs(transformer: Any) -> DenoiserInputSizes:
    """See `Denoiser.sizes`."""
    config = transformer.config
    return DenoiserInputSizes(config.out_channels, config.text_embed_dim)


DENOISER = Denoiser(
    build=lambda header, architecture: (adapter_component(ADAPTER_COMPONENT, header), transformer_component(header)),
    run=run_transformer,
    sizes=transformer_inputs,
)
