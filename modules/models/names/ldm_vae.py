"""The autoencoder of the original latent-diffusion layout (`first_stage_model.*`) and diffusers' AutoencoderKL."""

from collections.abc import Iterator

from modules.models.names.keymap import KeyMap, ModulePair

PREFIX = "first_stage_model"
RESNET_PARTS = {"norm1": "norm1", "conv1": "conv1", "norm2": "norm2", "conv2": "conv2", "nin_shortcut": "conv_shortcut"}
ATTENTION_PARTS = {"q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}


def vae_keymap(levels: int, blocks_per_level: int, prefix: str = PREFIX) -> KeyMap:
    """The map for an autoencoder of this many resolutions; the decoder has one residual block more a level."""
    return KeyMap(
        ModulePair(f"{prefix}.{pair.original}", pair.ours, pair.squeeze) for pair in vae_pairs(levels, blocks_per_level)
    )


def vae_pairs(levels: int, blocks_per_level: int) -> Iterator[ModulePair]:
    """The pairs of the map, without a prefix."""
    yield ModulePair("quant_conv", "quant_conv")
    yield ModulePair("post_quant_conv", "post_quant_conv")
    for level in range(levels):
        for block in range(blocks_per_level):
            yield from _resnet(f"encoder.down.{level}.block.{block}", f"encoder.down_blocks.{level}.resnets.{block}")
        for block in range(blocks_per_level + 1):
            yield from _resnet(
                f"decoder.up.{level}.block.{block}", f"decoder.up_blocks.{levels - 1 - level}.resnets.{block}"
            )
        if level < levels - 1:
            yield ModulePair(
                f"encoder.down.{level}.downsample.conv", f"encoder.down_blocks.{level}.downsamplers.0.conv"
            )
        if level > 0:
            yield ModulePair(
                f"decoder.up.{level}.upsample.conv", f"decoder.up_blocks.{levels - 1 - level}.upsamplers.0.conv"
            )
    for half in ("encoder", "decoder"):
        yield ModulePair(f"{half}.conv_in", f"{half}.conv_in")
        yield ModulePair(f"{half}.norm_out", f"{half}.conv_norm_out")
        yield ModulePair(f"{half}.conv_out", f"{half}.conv_out")
        yield from _resnet(f"{half}.mid.block_1", f"{half}.mid_block.resnets.0")
        yield from _resnet(f"{half}.mid.block_2", f"{half}.mid_block.resnets.1")
        yield ModulePair(f"{half}.mid.attn_1.norm", f"{half}.mid_block.attentions.0.group_norm")
        for original, ours in ATTENTION_PARTS.items():
            yield ModulePair(f"{half}.mid.attn_1.{original}", f"{half}.mid_block.attentions.0.{ours}", squeeze=True)


def _resnet(original: str, ours: str) -> Iterator[ModulePair]:
    for original_part, our_part in RESNET_PARTS.items():
        yield ModulePair(f"{original}.{original_part}", f"{ours}.{our_part}")
