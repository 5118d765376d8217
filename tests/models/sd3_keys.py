"""Names and shapes of Stable Diffusion 3 files in the original layout, from the sizes that their authors published.

Written from the original program's structure and not from our key map, as `original_keys`.
"""

from collections.abc import Set
from dataclasses import dataclass

from tests.models.original_keys import BIG_G, CLIP_L, Shapes, TextSizes, clip_shapes, vae_shapes

TOP = "model.diffusion_model"


@dataclass(frozen=True)
class Sd3Sizes:
    """`positions`: side of the table of positions; `dual`: blocks with a second attention; `head`: channels of one,
    where queries and keys are normed."""

    width: int = 1536
    layers: int = 24
    positions: int = 192
    text_width: int = 4096
    dual: Set[int] = frozenset()
    head: int | None = None
    clip_l: TextSizes | None = CLIP_L
    clip_g: TextSizes | None = BIG_G
    vae_width: int = 128
    channels: int = 16
    patch: int = 2


FULL_SD3 = {
    "sd3 medium": Sd3Sizes(),
    "sd3.5 medium": Sd3Sizes(positions=384, dual=frozenset(range(13)), head=64),
    "sd3.5 large": Sd3Sizes(width=2432, layers=38, head=64),
}


def sd3_shapes(sizes: Sd3Sizes) -> Shapes:
    """All tensors of a checkpoint file with both CLIP encoders."""
    shapes = {**transformer_shapes(sizes), **sd3_vae_shapes(sizes.vae_width, sizes.channels)}
    for name, text, projected in (("clip_l", sizes.clip_l, False), ("clip_g", sizes.clip_g, True)):
        if text is None:
            continue
        prefix = f"text_encoders.{name}.transformer"
        shapes |= {key: shape for key, shape in clip_shapes(prefix, text).items() if "position_ids" not in key}
        if projected:
            shapes[f"{prefix}.text_projection.weight"] = (text.width, text.width)
    return shapes


def transformer_shapes(sizes: Sd3Sizes) -> Shapes:
    """`model.diffusion_model.*`"""
    shapes: Shapes = {}
    width, patch, channels = sizes.width, sizes.patch, sizes.channels

    def linear(name: str, out: int, into: int) -> None:
        shapes[f"{TOP}.{name}.weight"] = (out, into)
        shapes[f"{TOP}.{name}.bias"] = (out,)

    shapes[f"{TOP}.pos_embed"] = (1, sizes.positions**2, width)
    shapes[f"{TOP}.x_embedder.proj.weight"] = (width, channels, patch, patch)
    shapes[f"{TOP}.x_embedder.proj.bias"] = (width,)
    linear("t_embedder.mlp.0", width, 256)
    linear("t_embedder.mlp.2", width, width)
    linear("y_embedder.mlp.0", width, sum(text.width for text in (sizes.clip_l, sizes.clip_g) if text) or 2048)
    linear("y_embedder.mlp.2", width, width)
    linear("context_embedder", width, sizes.text_width)
    for layer in range(sizes.layers):
        for kind in ("x_block", "context_block"):
            block, is_image = f"joint_blocks.{layer}.{kind}", kind == "x_block"
            is_last_text = not is_image and layer == sizes.layers - 1
            attentions = ("attn", "attn2") if is_image and layer in sizes.dual else ("attn",)
            for attention in attentions:
                linear(f"{block}.{attention}.qkv", 3 * width, width)
                if not is_last_text:
                    linear(f"{block}.{attention}.proj", width, width)
                if sizes.head is not None:
                    for norm in ("ln_q", "ln_k"):
                        shapes[f"{TOP}.{block}.{attention}.{norm}.weight"] = (sizes.head,)
            vectors = 2 if is_last_text else 9 if len(attentions) == 2 else 6
            linear(f"{block}.adaLN_modulation.1", vectors * width, width)
            if not is_last_text:
                linear(f"{block}.mlp.fc1", 4 * width, width)
                linear(f"{block}.mlp.fc2", width, 4 * width)
    linear("final_layer.adaLN_modulation.1", 2 * width, width)
    linear("final_layer.linear", patch * patch * channels, width)
    return shapes


def sd3_vae_shapes(width: int, channels: int) -> Shapes:
    """`first_stage_model.*` without the 1x1 convolutions around the latents."""
    shapes = {key: shape for key, shape in vae_shapes(width).items() if "quant_conv" not in key}
    widest = width * 4
    shapes["first_stage_model.encoder.conv_out.weight"] = (2 * channels, widest, 3, 3)
    shapes["first_stage_model.encoder.conv_out.bias"] = (2 * channels,)
    shapes["first_stage_model.decoder.conv_in.weight"] = (widest, channels, 3, 3)
    return shapes
