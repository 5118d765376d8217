"""Training through stored layers: the gradients are right, and no decoded weight waits for the backward pass."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.memory.layer import stored_state
from modules.memory.storage import StorageRules
from tests.memory.storing import apply_storage

LAYERS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(64, 96), (2, 5, 64)),
    "linear without bias": (lambda: nn.Linear(64, 96, bias=False), (3, 64)),
    "convolution": (lambda: nn.Conv2d(16, 32, 3, padding=1, stride=2), (2, 16, 9, 7)),
    "dilated, in groups": (lambda: nn.Conv2d(64, 64, 3, groups=2, dilation=2), (1, 64, 9, 9)),
    "one dimension": (lambda: nn.Conv1d(64, 64, 3, padding=1), (2, 64, 11)),
    "three dimensions": (lambda: nn.Conv3d(16, 16, 3, bias=False), (1, 16, 4, 5, 6)),
    "circular": (lambda: nn.Conv2d(32, 32, 3, padding=1, padding_mode="circular"), (1, 32, 6, 6)),
    "same": (lambda: nn.Conv2d(32, 32, 3, padding="same"), (1, 32, 6, 6)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "int8_row"])
def test_same_output_and_gradient_as_with_the_decoded_weight(name: str, storage: str) -> None:
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    apply_storage(layer, StorageRules(storage), torch.float32)
    plain = make()
    assert stored_state(layer) is not None
    for key in ("weight", "bias"):
        if getattr(plain, key) is not None:
            getattr(plain, key).data = getattr(layer, key).detach().clone()
    x, y = (torch.randn(shape, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    mine, theirs = layer(x), plain(y)
    torch.testing.assert_close(mine, theirs)
    for output in (mine, theirs):
        output.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("name", ["linear", "convolution"])
def test_no_decoded_weight_is_kept(name: str) -> None:
    make, shape = LAYERS[name]
    layer = make()
    apply_storage(layer, StorageRules("fp8_e4m3fn"), torch.float32)
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        layer(torch.randn(shape, requires_grad=True))
    assert not any(tensor.shape == layer.weight.shape for tensor in kept)
    assert sum(tensor.numel() for tensor in kept) <= layer.weight.shape[0]


def test_a_bias_that_is_trained_gets_its_gradient() -> None:
    layer = nn.Linear(64, 96)
    apply_storage(layer, StorageRules("fp8_e4m3fn_row"), torch.float32)
    layer.bias.requires_grad_()
    layer(torch.randn(3, 64, requires_grad=True)).sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((96,), 3.0))


def test_under_autocast_the_gradient_has_the_inputs_dtype() -> None:
    for name in ("linear", "convolution"):
        make, shape = LAYERS[name]
        layer = make()
        apply_storage(layer, StorageRules("fp8_e4m3fn"), torch.float32, cast_inputs=False)
        x = torch.randn(shape, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16):
            output = layer(x)
            assert output.dtype is torch.bfloat16
        output.float().sum().backward()
        assert x.grad is not None and x.grad.dtype is torch.float32 and bool(torch.isfinite(x.grad).all())
