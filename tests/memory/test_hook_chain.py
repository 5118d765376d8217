"""Things around a forward: their order, and that taking them away in any order gives the module back."""

import copy
import inspect
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.memory.hook_chain import (
    HookHandle,
    HookOrder,
    has_foreign_forward,
    hooks_of,
    register_hook,
    replace_attribute,
)
from modules.memory.storage import StorageRules
from tests.memory.storing import apply_storage


def noting(name: str, seen: list[str]) -> Callable[..., Any]:
    def hook(module: nn.Module, inner: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        seen.append(name)
        return inner(*args, **kwargs)

    return hook


NAMES = ("ADAPTER", "COMPUTE", "RECOMPUTE")


@pytest.mark.parametrize("order", list(permutations(NAMES)))
@pytest.mark.parametrize("removal", list(permutations(range(3)))[::2])
def test_the_order_of_calls_is_that_of_the_layering(order: tuple[str, ...], removal: tuple[int, ...]) -> None:
    layer, seen = nn.Linear(3, 3), list[str]()
    x = torch.randn(2, 3)
    expected = layer(x)
    patches = {name: register_hook(layer, noting(name, seen), HookOrder[name]) for name in order}
    assert torch.equal(layer(x), expected)
    assert seen == ["RECOMPUTE", "COMPUTE", "ADAPTER"]
    for index in removal:
        patches[NAMES[index]].remove()
        patches[NAMES[index]].remove()
        del patches[NAMES[index]]
        seen.clear()
        assert torch.equal(layer(x), expected)
        assert seen == [name for name in ("RECOMPUTE", "COMPUTE", "ADAPTER") if name in patches]
    assert "forward" not in layer.__dict__ and not hooks_of(layer)


def test_equals_lie_around_each_other() -> None:
    layer, seen = nn.Linear(3, 3), list[str]()
    patches = [register_hook(layer, noting(str(i), seen), HookOrder.COMPUTE) for i in range(3)]
    layer(torch.zeros(1, 3))
    assert seen == ["2", "1", "0"]
    assert hooks_of(layer) == patches


def test_what_others_put_there_comes_back() -> None:
    layer = nn.Linear(3, 3)
    x = torch.ones(1, 3)

    def foreign(x: Tensor) -> Tensor:
        return x * 7

    assert not has_foreign_forward(layer)
    layer.__dict__["forward"] = foreign
    patch = register_hook(layer, noting("", []), HookOrder.COMPUTE)
    assert has_foreign_forward(layer)
    assert torch.equal(layer(x), x * 7)
    patch.remove()
    assert layer.__dict__["forward"] is foreign


def test_a_replaced_attribute_comes_back_once() -> None:
    layer = nn.Conv2d(1, 1, 1)
    outer = replace_attribute(layer, "padding_mode", "circular")
    inner = replace_attribute(layer, "padding_mode", "reflect")
    inner.remove()
    assert layer.padding_mode == "circular"
    outer.remove()
    layer.padding_mode = "replicate"
    outer.remove()
    assert layer.padding_mode == "replicate"
    with pytest.raises(AttributeError):
        replace_attribute(layer, "padding_moed", "circular")


def test_a_copy_has_a_pile_of_its_own() -> None:
    layer, seen = nn.Linear(3, 3), list[str]()
    patch = register_hook(layer, noting("a", seen), HookOrder.COMPUTE)
    copied = copy.deepcopy(layer)
    with torch.no_grad():
        copied.weight.add_(1)
    assert not torch.equal(copied(torch.ones(1, 3)), layer(torch.ones(1, 3)))
    patch.remove()
    seen.clear()
    copied(torch.ones(1, 3))
    assert len(hooks_of(copied)) == 1 and not hooks_of(layer)


def test_the_class_may_change_meanwhile() -> None:
    model = nn.Sequential(nn.Linear(64, 64))
    x = torch.randn(2, 64)
    patch: HookHandle = register_hook(model[0], noting("", []), HookOrder.COMPUTE)
    plain = model(x)
    apply_storage(model, StorageRules("fp8_e4m3fn_row"), torch.float32)
    stored = model(x)
    patch.remove()
    assert torch.equal(model(x), stored)
    patch = register_hook(model[0], noting("", []), HookOrder.COMPUTE)
    assert not torch.equal(plain, stored)
    patch.remove()
    assert "forward" not in model[0].__dict__


def test_signature_is_that_of_the_module() -> None:
    layer = nn.Linear(3, 3)
    register_hook(layer, noting("", []), HookOrder.COMPUTE)
    assert list(inspect.signature(layer.forward).parameters) == ["input"]
