"""Names and shapes of original checkpoint files, laid out anew from the sizes that their authors published.

Written from the original programs' structure and not from our key maps, so that the two can be held against each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class UNetSizes:
    """`depths` and `up_depths` (from the coarsest level): transformer blocks behind each residual block of a level."""

    in_channels: int
    width: int
    multipliers: tuple[int, ...]
    depths: tuple[tuple[int, ...], ...]
    middle_depth: int
    up_depths: tuple[tuple[int, ...], ...]
    context: int
    linear: bool = False
    vector: int | None = None


@dataclass(frozen=True)
class TextSizes:
    width: int
    layers: int
    mlp: int
    vocabulary: int = 49408


@dataclass(frozen=True)
class FileSizes:
    unet: UNetSizes
    clip: tuple[str, TextSizes] | None = None  # prefix and sizes
    open_clip: tuple[str, TextSizes] | None = None
    vae_width: int = 128
    extras: Shapes = field(default_factory=dict)


def even(levels: Sequence[int], blocks: int = 2) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Down and up depths of a UNet whose levels have these depths throughout."""
    down = tuple((depth,) * blocks for depth in levels)
    return down, tuple((depth,) * (blocks + 1) for depth in reversed(levels))


SCHEDULE: Shapes = dict.fromkeys(
    (
        "alphas_cumprod",
        "alphas_cumprod_prev",
        "betas",
        "log_one_minus_alphas_cumprod",
        "posterior_log_variance_clipped",
        "posterior_mean_coef1",
        "posterior_mean_coef2",
        "posterior_variance",
        "sqrt_alphas_cumprod",
        "sqrt_one_minus_alphas_cumprod",
        "sqrt_recip_alphas_cumprod",
        "sqrt_recipm1_alphas_cumprod",
    ),
    (1000,),
)
CLIP_L = TextSizes(768, 12, 3072)
VIT_H = TextSizes(1024, 24, 4096)
BIG_G = TextSizes(1280, 32, 5120)
_SD1 = even((1, 1, 1, 0))
_SDXL = even((0, 2, 10))
_REFINER = even((0, 4, 4, 0))
FULL = {
    "sd1": FileSizes(
        UNetSizes(4, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 768),
        clip=("cond_stage_model.transformer", CLIP_L),
        extras=SCHEDULE,
    ),
    "sd1 inpainting": FileSizes(
        UNetSizes(9, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 768), clip=("cond_stage_model.transformer", CLIP_L)
    ),
    "instruct-pix2pix": FileSizes(
        UNetSizes(8, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 768), clip=("cond_stage_model.transformer", CLIP_L)
    ),
    "sd2": FileSizes(
        UNetSizes(4, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 1024, linear=True),
        open_clip=("cond_stage_model.model", VIT_H),
        extras=SCHEDULE,
    ),
    "sd2 inpainting": FileSizes(
        UNetSizes(9, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 1024, linear=True),
        open_clip=("cond_stage_model.model", VIT_H),
    ),
    "sd turbo": FileSizes(
        UNetSizes(4, 320, (1, 2, 4, 4), *(_SD1[0], 1, _SD1[1]), 1024, linear=True),
        open_clip=("conditioner.embedders.0.model", VIT_H),
        extras={"denoiser.sigmas": (1000,)},
    ),
    "sdxl": FileSizes(
        UNetSizes(4, 320, (1, 2, 4), *(_SDXL[0], 10, _SDXL[1]), 2048, linear=True, vector=2816),
        clip=("conditioner.embedders.0.transformer", CLIP_L),
        open_clip=("conditioner.embedders.1.model", BIG_G),
    ),
    "sdxl inpainting": FileSizes(
        UNetSizes(9, 320, (1, 2, 4), *(_SDXL[0], 10, _SDXL[1]), 2048, linear=True, vector=2816),
        clip=("conditioner.embedders.0.transformer", CLIP_L),
        open_clip=("conditioner.embedders.1.model", BIG_G),
    ),
    "sdxl v": FileSizes(
        UNetSizes(4, 320, (1, 2, 4), *(_SDXL[0], 10, _SDXL[1]), 2048, linear=True, vector=2816),
        clip=("conditioner.embedders.0.transformer", CLIP_L),
        open_clip=("conditioner.embedders.1.model", BIG_G),
        extras={"v_pred": (), "ztsnr": ()},
    ),
    "ssd-1b": FileSizes(
        UNetSizes(
            *(4, 320, (1, 2, 4)),
            *(((0, 0), (2, 2), (4, 4)), 0, ((4, 4, 10), (2, 1, 1), (0, 0, 0))),
            2048,
            linear=True,
            vector=2816,
        ),
        clip=("conditioner.embedders.0.transformer", CLIP_L),
        open_clip=("conditioner.embedders.1.model", BIG_G),
    ),
    "sdxl refiner": FileSizes(
        UNetSizes(4, 384, (1, 2, 4, 4), *(_REFINER[0], 4, _REFINER[1]), 1280, linear=True, vector=2560),
        open_clip=("conditioner.embedders.0.model", BIG_G),
    ),
}
"""The published sizes of every family."""


