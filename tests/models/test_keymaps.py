import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modules.models.autoencoders.kl import KlSizes, build_kl
from modules.models.families.architecture import UNetArchitecture
from modules.models.families.ldm.denoiser import build_unet
from modules.models.names.keymap import KeyMap, ModulePair
from modules.models.names.ldm_unet import UNetLayout, unet_keymap
from modules.models.names.ldm_vae import vae_keymap


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 4), st.integers(1, 3), st.data())
def test_every_unet_parameter_has_an_original_name_and_back(levels: int, blocks: int, data: st.DataObject) -> None:
    attention = frozenset(data.draw(st.sets(st.integers(0, levels - 1))))
    widths = (32,) * levels
    with torch.device("meta"):
        unet = build_unet(
            UNetArchitecture(
                in_channels=4,
                out_channels=4,
                widths=widths,
                blocks_per_level=blocks,
                down_depths=tuple((int(level in attention),) * blocks for level in range(levels)),
                middle_depth=1,
                up_depths=tuple((int(level in attention),) * (blocks + 1) for level in reversed(range(levels))),
                context_width=16,
                heads=2,
            )
        )
    keymap = unet_keymap(UNetLayout(levels, blocks, attention))
    for key in unet.state_dict():
        original = keymap.to_original(key)
        assert original is not None, key
        assert keymap.to_ours(original) == key


@settings(deadline=None, max_examples=12)
@given(st.integers(1, 4), st.integers(1, 3))
def test_every_vae_parameter_has_an_original_name_and_back(levels: int, blocks: int) -> None:
    with torch.device("meta"):
        vae = build_kl(KlSizes(3, 3, 4, (32,) * levels, blocks))
    keymap = vae_keymap(levels, blocks)
    for key in vae.state_dict():
        original = keymap.to_original(key)
        assert original is not None, key
        assert keymap.to_ours(original) == key


def test_known_names_of_the_full_sd1_unet() -> None:
    keymap = unet_keymap(UNetLayout(4, 2, frozenset({0, 1, 2})))
    prefix = "model.diffusion_model."
    assert keymap.to_ours(prefix + "input_blocks.3.0.op.weight") == "down_blocks.0.downsamplers.0.conv.weight"
    assert keymap.to_ours(prefix + "output_blocks.2.1.conv.bias") == "up_blocks.0.upsamplers.0.conv.bias"
    assert keymap.to_ours(prefix + "output_blocks.5.2.conv.bias") == "up_blocks.1.upsamplers.0.conv.bias"
    attention = "transformer_blocks.0.attn2.to_k.weight"
    assert keymap.to_ours(f"{prefix}output_blocks.11.1.{attention}") == f"up_blocks.3.attentions.2.{attention}"
    assert keymap.to_ours(prefix + "input_blocks.99.0.op.weight") is None


def test_one_by_one_convolutions_of_the_vae_are_squeezed_and_back() -> None:
    keymap = vae_keymap(4, 2)
    weight = torch.rand(8, 8, 1, 1)
    original = "first_stage_model.encoder.mid.attn_1.q.weight"
    ours = keymap.tensor_to_ours(original, weight)
    assert ours.shape == (8, 8)
    assert torch.equal(keymap.tensor_to_original("encoder.mid_block.attentions.0.to_q.weight", ours), weight)
    quant = keymap.tensor_to_ours("first_stage_model.quant_conv.weight", weight)
    assert quant.shape == weight.shape


def test_a_module_twice_is_our_mistake() -> None:
    pairs = [ModulePair("a", "b"), ModulePair("a", "c")]
    try:
        KeyMap(pairs)
    except ValueError as error:
        assert "twice" in str(error)
    else:
        raise AssertionError("no error")
