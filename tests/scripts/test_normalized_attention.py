"""Normalized attention guidance and seed variance against computations of their own: the first one inside of the
attention function, by the formula of the paper, over a batch that has each text."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    ErnieImageTransformer2DModel,
    Flux3Transformer2DModel,
    QwenImage21Transformer2DModel,
    QwenImageTransformer2DModel,
    UNet2DConditionModel,
    ZImageTransformer2DModel,
)
from torch import Tensor, nn
from torch.nn import functional as F

from modules.models.families.denoiser_context import DenoiserContext, ModelInputs
from modules.models.families.qwen_image.denoiser import Positions
from modules.models.families.qwen_image21.denoiser import transformer_component
from modules.models.files.tensor_file import TensorEntry
from modules.models.loading.unet_running import UnetRunner
from modules.processing.request.model_use import DenoiserInputs, ModelCall, ModelUse, PassFacts
from tests.extensions import built_in
from tests.models.dit_models import CONTEXT, TINY

SIDE, IMAGE_TOKENS, TEXT_TOKENS = 16, 64, 32
SCALE, TAU, ALPHA = 7.0, 1.5, 0.4
CALL = ModelCall((0, 1, 0, 1), (False, False, True, True), 0, 4)
TEXT_FIRST, IMAGE_FIRST = "text first", "image first"


def randomized(module: nn.Module) -> Any:
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.normal_(std=1.0 / parameter.shape[-1] ** 0.5) if parameter.ndim > 1 else parameter.uniform_(0.5, 1.0)
    return module


def z_image() -> Any:
    sizes = {"in_channels": 16, "dim": 128, "n_heads": 1, "n_kv_heads": 1, "cap_feat_dim": CONTEXT}
    return ZImageTransformer2DModel(n_layers=2, n_refiner_layers=1, **sizes)


def qwen_image() -> Any:
    module = QwenImageTransformer2DModel(num_layers=2, num_attention_heads=1, joint_attention_dim=CONTEXT)
    module.pos_embed = Positions()
    return module


def qwen_image21() -> Any:
    state = QwenImage21Transformer2DModel(num_layers=2, num_attention_heads=1, context_in_dim=CONTEXT).state_dict()
    header = {f"model.diffusion_model.{key}": TensorEntry(t.dtype, tuple(t.shape), 0, 0) for key, t in state.items()}
    module = transformer_component(header).module.to_empty(device="cpu")
    module.load_state_dict(state)
    return module


def ernie_image() -> Any:
    return ErnieImageTransformer2DModel(
        hidden_size=128, num_attention_heads=1, num_layers=2, ffn_hidden_size=64, in_channels=16, out_channels=16,
        text_in_dim=CONTEXT,
    )  # fmt: skip


def flux3() -> Any:
    return Flux3Transformer2DModel(
        in_channels=16, cond_in_channels=16, num_layers=1, num_single_layers=2, num_attention_heads=1,
        joint_attention_dim=CONTEXT,
    )  # fmt: skip


FAMILIES: dict[str, tuple[Callable[[], Any], str, str]] = {
    "flux1": (TINY["dev"].transformer, "transformer_flux", TEXT_FIRST),
    "flux2": (TINY["klein"].transformer, "transformer_flux2", TEXT_FIRST),
    "chroma": (TINY["chroma"].transformer, "transformer_flux", TEXT_FIRST),
    "z_image": (z_image, "transformer_z_image", IMAGE_FIRST),
    "qwen_image": (qwen_image, "transformer_qwenimage", TEXT_FIRST),
    "qwen_image21": (qwen_image21, "transformer_qwenimage21", TEXT_FIRST),
    "ernie_image": (ernie_image, "transformer_ernie_image", IMAGE_FIRST),
    "flux3": (flux3, "transformer_flux3", TEXT_FIRST),
}
MASKED = ("z_image", "qwen_image", "chroma", "qwen_image21", "ernie_image", "flux3")
PLAIN = ("z_image", "qwen_image", "qwen_image21", "ernie_image", "flux3")
"""Those whose weights are made here."""
UNPATCHED = ("flux2", "qwen_image21", "ernie_image", "flux3")


def script(name: str, title: str, **values: Any) -> tuple[Any, list[Any]]:
    found: Any = built_in().find_alwayson(title)
    return found, [True, *(values.get(row.name, row.default) for row in found.rows[1:])]


def guided_rows(features: Tensor, image: slice) -> Tensor:
    """The formula of the paper for rows [positive, positive, others..., negative, negative] of features [N,T,C]."""
    features = features.clone()
    positive, negative = features[:2, image], features[-2:, image]
    led = positive + (SCALE - 1) * (positive - negative)
    before, after = (torch.linalg.vector_norm(each, ord=1, dim=-1, keepdim=True) for each in (positive, led))
    shrunk = torch.where(after > TAU * before, led / after * before * TAU, led)
    found = ALPHA * shrunk + (1 - ALPHA) * positive
    features[:2, image], features[-2:, image] = found, found
    return features


def attention(place: str) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **_: Any) -> Tensor:
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        found = F.scaled_dot_product_attention(query, key, value, attn_mask).transpose(1, 2)
        if key.shape[2] <= IMAGE_TOKENS:  # image or text alone
            return found
        image = slice(-IMAGE_TOKENS, None) if place == TEXT_FIRST else slice(IMAGE_TOKENS)
        return guided_rows(found.flatten(2), image).reshape(found.shape)

    return attend


def texts_of(width: int, seed: int, masked: bool) -> tuple[Tensor, Tensor | None]:
    text = torch.randn(2, TEXT_TOKENS, width, generator=torch.Generator().manual_seed(seed))
    return text, torch.ones(2, TEXT_TOKENS, dtype=torch.bool) if masked else None


@pytest.fixture
def no_grad() -> Iterator[None]:
    with torch.no_grad():
        yield


def use_of(module: Any) -> ModelUse:
    model = SimpleNamespace(unet=module, unet_runner=UnetRunner(), family=SimpleNamespace(label="Toy"))
    told: list[str] = []
    use = ModelUse(model, PassFacts(("a", "b"), ("", ""), (128, 128), 4, 1.0), lambda *_: None, told.append)
    model.told = told
    return use


@pytest.mark.usefixtures("no_grad")
@pytest.mark.parametrize("name", FAMILIES)
def test_image_tokens_of_transformers_are_led_away(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, library, place = FAMILIES[name]
    module = randomized(make().eval().requires_grad_(False)) if name in PLAIN else make()
    denoiser = import_module(f"modules.models.families.{name}.denoiser").DENOISER
    sizes = denoiser.sizes(module)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, sizes.channels, SIDE, SIDE, generator=generator)[[0, 1, 0, 1]]
    side = SIDE if name not in UNPATCHED else IMAGE_TOKENS // 8
    x = x[..., :side, :side]
    masked = name in MASKED
    positive, mask = texts_of(sizes.context_width, 2, masked)
    negative, other_mask = texts_of(sizes.context_width, 3, masked)
    vector = torch.randn(4, sizes.vector_width, generator=generator) if sizes.vector_width else None
    extra = {"guidance": torch.full((4,), 3.5)} if name == "flux1" else {}
    masks = torch.cat([mask, other_mask]) if mask is not None and other_mask is not None else None
    context = DenoiserContext(torch.cat([positive, negative]), vector, None, extra, masks)

    def denoise(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        inputs = ModelInputs(x, sigma, context.crossattn, context.vector, context.extra, context.mask)
        found: Tensor = denoiser.run(module, inputs)
        return found

    times = torch.full((4,), 500.0)
    plain = denoise(x, times, context)
    use = use_of(module)
    owner, args = script("normalized_attention", "NAG", scale=SCALE, tau=TAU, alpha=ALPHA)
    owner.on_model(SimpleNamespace(script_values={}), use, *args)
    assert use.reads_uncond
    for remember in use.before_call:
        remember(DenoiserInputs(x, times, positive, negative, 0, 4, mask_cond=mask, mask_uncond=other_mask))
    with use.undo, use.calling(CALL):
        ours = use.around(denoise)(x, times, context)
    assert torch.equal(denoise(x, times, context), plain), "what was put on the model is taken off"

    monkeypatch.setattr(f"diffusers.models.transformers.{library}.dispatch_attention_fn", attention(place))
    rows = [0, 1, 2, 3, 0, 1]
    both = replace(
        context,
        crossattn=torch.cat([context.crossattn, negative]),
        vector=None if vector is None else vector[rows],
        extra={key: value[rows] for key, value in extra.items()},
        mask=None if masks is None else torch.cat([masks, masks[2:]]),
    )
    theirs = denoise(x[rows], times[:1].expand(6), both)[:4]
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert float((ours - plain)[:2].abs().max()) > 1e-3 and torch.allclose(ours[2:], plain[2:], atol=1e-4)


class Attended:
    """Cross-attention of a UNet, whose negative text is `other`."""

    def __init__(self, other: Tensor) -> None:
        self.other = other

    def __call__(self, attn: Any, hidden_states: Tensor, encoder_hidden_states: Any = None, **_: Any) -> Tensor:
        def attended(tokens: Tensor, context: Tensor) -> Tensor:
            parts = (attn.to_q(tokens), attn.to_k(context), attn.to_v(context))
            query, key, value = (each.unflatten(-1, (attn.heads, -1)).transpose(1, 2) for each in parts)
            shares = (query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5).softmax(-1)
            features: Tensor = (shares @ value).transpose(1, 2).flatten(2)
            return features

        found = attended(hidden_states, hidden_states if encoder_hidden_states is None else encoder_hidden_states)
        if encoder_hidden_states is not None:
            negative = attended(hidden_states[:2], self.other)
            found = guided_rows(torch.cat([found, negative]), slice(None))[:4]
        output: Tensor = attn.to_out[0](found)
        return output


@pytest.mark.usefixtures("no_grad")
def test_cross_attention_of_a_unet_is_led_away() -> None:
    torch.manual_seed(0)
    unet: Any = UNet2DConditionModel(
        block_out_channels=(32, 32), layers_per_block=1, cross_attention_dim=24, attention_head_dim=8,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
    ).eval()  # fmt: skip
    x, texts = torch.randn(2, 4, 8, 8)[[0, 1, 0, 1]], torch.randn(4, 9, 24)
    longer = torch.cat([texts[2:], torch.randn(2, 4, 24)], dim=1)

    def denoise(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        found: Tensor = unet(x, sigma, context.crossattn, return_dict=False)[0]
        return found

    times, context = torch.full((4,), 500.0), DenoiserContext(texts)
    use = use_of(unet)
    owner, args = script("normalized_attention", "NAG", scale=SCALE, tau=TAU, alpha=ALPHA, end=0.5)
    owner.on_model(SimpleNamespace(script_values={}), use, *args)
    for remember in use.before_call:
        remember(DenoiserInputs(x, times, texts[:2], longer, 0, 4))
    plain = denoise_plain = None
    with use.undo:
        with use.calling(CALL):
            ours = use.around(denoise)(x, times, context)
        with use.calling(replace(CALL, step=2)):
            denoise_plain = use.around(denoise)(x, times, context)
    plain = denoise(x, times, context)
    assert torch.equal(denoise_plain, plain), "behind its end"
    for block in (module for module in unet.modules() if hasattr(module, "attn2")):
        block.attn2.set_processor(Attended(longer))
    torch.testing.assert_close(ours, denoise(x, times, context), atol=1e-4, rtol=1e-4)
    assert float((ours - plain)[:2].abs().max()) > 1e-3


def test_a_denoiser_without_such_layers_is_told_of() -> None:
    use = use_of(nn.Linear(2, 2))
    owner, args = script("normalized_attention", "NAG")
    owner.on_model(SimpleNamespace(script_values={}), use, *args)
    assert use.model.told == ["Normalized Attention Guidance has no effect on Toy: its denoiser has no layers for it."]


def test_rows_that_are_computed_apart_are_told_of_once() -> None:
    """Memory is short, or the family calls texts of each length for themselves."""
    module = TINY["dev"].transformer()
    use = use_of(module)
    owner, args = script("normalized_attention", "NAG")
    owner.on_model(SimpleNamespace(script_values={}), use, *args)
    texts = torch.zeros(2, 4, CONTEXT)
    use.before_call[0](DenoiserInputs(texts, texts[:, 0, 0], texts, texts, 0, 4))

    def denoise(x: Tensor, sigma: Tensor, context: Any) -> Tensor:
        rows = [module.transformer_blocks[0].attn.to_out[0](row[None]) for row in x]
        return torch.cat(rows)

    x = torch.randn(4, 3, 128)
    with use.undo, use.calling(CALL):
        found = use.around(denoise)(x, x[:, 0, 0], DenoiserContext(torch.zeros(4, 4, CONTEXT)))
    assert torch.allclose(found, module.transformer_blocks[0].attn.to_out[0](x), atol=1e-5)
    assert use.model.told == [
        "Normalized Attention Guidance was left out where prompt and negative prompt were computed apart."
    ]


def test_seed_variance_adds_noise_of_each_image_to_its_first_steps() -> None:
    owner, args = script("seed_variance", "Seed Variance", strength=2.0, share=0.3, end=0.5)
    use = use_of(nn.Linear(2, 2))
    owner.on_model(SimpleNamespace(script_values={}, seeds=[5, 6]), use, *args)
    texts = torch.randn(4, 7, 50, generator=torch.Generator().manual_seed(1))
    mask = torch.ones(4, 7, dtype=torch.bool)
    mask[0, 4:] = False
    seen: list[Tensor] = []

    def denoise(x: Tensor, sigma: Tensor, context: DenoiserContext) -> Tensor:
        seen.append(context.crossattn)
        return x

    for step in (0, 1, 2):
        with use.calling(replace(CALL, step=step)):
            use.around(denoise)(texts, texts, DenoiserContext(texts, mask=mask))
    added = seen[0] - texts
    assert torch.equal(seen[0], seen[1]) and torch.equal(seen[2], texts)
    assert not added[0, 4:].any() and not added[2:].any()
    share = float((added[1] != 0).float().mean())
    assert share == pytest.approx(0.3, abs=0.06)
    noise = torch.randn(7, 50, generator=torch.Generator().manual_seed(6 + 2**40)) * texts[1].std() * 2.0
    assert torch.allclose(added[1], torch.where(added[1] != 0, noise, 0.0), atol=1e-5)
    assert not torch.equal(added[0, :4], added[1, :4])
