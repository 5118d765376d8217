"""Blocks that decode their 8-bit weights at once: the same bits, whatever happens to the weights, and nothing left."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.memory import block_decoding
from modules.memory.block_decoding import (
    DecodedWeights,
    block_classes,
    decoded_peak_bytes,
    decoding_blocks,
    is_on_cuda,
)
from modules.memory.changes import AllBranches, Branches
from modules.memory.formats.format import FORMATS
from modules.memory.hook_chain import HookOrder, hooks_of, register_hook
from modules.memory.layer import manage, put, read_weight, stored_state, unmanage
from modules.memory.matmul import multiply_in_8_bits
from modules.memory.moving import move

FORMATS_8_BIT = ["fp8_e4m3fn", "fp8_e5m2", "fp8_e4m3fn_row", "int8_row"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def here(device: torch.device) -> bool:
    return True


class Block(nn.Module):
    """Two linear layers and two convolutions, one of them with few and odd weights."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 40), nn.Linear(40, 24, bias=False)
        self.wide, self.odd = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 3, 1)
        self.norm = nn.LayerNorm(24)
        self.meanwhile: Callable[[], Any] = lambda: None

    def forward(self, x: Tensor) -> Tensor:
        """[B,3,h,w] to the same."""
        hidden = self.wide(x).permute(0, 2, 3, 1)
        hidden = hidden + self.second(self.first(self.norm(hidden)).relu())
        self.meanwhile()
        made: Tensor = x + self.odd(hidden.permute(0, 3, 1, 2))
        return made


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.outside = nn.Conv2d(3, 3, 1)
        self.blocks: Any = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        x = self.outside(x)
        for block in self.blocks:
            x = block(x)
        return x


def store(root: nn.Module, storage: str, dtype: torch.dtype) -> None:
    """All weights and biases but those of norms."""
    form = FORMATS.get(storage)
    for layer in root.modules():
        if not isinstance(layer, (nn.Linear, nn.Conv2d)):
            continue
        formats = {}
        for name, parameter in list(layer._parameters.items()):
            if parameter is not None:
                encoded = form.encode(parameter.detach().float())
                put(layer, name, encoded.data, encoded.scale)
                formats[name] = form
        manage(layer, formats, dtype)


def model_of(storage: str = "fp8_e4m3fn_row", dtype: torch.dtype = torch.float32) -> Model:
    torch.manual_seed(0)
    model = Model().to(dtype).requires_grad_(False).eval()
    store(model, storage, dtype)
    return model


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))


def ready(layer: Any) -> Any:
    state = stored_state(layer)
    assert state is not None
    return state.ready


def layers_of(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if stored_state(layer) is not None]


def note_ready(block: Any, of: list[set[str]]) -> None:
    """Note in the middle of the block's forward which layers find their weights decoded."""
    names = {id(layer): name for name, layer in block.named_modules()}

    def meanwhile() -> None:
        of.append({f"{names[id(layer)]}.{name}" for layer in layers_of(block) for name in ready(layer) or ()})

    block.meanwhile = meanwhile


ALL = {"first.weight", "first.bias", "second.weight", "wide.weight", "wide.bias", "odd.weight", "odd.bias"}


@pytest.mark.parametrize("storage", FORMATS_8_BIT)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("branched", [False, True])
def test_the_output_is_the_same_to_the_bit(storage: str, dtype: torch.dtype, branched: bool, x: Tensor) -> None:
    model, x = model_of(storage, dtype), x.to(dtype)
    if branched:
        for block in model.blocks:
            state = stored_state(block.first)
            assert state is not None
            part = Branches(torch.randn(2, 24).to(dtype), torch.randn(40, 2).to(dtype), torch.ones(2))
            state.branches = AllBranches([part])
    with torch.inference_mode():
        alone = model(x)
        with decoding_blocks(model, ["Block"], here) as count:
            together, again = model(x), model(x)
        assert count == 2
        assert torch.equal(together, alone) and torch.equal(again, alone) and torch.equal(model(x), alone)


