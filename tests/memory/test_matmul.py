"""Linear layers that multiply in 8 bits: against the same product in float32, and when they decode instead."""

import pytest
import torch
from torch import Tensor, nn

from modules.memory.formats.format import FORMATS
from modules.memory.layer import manage, put, stored_state
from modules.memory.matmul import fp8_product, multiply_in_8_bits
from modules.system.devices import has_fp8_matmul


def layer_of(storage: str, weight: Tensor, bias: bool = True, dtype: torch.dtype = torch.float32) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias, dtype=dtype)
    layer.requires_grad_(False)
    encoded = FORMATS.get(storage).encode(weight)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": FORMATS.get(storage)}, dtype)
    return layer


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def relative(error: Tensor, of: Tensor) -> float:
    return float(error.norm() / of.norm())


@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e4m3fn_row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_product_is_that_of_the_rounded_factors(storage: str, dtype: torch.dtype) -> None:
    layer = layer_of(storage, noise(48, 64), dtype=dtype)
    x = noise(2, 5, 64).to(dtype)
    with torch.inference_mode():
        decoded = layer(x).float()
        assert multiply_in_8_bits(layer)
        quick = layer(x)
    assert quick.dtype == dtype and quick.shape == (2, 5, 48)
    rows = x.reshape(-1, 64).float()
    scale = rows.abs().amax(1, keepdim=True) / 448
    rounded = (rows / scale).to(torch.float8_e4m3fn).float() * scale
    expected = (rounded @ layer.weight.float().t() + layer.bias.float()).reshape(2, 5, 48)
    assert relative(quick.float() - expected, expected) < {torch.float32: 1e-6}.get(dtype, 6e-3)
    assert relative(quick.float() - decoded, decoded) < 0.03


def test_the_error_is_that_of_two_roundings() -> None:
    """2.6 % of each factor, independent: 3.7 % of the product of Gaussian matrices."""
    weight, x = noise(256, 512) * 0.02, noise(64, 512, seed=2)
    true = x @ weight.t()
    layer = layer_of("fp8_e4m3fn_row", weight, bias=False)
    with torch.inference_mode():
        decoded = relative(layer(x) - true, true)
        multiply_in_8_bits(layer)
        quick = relative(layer(x) - true, true)
    assert 0.024 < decoded < 0.029
    assert 0.034 < quick < 0.040


def test_an_outlier_costs_its_own_row_only() -> None:
    x = noise(3, 64)
    x[1, 7] = 1e4
    layer = layer_of("fp8_e4m3fn_row", noise(32, 64), bias=False)
    multiply_in_8_bits(layer)
    with torch.inference_mode():
        quick = layer(x)
        alone = layer(x[:1])
    assert torch.equal(quick[:1], alone)
    assert torch.isfinite(quick).all()


def test_rows_of_zeros_and_no_rows() -> None:
    layer = layer_of("fp8_e4m3fn", noise(32, 64))
    multiply_in_8_bits(layer)
    with torch.inference_mode():
        assert torch.equal(layer(torch.zeros(2, 64)), layer.bias.expand(2, 32))
        assert layer(torch.zeros(0, 64)).shape == (0, 32)


def test_what_cannot_multiply_in_8_bits_decodes() -> None:
    assert not multiply_in_8_bits(nn.Linear(16, 16))
    assert not multiply_in_8_bits(layer_of("int8_row", noise(32, 64)))
    assert not multiply_in_8_bits(layer_of("fp8_e5m2", noise(32, 64)))
    assert not multiply_in_8_bits(layer_of("fp8_e4m3fn", noise(24, 64)))
    assert not multiply_in_8_bits(nn.Conv2d(16, 16, 1))


def test_changed_weights_and_training_decode() -> None:
    class Half:
        def add_to(self, name: str, weight: Tensor) -> Tensor:
            return weight * 0.5 if name == "weight" else weight

    layer = layer_of("fp8_e4m3fn_row", noise(32, 64), bias=False)
    x = noise(4, 64)
    with torch.inference_mode():
        decoded = layer(x)
        multiply_in_8_bits(layer)
        state = stored_state(layer)
        assert state is not None
        state.changes = (Half(),)
        torch.testing.assert_close(layer(x), decoded / 2)
        state.changes = ()
    assert fp8_product(layer, state, x, None) is None  # gradients are on
    trained = x.clone().requires_grad_()
    layer(trained).sum().backward()
    assert trained.grad is not None


def test_a_new_description_of_a_layer_keeps_its_product() -> None:
    layer = layer_of("fp8_e4m3fn", noise(32, 64))
    multiply_in_8_bits(layer)
    manage(layer, {"weight": FORMATS.get("fp8_e4m3fn")}, torch.float32)
    state = stored_state(layer)
    assert state is not None and state.product is fp8_product


def test_the_processor_has_no_units_for_it() -> None:
    assert not has_fp8_matmul(torch.device("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() or not has_fp8_matmul(torch.device("cuda")), reason="needs a card with fp8 units"
)
def test_on_a_card_the_product_is_the_same() -> None:
    layer = layer_of("fp8_e4m3fn_row", noise(256, 512), dtype=torch.bfloat16)
    x = noise(64, 512).to(torch.bfloat16)
    multiply_in_8_bits(layer)
    with torch.inference_mode():
        here = layer(x).float()
        there = layer.to("cuda")(x.cuda()).float().cpu()
    assert relative(here - there, here) < 6e-3
