"""Branches beside stored layers: the same numbers on each way, nothing stored is touched, one rounding."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from modules.memory.changes import AllBranches, Branches, Budget, DecodedChanges, SideBranch
from modules.memory.delta_branch import DeltaBranch, wants_delta_branch
from modules.memory.layer import read_weight, stored_state, stored_tensors
from modules.memory.storage import StorageRules
from tests.memory.storing import apply_storage

RANK = 3
FEW, MANY = 2, 400  # tokens, or pixels along a side


def factors(layer: Any, compute: torch.dtype = torch.float32) -> Branches:
    shape = layer._parameters["weight"].shape
    down = torch.randn(RANK, *shape[1:]) / 8
    up = torch.randn(shape[0], RANK, *(1,) * (len(shape) - 2))
    return Branches(down.to(compute), up.to(compute), torch.tensor([1.0, 0.5, 2.0]))


def stored(layer: nn.Module, storage: str = "fp8_e4m3fn_row", compute: torch.dtype = torch.float32) -> Any:
    apply_storage(nn.Sequential(layer.requires_grad_(False)), StorageRules(storage), compute)
    return layer


def attach(layer: nn.Module, *parts: Branches, bias: Tensor | None = None) -> None:
    state = stored_state(layer)
    assert state is not None
    state.branches = AllBranches(parts, bias)


def expected(layer: Any, x: Tensor, parts: tuple[Branches, ...], bias: Tensor | None = None) -> Tensor:
    """In float64, from the weight with all changes."""
    weight = read_weight(layer, "weight").double()
    for part in parts:
        delta = (part.up.flatten(1).double() * part.scale.double()) @ part.down.flatten(1).double()
        weight = weight + delta.reshape(weight.shape)
    own = None if layer.bias is None else layer.bias.double()
    total = own if bias is None else bias.double() if own is None else own + bias
    if isinstance(layer, nn.Linear):
        return F.linear(x.double(), weight, total)
    return F.conv2d(x.double(), weight, total, layer.stride, layer.padding)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("tokens", [FEW, MANY])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("storage", ["fp8_e4m3fn_row", "fp8_e4m3fn", "int8_row", "fp16"])
@torch.inference_mode()
def test_linear(storage: str, biased: bool, tokens: int, count: int) -> None:
    torch.manual_seed(0)
    layer = stored(nn.Linear(80, 64, bias=biased), storage)
    before = stored_tensors(layer, "weight")[0].clone()
    parts = tuple(factors(layer) for _ in range(count))
    attach(layer, *parts)
    x = torch.randn(2, tokens, 80)
    torch.testing.assert_close(layer(x).double(), expected(layer, x, parts), rtol=1e-5, atol=1e-5)
    assert torch.equal(stored_tensors(layer, "weight")[0].view(torch.uint8), before.view(torch.uint8))


@pytest.mark.parametrize("side", [3, 40])
@pytest.mark.parametrize("stride", [1, 2])
@torch.inference_mode()
def test_convolution(stride: int, side: int) -> None:
    torch.manual_seed(0)
    layer = stored(nn.Conv2d(16, 32, 3, stride, 1))
    parts = (factors(layer),)
    attach(layer, *parts)
    x = torch.randn(2, 16, side, side)
    torch.testing.assert_close(layer(x).double(), expected(layer, x, parts), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("own", [True, False])
@torch.inference_mode()
def test_a_bias_of_the_branches(own: bool) -> None:
    torch.manual_seed(0)
    layer = stored(nn.Linear(80, 64, bias=own))
    parts, bias = (factors(layer),), torch.randn(64)
    for given in (parts, ()):
        attach(layer, *given, bias=bias)
        for tokens in (FEW, MANY):
            x = torch.randn(tokens, 80)
            torch.testing.assert_close(layer(x).double(), expected(layer, x, given, bias), rtol=1e-5, atol=1e-5)


@torch.inference_mode()
def test_in_16_bit_a_branch_adds_no_rounding_of_the_large_number() -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16
    layer = stored(nn.Linear(320, 320), compute=dtype)
    part = factors(layer, dtype)
    part.up.mul_(0.01)  # a network's delta is small beside the weights
    x = torch.randn(64, 320, dtype=dtype)

    def error(parts: tuple[Branches, ...]) -> float:
        attach(layer, *parts)
        wanted = expected(layer, x, parts)
        return float((layer(x).double() - wanted).norm() / wanted.norm())

    assert error((part,)) < 1.05 * error(())


@pytest.mark.parametrize("storage", ["int8_row", "fp16", "fp8_e4m3fn_row"])
@torch.inference_mode()
def test_in_bfloat16_a_merged_change_keeps_its_effect(storage: str) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16
    layer = stored(nn.Linear(320, 256, bias=False), storage, dtype)
    x = torch.randn(4096, 320, dtype=dtype)
    before, part = layer(x).float(), factors(layer, dtype)
    part.up.mul_(0.003 * float(read_weight(layer, "weight").float().std()) * 8 / RANK**0.5)
    attach(layer, part)
    delta = (part.up.float() * part.scale) @ part.down.float()
    wanted = x.float() @ delta.t()
    assert abs(float(((layer(x).float() - before) * wanted).sum() / wanted.square().sum()) - 1) < 0.02


@pytest.mark.parametrize("kind", ["branches", "delta"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1)])
@torch.inference_mode()
def test_in_16_bit_a_convolution_rounds_once(kernel: int, stride: int, kind: str) -> None:
    torch.manual_seed(0)
    dtype = torch.bfloat16
    layer = stored(nn.Conv2d(64, 96, kernel, stride, kernel // 2), compute=dtype)
    parts = tuple(factors(layer, dtype) for _ in range(2))
    for part in parts:
        part.up.mul_(0.02)
    x = torch.randn(2, 64, 15, 17, dtype=dtype)

    def error(parts: tuple[Branches, ...]) -> float:
        wanted = expected(layer, x, parts)
        return float((layer(x).double() - wanted).norm() / wanted.norm())

    alone = error(())
    if kind == "branches":
        attach(layer, *parts)
    else:
        weight = layer._parameters["weight"]
        delta = sum((p.up.flatten(1).float() * p.scale) @ p.down.flatten(1).float() for p in parts)
        assert isinstance(delta, Tensor)
        state = stored_state(layer)
        assert state is not None
        state.branches = DeltaBranch([Added(delta.reshape(weight.shape))], Budget(1 << 20))
    assert error(parts) < 1.1 * alone


@torch.inference_mode()
def test_under_autocast() -> None:
    torch.manual_seed(0)
    layer = stored(nn.Linear(80, 64))
    state = stored_state(layer)
    assert state is not None
    state.cast_inputs = False
    parts = (factors(layer),)
    attach(layer, *parts)
    x = torch.randn(5, 80)
    with torch.autocast("cpu", torch.bfloat16):
        output = layer(x)
    torch.testing.assert_close(output.double(), expected(layer, x, parts), rtol=0.05, atol=0.05)


class Added:
    """A change that does not factor."""

    def __init__(self, delta: Tensor, bias: Tensor | None = None) -> None:
        self.delta, self.bias = delta, bias

    def branch(self) -> SideBranch | None:
        return None

    def weight_delta(self, weight: Tensor) -> Tensor | None:
        return self.delta

    def bias_delta(self, bias: Tensor | None) -> Tensor | None:
        return self.bias

    @property
    def sum_dtype(self) -> torch.dtype | None:
        return None


@pytest.mark.parametrize("share", [0.003, 0.0003])
@pytest.mark.parametrize("free_bytes", [0, 1 << 20])
@torch.inference_mode()
def test_a_small_delta_keeps_its_effect_in_bfloat16(free_bytes: int, share: float) -> None:
    torch.manual_seed(0)
    layer = stored(nn.Linear(320, 256), compute=torch.bfloat16)
    assert wants_delta_branch(layer, torch.bfloat16) and not wants_delta_branch(layer, torch.float16)
    delta = torch.randn(256, 320) * read_weight(layer, "weight").float().std() * share
    x = torch.randn(4096, 320, dtype=torch.bfloat16)
    state = stored_state(layer)
    assert state is not None
    before = layer(x).float()

    def retention() -> float:
        wanted = x.float() @ delta.t()
        return float(((layer(x).float() - before) * wanted).sum() / wanted.square().sum())

    state.changes = (DecodedChanges([Added(delta)], Budget(1 << 20)),)
    assert retention() < 0.97, "on the weight itself some of it is lost"
    state.changes, state.branches = (), DeltaBranch([Added(delta)], Budget(free_bytes))
    assert abs(retention() - 1) < 0.01
    assert abs(retention() - 1) < 0.01, "again, from what was kept or made anew"


@pytest.mark.parametrize("biased", [True, False])
@torch.inference_mode()
def test_a_delta_beside_a_convolution_and_a_bias(biased: bool) -> None:
    torch.manual_seed(0)
    layers = nn.Conv2d(16, 32, 3, 2, 1, bias=biased), nn.Linear(80, 64, bias=biased)
    for layer, x in zip(layers, (torch.randn(2, 16, 9, 9), torch.randn(7, 80)), strict=True):
        managed = stored(layer)
        weight = read_weight(managed, "weight")
        change = Added(torch.randn_like(weight), torch.randn(len(weight)))
        state = stored_state(managed)
        assert state is not None
        state.branches = DeltaBranch([change], Budget(1 << 20))
        own = managed.bias
        bias = change.bias if own is None else own + change.bias
        whole = weight + change.delta
        expected = F.linear(x, whole, bias) if x.ndim == 2 else F.conv2d(x, whole, bias, 2, 1)
        torch.testing.assert_close(managed(x), expected, rtol=1e-4, atol=1e-4)
