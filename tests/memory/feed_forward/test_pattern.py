"""Which modules are recognised as feed-forwards, and which are left alone."""

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import nn
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from modules.memory.feed_forward import find_feed_forward, find_feed_forwards
from modules.memory.feed_forward.pattern import READINGS, TRANSFORMERS_READINGS
from modules.memory.storage import StorageRules
from tests.memory.feed_forward.models import DIFFUSERS, FEED_FORWARDS, NONE, Residual, diffusers
from tests.memory.storing import apply_storage


@pytest.mark.parametrize("name", FEED_FORWARDS)
def test_feed_forwards_of_known_classes_are_found(name: str) -> None:
    module = FEED_FORWARDS[name]()
    found = find_feed_forward(module)
    assert found is not None
    assert found.hidden == (32 if name == "square" else 72)
    gated = ("diffusers geglu", "diffusers geglu final", "diffusers swiglu", "t5 gated", "llama")
    assert (found.factor is not None) == (name in gated)


def test_each_class_of_the_table_is_held_against_the_module_itself() -> None:
    """`test_split.py` compares outputs and gradients of all of `FEED_FORWARDS`."""
    tried = {f"{each.__module__}.{each.__qualname__}" for each in {type(build()) for build in FEED_FORWARDS.values()}}
    by_ending = {name for name in tried if name.endswith(tuple(TRANSFORMERS_READINGS))}
    assert tried - by_ending == set(READINGS)
    assert {ending for ending in TRANSFORMERS_READINGS for name in by_ending if name.endswith(ending)} == set(
        TRANSFORMERS_READINGS
    )


@pytest.mark.parametrize("name", NONE)
def test_what_only_looks_like_one_is_left_alone(name: str) -> None:
    assert find_feed_forward(NONE[name]()) is None


def test_dropouts_are_found_where_they_happen() -> None:
    geglu = find_feed_forward(diffusers("geglu", final=True))
    assert geglu is not None and (geglu.dropouts, geglu.after) == (("net.1",), ("net.3",))


def test_the_modules_own_activation_is_used() -> None:
    for act in DIFFUSERS:
        module = diffusers(act)
        found = find_feed_forward(module)
        assert found is not None
        assert found.buffers == (3 if act == "geglu-approximate" else 2)


def test_whole_models_are_searched() -> None:
    clip = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=9,
            hidden_size=8,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            eos_token_id=8,
        )
    )
    assert list(find_feed_forwards(clip)) == ["encoder.layers.0.mlp", "encoder.layers.1.mlp"]
    t5 = T5EncoderModel(T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=24, num_layers=2, num_heads=2))
    assert len(find_feed_forwards(t5)) == 2
    unet = UNet2DConditionModel(block_out_channels=(32, 64), cross_attention_dim=8, **UNET_BLOCKS)
    found = [path for path in find_feed_forwards(unet) if path.endswith(".ff")]
    assert len(found) == len([path for path, _ in unet.named_modules() if path.endswith(".ff")]) == 6
    nested = nn.Sequential(Residual(), Residual())
    assert list(find_feed_forwards(nested)) == ["0.inside", "1.inside"]


UNET_BLOCKS = {
    "layers_per_block": 2,
    "down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"),
    "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D"),
}


def test_a_shared_feed_forward_is_found_once() -> None:
    shared = diffusers("geglu")
    assert list(find_feed_forwards(nn.ModuleList([shared, shared]))) == ["0"]


def test_stored_layers_and_layers_without_memory_are_found() -> None:
    stored = diffusers("geglu")
    apply_storage(stored, StorageRules("fp8_e4m3fn"), torch.float32)
    assert find_feed_forward(stored) is not None
    assert find_feed_forward(diffusers("geglu").to("meta")) is not None


def test_other_kinds_of_linear_layers_are_left_alone() -> None:
    class Other(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    assert find_feed_forward(nn.Sequential(Other(32, 72), nn.GELU(), nn.Linear(72, 32))) is None