def file_shapes(sizes: FileSizes) -> Shapes:
    """All tensors of a checkpoint file."""
    shapes = {**unet_shapes(sizes.unet), **vae_shapes(sizes.vae_width), **sizes.extras}
    if sizes.clip:
        shapes |= clip_shapes(*sizes.clip)
    if sizes.open_clip:
        shapes |= open_clip_shapes(*sizes.open_clip)
    return shapes


def unet_shapes(sizes: UNetSizes) -> Shapes:
    """`model.diffusion_model.*`"""
    shapes: Shapes = {}
    width, time = sizes.width, sizes.width * 4

    def linear(name: str, out: int, into: int, bias: bool = True) -> None:
        shapes[f"model.diffusion_model.{name}.weight"] = (out, into)
        if bias:
            shapes[f"model.diffusion_model.{name}.bias"] = (out,)

    def conv(name: str, out: int, into: int, size: int = 3) -> None:
        shapes[f"model.diffusion_model.{name}.weight"] = (out, into, size, size)
        shapes[f"model.diffusion_model.{name}.bias"] = (out,)

    def norm(name: str, channels: int) -> None:
        shapes[f"model.diffusion_model.{name}.weight"] = (channels,)
        shapes[f"model.diffusion_model.{name}.bias"] = (channels,)

    def residual(name: str, into: int, out: int) -> None:
        norm(f"{name}.in_layers.0", into)
        conv(f"{name}.in_layers.2", out, into)
        linear(f"{name}.emb_layers.1", out, time)
        norm(f"{name}.out_layers.0", out)
        conv(f"{name}.out_layers.3", out, out)
        if into != out:
            conv(f"{name}.skip_connection", out, into, 1)

    def transformer(name: str, channels: int, depth: int) -> None:
        norm(f"{name}.norm", channels)
        for end in ("proj_in", "proj_out"):
            linear(f"{name}.{end}", channels, channels) if sizes.linear else conv(
                f"{name}.{end}", channels, channels, 1
            )
        for index in range(depth):
            block = f"{name}.transformer_blocks.{index}"
            for attention, context in (("attn1", channels), ("attn2", sizes.context)):
                linear(f"{block}.{attention}.to_q", channels, channels, bias=False)
                linear(f"{block}.{attention}.to_k", channels, context, bias=False)
                linear(f"{block}.{attention}.to_v", channels, context, bias=False)
                linear(f"{block}.{attention}.to_out.0", channels, channels)
            linear(f"{block}.ff.net.0.proj", channels * 8, channels)
            linear(f"{block}.ff.net.2", channels, channels * 4)
            for number in (1, 2, 3):
                norm(f"{block}.norm{number}", channels)

    linear("time_embed.0", time, width)
    linear("time_embed.2", time, time)
    if sizes.vector is not None:
        linear("label_emb.0.0", time, sizes.vector)
        linear("label_emb.0.2", time, time)
    conv("input_blocks.0.0", width, sizes.in_channels)
    skips, channels, number = [width], width, 1
    for level, multiplier in enumerate(sizes.multipliers):
        for depth in sizes.depths[level]:
            residual(f"input_blocks.{number}.0", channels, width * multiplier)
            channels = width * multiplier
            if depth:
                transformer(f"input_blocks.{number}.1", channels, depth)
            skips.append(channels)
            number += 1
        if level < len(sizes.multipliers) - 1:
            conv(f"input_blocks.{number}.0.op", channels, channels)
            skips.append(channels)
            number += 1
    residual("middle_block.0", channels, channels)
    if sizes.middle_depth:
        transformer("middle_block.1", channels, sizes.middle_depth)
        residual("middle_block.2", channels, channels)
    number = 0
    for row, multiplier in enumerate(reversed(sizes.multipliers)):
        for block, depth in enumerate(sizes.up_depths[row]):
            residual(f"output_blocks.{number}.0", channels + skips.pop(), width * multiplier)
            channels = width * multiplier
            if depth:
                transformer(f"output_blocks.{number}.1", channels, depth)
            if block == len(sizes.up_depths[row]) - 1 and row < len(sizes.multipliers) - 1:
                conv(f"output_blocks.{number}.{2 if depth else 1}.conv", channels, channels)
            number += 1
    norm("out.0", channels)
    conv("out.2", 4, channels)
    return shapes