@pytest.mark.parametrize("storage", FORMATS_8_BIT)
@pytest.mark.parametrize("dtype", DTYPES)
@torch.inference_mode()
def test_weights_are_those_of_the_format(storage: str, dtype: torch.dtype, x: Tensor) -> None:
    model = model_of(storage, dtype)
    block = model.blocks[0]
    expected = {(layer, name): read_weight(layer, name) for layer in layers_of(block) for name in ready_names(layer)}
    found: dict[Any, Tensor] = {}

    def look() -> None:
        for layer in layers_of(block):
            assert set(ready(layer)) == set(ready_names(layer))
            found.update({(layer, name): weight.clone() for name, weight in ready(layer).items()})
            assert all(weight.data_ptr() % 64 == 0 and weight.is_contiguous() for weight in ready(layer).values())
            assert torch.equal(layer.weight, ready(layer)["weight"])

    block.meanwhile = look
    with decoding_blocks(model, ["Block"], here):
        model(x.to(dtype))
    assert len(found) == len(ALL) and all(torch.equal(found[key], weight) for key, weight in expected.items())


def ready_names(layer: nn.Module) -> list[str]:
    return [name for name, parameter in layer._parameters.items() if parameter is not None]


@torch.no_grad()
def test_all_but_what_is_elsewhere_or_changed_is_decoded(x: Tensor) -> None:
    class Half:
        def add_to(self, name: str, weight: Tensor) -> Tensor:
            return weight / 2

    model, seen = model_of(), list[set[str]]()
    block = model.blocks[0]
    note_ready(block, seen)
    state = stored_state(block.first)
    assert state is not None

    with decoding_blocks(model, ["Block"], here):
        model(x)
        state.changes = (Half(),)
        changed = model(x)
        state.changes = ()
        model(x)
        state.fetch = _Fetch()
        model(x)
        state.fetch = None
        unmanage(block.first)
        plain = model(x)
    rest = ALL - {"first.weight", "first.bias"}
    assert seen == [ALL, rest, ALL, rest, rest]
    assert torch.equal(plain, model(x)) and not torch.equal(plain, changed)


