"""The choice between ways of attention, and that networks keep their images and get their CPUs back."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, UNet2DConditionModel
from torch import Tensor

from modules.errors import UnknownNameError
from modules.flags.flags import Flags
from modules.memory.attention import ATTENTIONS, AttentionOptions, upcast
from modules.processing.engine.attention import Processor, choose_attention, using_attention
from modules.processing.engine.attention_options import AttentionFlags

CPU = torch.device("cpu")
WAYS = [name for name in ATTENTIONS if name != "xformers"]


def tiny_unet() -> Any:
    torch.manual_seed(0)
    return UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(32, 32),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=16,
        attention_head_dim=4,
    ).eval()


def tiny_vae() -> Any:
    torch.manual_seed(0)
    return AutoencoderKL(block_out_channels=(32,), norm_num_groups=8).eval()


@torch.inference_mode()
def run(unet: Any) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    x, context = torch.randn(2, 4, 8, 8, generator=generator), torch.randn(2, 7, 16, generator=generator)
    result: Tensor = unet(x, torch.tensor(500), encoder_hidden_states=context, return_dict=False)[0]
    return result


def processors(module: Any) -> list[Any]:
    return [layer.processor for layer in module.modules() if hasattr(layer, "processor")]


@pytest.mark.parametrize("name", WAYS)
def test_same_prediction_and_processors_come_back(name: str) -> None:
    unet = tiny_unet()
    before, expected = processors(unet), run(unet)
    attention = ATTENTIONS.get(name)(AttentionOptions(query_chunk=16, key_chunk=5, threshold_percent=0))
    with using_attention([unet], attention):
        assert all(isinstance(item, Processor) for item in processors(unet))
        torch.testing.assert_close(run(unet), expected, rtol=0, atol=1e-4)
        with using_attention([unet], upcast(attention)):  # twice: the inner one wins, the outer one comes back
            torch.testing.assert_close(run(unet), expected, rtol=0, atol=1e-4)
        assert {item.attention for item in processors(unet)} == {attention}
    assert all(a is b for a, b in zip(processors(unet), before, strict=True))
    assert torch.equal(run(unet), expected)


def test_a_vae_with_its_norm_and_residual() -> None:
    vae = tiny_vae()
    latent = torch.randn(1, 4, 9, 7, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = vae.decode(latent).sample
        with using_attention([vae], ATTENTIONS.get("sub-quadratic")(AttentionOptions(threshold_percent=0))):
            torch.testing.assert_close(vae.decode(latent).sample, expected, rtol=0, atol=1e-4)


def test_processors_come_back_after_an_exception() -> None:
    unet = tiny_unet()
    before = processors(unet)

    def fail(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"), using_attention([unet], fail):
        run(unet)
    assert all(a is b for a, b in zip(processors(unet), before, strict=True))


def choose(setting: str, flags: AttentionFlags | None = None, upcasting: bool = False) -> str:
    return choose_attention(setting, upcasting, flags or AttentionFlags(), CPU, torch.float32).name


def test_the_setting_wins_over_flags_and_flags_over_automatic() -> None:
    flags = AttentionFlags.of(Flags(opt_sub_quad_attention=True, sub_quad_q_chunk_size=64))
    assert flags.query_chunk == 64
    assert choose("Automatic") == "sdp"
    assert choose("Automatic", flags) == "sub-quadratic"
    assert choose("V1", flags) == "heads"
    assert choose("Doggettx") == "sliced"
    assert choose("sdp-no-mem - scaled dot product without memory efficient attention") == "sdp-no-mem"
    assert choose("Automatic", AttentionFlags.of(Flags(disable_opt_split_attention=True))) == "none"


def test_automatic_leaves_the_adapters_alone_unless_upcasting() -> None:
    assert choose_attention("Automatic", False, AttentionFlags(), CPU, torch.float32).attention is None
    assert choose_attention("Automatic", True, AttentionFlags(), CPU, torch.float32).attention is not None


def test_unusable_xformers_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.processing.engine.attention.xformers_problem", lambda device, dtype: "It is broken")
    choice = choose_attention("xformers", False, AttentionFlags(), CPU, torch.float32)
    assert choice.name == "sdp"
    assert choice.note is not None and "It is broken" in choice.note


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="sub-quadratic"):
        choose("subquad")