def vae_shapes(width: int, multipliers: tuple[int, ...] = (1, 2, 4, 4), blocks: int = 2) -> Shapes:
    """`first_stage_model.*`"""
    shapes: Shapes = {}

    def conv(name: str, out: int, into: int, size: int = 3) -> None:
        shapes[f"first_stage_model.{name}.weight"] = (out, into, size, size)
        shapes[f"first_stage_model.{name}.bias"] = (out,)

    def norm(name: str, channels: int) -> None:
        shapes[f"first_stage_model.{name}.weight"] = (channels,)
        shapes[f"first_stage_model.{name}.bias"] = (channels,)

    def residual(name: str, into: int, out: int) -> None:
        norm(f"{name}.norm1", into)
        conv(f"{name}.conv1", out, into)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out)
        if into != out:
            conv(f"{name}.nin_shortcut", out, into, 1)

    def middle(half: str, channels: int) -> None:
        residual(f"{half}.mid.block_1", channels, channels)
        norm(f"{half}.mid.attn_1.norm", channels)
        for part in ("q", "k", "v", "proj_out"):
            conv(f"{half}.mid.attn_1.{part}", channels, channels, 1)
        residual(f"{half}.mid.block_2", channels, channels)

    conv("encoder.conv_in", width, 3)
    channels = width
    for level, multiplier in enumerate(multipliers):
        for block in range(blocks):
            residual(f"encoder.down.{level}.block.{block}", channels, width * multiplier)
            channels = width * multiplier
        if level < len(multipliers) - 1:
            conv(f"encoder.down.{level}.downsample.conv", channels, channels)
    middle("encoder", channels)
    norm("encoder.norm_out", channels)
    conv("encoder.conv_out", 8, channels)
    conv("quant_conv", 8, 8, 1)
    conv("post_quant_conv", 4, 4, 1)
    conv("decoder.conv_in", channels, 4)
    middle("decoder", channels)
    for level in reversed(range(len(multipliers))):
        for block in range(blocks + 1):
            residual(f"decoder.up.{level}.block.{block}", channels, width * multipliers[level])
            channels = width * multipliers[level]
        if level > 0:
            conv(f"decoder.up.{level}.upsample.conv", channels, channels)
    norm("decoder.norm_out", channels)
    conv("decoder.conv_out", 3, channels)
    return shapes


def clip_shapes(prefix: str, sizes: TextSizes) -> Shapes:
    """CLIP's text model as old transformers named it."""
    top, width = f"{prefix}.text_model", sizes.width
    shapes: Shapes = {
        f"{top}.embeddings.position_ids": (1, 77),
        f"{top}.embeddings.token_embedding.weight": (sizes.vocabulary, width),
        f"{top}.embeddings.position_embedding.weight": (77, width),
        f"{top}.final_layer_norm.weight": (width,),
        f"{top}.final_layer_norm.bias": (width,),
    }
    for index in range(sizes.layers):
        layer = f"{top}.encoder.layers.{index}"
        parts = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
        parts |= {"mlp.fc1": (sizes.mlp, width), "mlp.fc2": (width, sizes.mlp)}
        for name, shape in parts.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("layer_norm1", "layer_norm2"):
            shapes |= {f"{layer}.{name}.weight": (width,), f"{layer}.{name}.bias": (width,)}
    return shapes


def open_clip_shapes(prefix: str, sizes: TextSizes) -> Shapes:
    """OpenCLIP's text model; its projection is square in all published ones."""
    width = sizes.width
    shapes: Shapes = {
        f"{prefix}.positional_embedding": (77, width),
        f"{prefix}.text_projection": (width, width),
        f"{prefix}.logit_scale": (),
        f"{prefix}.token_embedding.weight": (sizes.vocabulary, width),
        f"{prefix}.ln_final.weight": (width,),
        f"{prefix}.ln_final.bias": (width,),
    }
    for index in range(sizes.layers):
        layer = f"{prefix}.transformer.resblocks.{index}"
        shapes |= {f"{layer}.attn.in_proj_weight": (3 * width, width), f"{layer}.attn.in_proj_bias": (3 * width,)}
        parts = {"attn.out_proj": (width, width), "mlp.c_fc": (sizes.mlp, width), "mlp.c_proj": (width, sizes.mlp)}
        for name, shape in parts.items():
            shapes |= {f"{layer}.{name}.weight": shape, f"{layer}.{name}.bias": shape[:1]}
        for name in ("ln_1", "ln_2"):
            shapes |= {f"{layer}.{name}.weight": (width,), f"{layer}.{name}.bias": (width,)}
    return shapes