class _Fetch:
    """Brings what is in the layer."""

    def __call__(self, layer: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
        data = layer._parameters[name]
        assert data is not None
        return data.detach(), layer._buffers.get(name + "_scale")

    def parts(self, parts: Any) -> list[Tensor]:
        raise AssertionError

    def dtype(self, layer: nn.Module, name: str) -> torch.dtype | None:
        return None

    def replace(self, layer: nn.Module, name: str, data: Tensor) -> bool:
        return False


@torch.no_grad()
def test_weights_that_are_replaced_or_moved_are_used(x: Tensor) -> None:
    model, other = model_of(), model_of()
    block = model.blocks[0]
    for layer in layers_of(other):
        layer._parameters["weight"] = nn.Parameter(layer._parameters["weight"].flip(0), requires_grad=False)
    with decoding_blocks(model, ["Block"], here):
        first = model(x)
        data = other.blocks[0].first._parameters["weight"]
        scale = other.blocks[0].first._buffers["weight_scale"]
        put(block.first, "weight", data, scale)
        replaced = model(x)
        block.second._buffers["weight_scale"] = block.second._buffers["weight_scale"] * 2
        rescaled = model(x)
        back = move(model, torch.device("cpu"), torch.bfloat16)
        narrow = model(x.bfloat16())
        back()
        again = model(x)
        block.odd.float()  # what is stored becomes plain numbers
        moved = model(x)
    assert torch.equal(moved, model(x)) and not torch.equal(moved, again), "codes without their scales"
    assert narrow.dtype == torch.bfloat16 and torch.equal(again, rescaled)
    assert not torch.equal(first, replaced) and not torch.equal(replaced, rescaled)


@torch.no_grad()
def test_a_replaced_weight_leaves_memory(x: Tensor) -> None:
    model = model_of()
    with decoding_blocks(model, ["Block"], here):
        model(x)
        layer = model.blocks[0].first
        held = weakref.ref(layer._parameters["weight"])
        layer._parameters["weight"] = nn.Parameter(torch.zeros(40, 24).to(torch.float8_e4m3fn), requires_grad=False)
        gc.collect()
        assert held() is None


@torch.no_grad()
def test_decoded_weights_live_as_long_as_the_forward_also_when_it_fails(x: Tensor) -> None:
    model = model_of()
    block, views = model.blocks[0], list[weakref.ref[Tensor]]()

    def fail() -> None:
        views.extend(weakref.ref(each) for layer in layers_of(block) for each in ready(layer).values())
        raise ValueError("in the middle")

    expected = model(x)
    with decoding_blocks(model, ["Block"], here):
        block.meanwhile = fail
        with pytest.raises(ValueError, match="in the middle"):
            model(x)
        gc.collect()
        assert len(views) == len(ALL) and all(each() is None for each in views)
        assert all(ready(layer) is None for layer in layers_of(model))
        block.meanwhile = lambda: None
        assert torch.equal(model(x), expected)
    assert all(ready(layer) is None for layer in layers_of(model)) and not hooks_of(block)


@torch.no_grad()
def test_a_block_may_call_itself(x: Tensor) -> None:
    model = model_of()
    block = model.blocks[0]

    def again() -> None:
        block.meanwhile = lambda: None
        inner.append(block(x))
        assert ready(block.odd) is not None, "the outer call still needs it"
        block.meanwhile = again

    inner: list[Tensor] = []
    block.meanwhile = again
    with decoding_blocks(model, ["Block"], here):
        together = model(x)
    block.meanwhile = lambda: None
    assert torch.equal(together, model(x)) and torch.equal(inner[0], block(x))


@torch.no_grad()
def test_small_weights_come_first_and_large_ones_by_themselves(monkeypatch: pytest.MonkeyPatch, x: Tensor) -> None:
    model, seen = model_of(), list[set[str]]()
    note_ready(model.blocks[0], seen)
    expected = model(x)
    seen.clear()
    monkeypatch.setattr(block_decoding, "MAX_ELEMENTS", 24 * 3 * 9)
    with decoding_blocks(model, ["Block"], here):
        assert torch.equal(model(x), expected)
    monkeypatch.setattr(block_decoding, "MAX_BYTES", 1024)  # four places of 256 bytes
    with decoding_blocks(model, ["Block"], here):
        assert torch.equal(model(x), expected)
    small = {"odd.bias", "wide.bias", "first.bias"}
    assert seen == [small | {"odd.weight", "wide.weight"}, small]
    monkeypatch.setattr(block_decoding, "MAX_BYTES", 256)  # one alone gains nothing
    with decoding_blocks(model, ["Block"], here):
        model(x)
    assert seen[-1] == set()


def test_the_peak_is_that_of_a_block_and_its_largest_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    class Transformer2DModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.inner = nn.Linear(32, 32), ResnetBlock2D()

    class ResnetBlock2D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.small, self.large = nn.Linear(32, 64, bias=False), nn.Linear(64, 64, bias=False)
            self.table, self.other = nn.Embedding(100, 64), nn.Linear(32, 32, bias=False)

    monkeypatch.setattr(block_decoding, "MAX_ELEMENTS", 2048)
    model = nn.Sequential(nn.Linear(32, 32), Transformer2DModel())
    before, inside, alone = 32 * 32 + 128, 32 * 32 + 32 * 64, 64 * 64
    known = ("Transformer2DModel", "ResnetBlock2D")
    assert decoded_peak_bytes(model, torch.float16, known) == 2 * (before + inside + alone)
    assert decoded_peak_bytes(nn.Linear(32, 32), torch.float16) == 2 * 32 * 32


@torch.no_grad()
def test_products_of_stored_weights_are_left_to_them(x: Tensor) -> None:
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(32, 48), nn.Linear(48, 16)).requires_grad_(False)
    store(block, "fp8_e4m3fn", torch.float32)
    assert multiply_in_8_bits(block[0])
    rows, seen = torch.randn(4, 32), list[Any]()
    alone = block(rows)

    def look(module: nn.Module, inner: Any, *args: Any) -> Any:
        seen.append((set(ready(block[0])), set(ready(block[1]))))
        return inner(*args)

    handle = register_hook(block[1], look, HookOrder.OBSERVE)
    with decoding_blocks(block, ["Sequential"], here):
        assert torch.equal(block(rows), alone)
    handle.remove()
    assert seen == [({"bias"}, {"weight", "bias"})]


def test_only_where_it_is_of_use(x: Tensor) -> None:
    model, seen = model_of(), list[set[str]]()
    note_ready(model.blocks[0], seen)
    with decoding_blocks(model, ["Block"]), torch.no_grad():
        model(x)  # on the CPU
    with decoding_blocks(model, ["Block"], here):
        model(x)  # with gradients
    assert seen == [set(), set()]
    with decoding_blocks(Model(), ["Block"], here) as count:
        assert count == 0, "nothing is stored"
    with decoding_blocks(model, ["Other"], here) as count:
        assert count == 0
    handle = register_hook(model.blocks[0], lambda module, inner, *args: inner(*args), HookOrder.COMPILED)
    with decoding_blocks(model, ["Block"], here) as count:
        assert count == 1, "the other one"
    handle.remove()
    assert is_on_cuda(torch.device("cuda")) and not is_on_cuda(torch.device("cpu"))


