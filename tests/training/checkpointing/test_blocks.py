"""Which modules are taken for blocks."""

import pytest
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel

from lib_training.checkpointing import find_blocks
from modules.errors import InvalidValueError
from tests.training.checkpointing.models import Layer, Stack


def names(model: nn.Module) -> list[str]:
    return [block.name for block in find_blocks(model)]


def test_the_layers_of_a_transformer() -> None:
    blocks = find_blocks(Stack())
    assert [block.name for block in blocks] == [f"layers.{i}" for i in range(6)]
    assert [block.index for block in blocks] == list(range(6)) and {block.count for block in blocks} == {6}
    sizes = {"vocab_size": 9, "hidden_size": 8, "intermediate_size": 24, "eos_token_id": 8}
    clip = CLIPTextModel(CLIPTextConfig(num_hidden_layers=3, num_attention_heads=2, **sizes))
    assert names(clip) == [f"encoder.layers.{i}" for i in range(3)]


def test_the_residual_and_attention_blocks_of_a_unet() -> None:
    unet = UNet2DConditionModel(
        block_out_channels=(32, 64),
        layers_per_block=2,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=8,
    )
    found = names(unet)
    assert len([name for name in found if ".resnets." in name]) == 4 + 2 + 6
    assert len([name for name in found if ".attentions." in name]) == 2 + 1 + 3
    assert not any(name.startswith(f"{other}.") for name in found for other in found)


def test_a_list_of_leaves_or_of_different_things_is_none() -> None:
    with pytest.raises(InvalidValueError, match=r"no repeated blocks.*Name them"):
        find_blocks(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    with pytest.raises(InvalidValueError, match="no repeated blocks"):
        find_blocks(nn.ModuleList([Layer(8), nn.Linear(3, 3)]))


def test_blocks_may_be_named() -> None:
    model = Stack()
    assert [b.name for b in find_blocks(model, ["layers.1", "layers.4"])] == ["layers.1", "layers.4"]
    assert len(find_blocks(model, [nn.Linear])) == 13
    assert [b.name for b in find_blocks(model, lambda name, module: name.endswith("wide"))][:1] == ["layers.0.wide"]
    assert [b.name for b in find_blocks(model, ["layers.1", "layers.1.wide"])] == ["layers.1"]
    with pytest.raises(InvalidValueError, match=r"no module called layers.9"):
        find_blocks(model, ["layers.9"])
    with pytest.raises(InvalidValueError, match="none of the blocks that were named: Conv2d"):
        find_blocks(model, [nn.Conv2d])


def test_a_shared_block_counts_once() -> None:
    model, other = Stack(), Stack()
    model.layers[3] = model.layers[0]
    assert len(find_blocks(model)) == 5
    assert len(find_blocks(nn.ModuleDict({"a": model, "b": other}))) == 11
