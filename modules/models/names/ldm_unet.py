"""The UNet of the original latent-diffusion layout (`model.diffusion_model.*`) and diffusers' UNet2DConditionModel.

The original numbers its blocks in one list (`input_blocks.7.1`); diffusers counts by resolution. The rows follow from
three numbers: residual blocks a level, levels, and which levels have attention.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from modules.models.names.keymap import KeyMap, ModulePair

PREFIX = "model.diffusion_model"
RESNET_PARTS = {
    "in_layers.0": "norm1",
    "in_layers.2": "conv1",
    "emb_layers.1": "time_emb_proj",
    "out_layers.0": "norm2",
    "out_layers.3": "conv2",
    "skip_connection": "conv_shortcut",
}


@dataclass(frozen=True)
class UNetLayout:
    """The facts that the numbering of the original blocks follows from. Levels are counted from the finest
    resolution."""

    levels: int
    blocks_per_level: int
    attention_levels: frozenset[int]
    has_middle_attention: bool = True


def unet_keymap(layout: UNetLayout, prefix: str = PREFIX) -> KeyMap:
    """The map for a UNet of this layout."""
    return KeyMap(
        ModulePair(f"{prefix}.{original}", ours)
        for pairs in (_ends(), _down(layout), _middle(layout), _up(layout))
        for original, ours in pairs
    )


def _ends() -> Iterator[tuple[str, str]]:
    yield "time_embed.0", "time_embedding.linear_1"
    yield "time_embed.2", "time_embedding.linear_2"
    yield "label_emb.0.0", "class_embedding.linear_1"
    yield "label_emb.0.2", "class_embedding.linear_2"
    yield "input_blocks.0.0", "conv_in"
    yield "out.0", "conv_norm_out"
    yield "out.2", "conv_out"


def _resnet(original: str, ours: str) -> Iterator[tuple[str, str]]:
    for original_part, our_part in RESNET_PARTS.items():
        yield f"{original}.{original_part}", f"{ours}.{our_part}"


def _down(layout: UNetLayout) -> Iterator[tuple[str, str]]:
    number = 1
    for level in range(layout.levels):
        for block in range(layout.blocks_per_level):
            yield from _resnet(f"input_blocks.{number}.0", f"down_blocks.{level}.resnets.{block}")
            if level in layout.attention_levels:
                yield f"input_blocks.{number}.1", f"down_blocks.{level}.attentions.{block}"
            number += 1
        if level < layout.levels - 1:
            yield f"input_blocks.{number}.0.op", f"down_blocks.{level}.downsamplers.0.conv"
            number += 1


def _middle(layout: UNetLayout) -> Iterator[tuple[str, str]]:
    yield from _resnet("middle_block.0", "mid_block.resnets.0")
    if not layout.has_middle_attention:
        return
    yield "middle_block.1", "mid_block.attentions.0"
    yield from _resnet("middle_block.2", "mid_block.resnets.1")


def _up(layout: UNetLayout) -> Iterator[tuple[str, str]]:
    number = 0
    for index, level in enumerate(reversed(range(layout.levels))):
        for block in range(layout.blocks_per_level + 1):
            yield from _resnet(f"output_blocks.{number}.0", f"up_blocks.{index}.resnets.{block}")
            has_attention = level in layout.attention_levels
            if has_attention:
                yield f"output_blocks.{number}.1", f"up_blocks.{index}.attentions.{block}"
            if block == layout.blocks_per_level and level > 0:
                position = 2 if has_attention else 1
                yield f"output_blocks.{number}.{position}.conv", f"up_blocks.{index}.upsamplers.0.conv"
            number += 1