@torch.no_grad()
def test_a_copy_of_a_model_decodes_its_own_weights(x: Tensor) -> None:
    model, seen = model_of(), list[set[str]]()
    with decoding_blocks(model, ["Block"], here):
        expected = model(x)
        twin = copy.deepcopy(model)
        note_ready(twin.blocks[0], seen)
        twin.blocks[0].first._buffers["weight_scale"].mul_(2)
        assert not torch.equal(twin(x), expected) and torch.equal(model(x), expected)
    assert seen == [ALL]


def test_blocks_are_named_by_their_libraries() -> None:
    class Named(nn.Module):
        _repeated_blocks = ("FluxTransformerBlock",)
        _no_split_modules = None

    assert block_classes(Named(), ("ResnetBlock2D",)) == ("ResnetBlock2D", "FluxTransformerBlock")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a card")
@pytest.mark.parametrize("storage", FORMATS_8_BIT)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_on_a_card_a_unet_is_the_same_to_the_bit(storage: str, dtype: torch.dtype) -> None:
    from diffusers import UNet2DConditionModel

    from modules.models.families.ldm.denoiser import DENOISER

    torch.manual_seed(0)
    made: Any = UNet2DConditionModel(
        block_out_channels=(64, 128),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        layers_per_block=1,
        cross_attention_dim=64,
    )
    unet = made.to(dtype).requires_grad_(False).eval()
    store(unet, storage, dtype)
    unet.to("cuda")
    latent, text = torch.randn(2, 4, 32, 32).to("cuda", dtype), torch.randn(2, 77, 64).to("cuda", dtype)
    attention = unet.down_blocks[0].attentions[0].transformer_blocks[0].attn1.to_q
    own, seen = read_weight(attention, "weight"), list[Tensor]()

    def look(module: Any, inner: Any, *args: Any, **kwargs: Any) -> Any:
        if not seen:
            seen.append(ready(module)["weight"].clone())
        return inner(*args, **kwargs)

    with torch.inference_mode():
        alone = unet(latent, 7, text).sample
        repeated = unet(latent, 7, text).sample
        handle = register_hook(attention, look, HookOrder.OBSERVE)
        with decoding_blocks(unet, block_classes(unet, DENOISER.blocks.decoded)) as count:
            together = unet(latent, 7, text).sample
            before = torch.cuda.memory_allocated()
            again = unet(latent, 7, text).sample
            assert torch.equal(again, together)
            del again
            assert torch.cuda.memory_allocated() == before, "nothing decoded is left"
        handle.remove()
    assert count > 8 and torch.equal(seen[0], own)
    assert torch.equal(alone, repeated), "the kernels themselves repeat"
    assert torch.equal(alone, together)


@torch.no_grad()
def test_decoded_weights_are_kept_where_memory_is_given_for_them(x: Tensor) -> None:
    model, kept = model_of(), DecodedWeights()
    block, addresses = model.blocks[0], list[int]()
    expected = model(x)

    def decoding(size: int) -> AbstractContextManager[int]:
        return decoding_blocks(model, ["Block"], here, kept, size)

    block.meanwhile = lambda: addresses.append(ready(block.first)["weight"].data_ptr())
    with decoding(1 << 20):
        assert all(torch.equal(model(x), expected) for _ in range(2))
    whole = kept.bytes
    with decoding(whole):
        assert torch.equal(model(x), expected)
    block.meanwhile = lambda: None
    assert len(set(addresses)) == 1 and whole > 0, "decoded once, for later jobs too"
    with decoding(whole // 2):
        data = block.first._parameters["weight"].flip(0)
        put(block.first, "weight", data, block.first._buffers["weight_scale"])
        changed = model(x)
        assert kept.bytes == whole // 2
    assert torch.equal(changed, model(x)) and not torch.equal(changed, expected)
    with decoding(0):
        assert torch.equal(model(x), changed)
    assert kept.bytes == 0


@torch.no_grad()
def test_a_weight_whose_memory_is_replaced_is_used(x: Tensor) -> None:
    model = model_of()
    with decoding_blocks(model, ["Block"], here):
        first = model(x)
        weight = model.blocks[0].first._parameters["weight"]
        weight.data = weight.data.flip(0)
        assert torch.equal(model(x), changed := model(x)) and not torch.equal(first, changed)
    assert torch.equal(model(x), changed)
