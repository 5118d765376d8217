"""The choice between ways of attention, and that networks keep their images and get their processors back."""

from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, CosmosTransformer3DModel, FluxTransformer2DModel, UNet2DConditionModel
from diffusers.models.attention_dispatch import _AttentionBackendRegistry as AttentionRegistry
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from modules.errors import UnknownNameError
from modules.flags.flags import Flags
from modules.memory.attention import ATTENTIONS, AttentionOptions, upcast
from modules.memory.kernels.support import KernelSupport
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
        backends = {item.backend for item in processors(unet)}
        with using_attention([unet], upcast(attention)):  # twice: the inner one wins, the outer one comes back
            torch.testing.assert_close(run(unet), expected, rtol=0, atol=1e-4)
        assert len(backends) == 1 and {item.backend for item in processors(unet)} == backends
    assert all(a is b for a, b in zip(processors(unet), before, strict=True))
    assert torch.equal(run(unet), expected)


def test_a_vae_with_its_norm_and_residual() -> None:
    vae = tiny_vae()
    latent = torch.randn(1, 4, 9, 7, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        expected = vae.decode(latent).sample
        with using_attention([vae], ATTENTIONS.get("sub-quadratic")(AttentionOptions(threshold_percent=0))):
            torch.testing.assert_close(vae.decode(latent).sample, expected, rtol=0, atol=1e-4)


def tiny_flux() -> Any:
    torch.manual_seed(0)
    return FluxTransformer2DModel(
        in_channels=4,
        num_layers=1,
        num_single_layers=1,
        attention_head_dim=8,
        num_attention_heads=2,
        joint_attention_dim=16,
        pooled_projection_dim=12,
        axes_dims_rope=(2, 2, 4),
    ).eval()


@torch.inference_mode()
@pytest.mark.parametrize("name", WAYS)
def test_transformers_that_call_the_dispatch_have_every_way(name: str) -> None:
    transformer, generator = tiny_flux(), torch.Generator().manual_seed(1)
    inputs = {
        "hidden_states": torch.randn(1, 9, 4, generator=generator),
        "encoder_hidden_states": torch.randn(1, 5, 16, generator=generator),
        "pooled_projections": torch.randn(1, 12, generator=generator),
        "timestep": torch.tensor([0.5]),
        "img_ids": torch.zeros(9, 3),
        "txt_ids": torch.zeros(5, 3),
    }
    way = ATTENTIONS.get(name)(AttentionOptions(query_chunk=4, key_chunk=5, threshold_percent=0))
    calls = 0

    def counted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return way(query, key, value)

    expected = transformer(**inputs, return_dict=False)[0]
    before = AttentionRegistry.list_backends()
    with using_attention([transformer], counted):
        torch.testing.assert_close(transformer(**inputs, return_dict=False)[0], expected, rtol=0, atol=1e-5)
    assert calls == 2
    assert torch.equal(transformer(**inputs, return_dict=False)[0], expected)
    assert AttentionRegistry.list_backends() == before


def test_a_mask_is_left_to_pytorch() -> None:
    """Ways of attention know none."""
    tokens, mask = torch.randn(1, 3, 2, 8), torch.tensor([[[[True, False, True]]]])
    expected = dispatch_attention_fn(tokens, tokens, tokens, attn_mask=mask)
    unet = tiny_unet()

    def fail(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise AssertionError("called")

    with using_attention([unet], fail):
        backend = processors(unet)[0].backend
        assert torch.equal(dispatch_attention_fn(tokens, tokens, tokens, attn_mask=mask, backend=backend), expected)


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


@pytest.mark.parametrize(
    ("ratio", "upcasting", "name"),
    [(0.4, False, "int8"), (0.4, True, "sdp"), (0.9, False, "sdp"), (None, False, "sdp")],
)
def test_automatic_is_int8_where_that_pays(
    ratio: float | None, upcasting: bool, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.processing.engine.attention.attention_problem", lambda: None)
    support = KernelSupport(ratio)
    choice = choose_attention("Automatic", upcasting, AttentionFlags(), CPU, torch.float32, lambda: support)
    assert choice.name == name


def test_int8_without_numba_falls_back_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("modules.processing.engine.attention.attention_problem", lambda: "numba is not installed")
    choice = choose_attention("int8", False, AttentionFlags(), CPU, torch.float32)
    assert choice.name == "sdp"
    assert choice.note is not None and "numba is not installed" in choice.note


def test_an_unknown_name_lists_the_known() -> None:
    with pytest.raises(UnknownNameError, match="sub-quadratic"):
        choose("subquad")


@torch.inference_mode()
def test_transformers_that_call_the_dispatch_without_a_backend_have_every_way_too() -> None:
    torch.manual_seed(0)
    transformer: Any = CosmosTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=32,
        num_layers=1,
        text_embed_dim=16,
        adaln_lora_dim=8,
        max_size=(8, 8, 8),
        concat_padding_mask=False,
        extra_pos_embed_type=None,
    ).eval()
    generator = torch.Generator().manual_seed(1)
    x, text = torch.randn(1, 4, 1, 8, 8, generator=generator), torch.randn(1, 5, 16, generator=generator)

    def run_it() -> Tensor:
        output: Tensor = transformer(x, torch.tensor([0.5]), text, return_dict=False)[0]
        return output

    way = ATTENTIONS.get("sub-quadratic")(AttentionOptions(query_chunk=4, key_chunk=5, threshold_percent=0))
    expected, calls = run_it(), []

    def counted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        calls.append(query.shape)
        return way(query, key, value)

    with using_attention([transformer], counted):
        torch.testing.assert_close(run_it(), expected, rtol=0, atol=1e-5)
    assert calls == [(1, 2, 16, 32)] * 2  # to the image, and to the text
    assert torch.equal(run_it(), expected)
