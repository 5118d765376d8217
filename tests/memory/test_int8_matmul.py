"""Layers that multiply in int8: against the same product in float32, and when they decode instead."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.memory import int8_matmul as under_test
from modules.memory.changes import AllBranches, SideBranch, joined_branches
from modules.memory.formats.convrot import ROTATED
from modules.memory.formats.format import FORMATS
from modules.memory.int8_matmul import (
    MAX_ERROR,
    Int8Product,
    SharedInput,
    Told,
    measured_error,
    multiply_in_int8,
    share_inputs,
)
from modules.memory.layer import manage, put, stored_state, stored_tensors
from tests.int8 import small_exact_products as small_exact_products


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def stored(layer: Any, storage: str = "int8_row", dtype: torch.dtype = torch.float32) -> Any:
    """The layer with its weight in int8; it decodes."""
    layer.requires_grad_(False).to(dtype)
    chosen = ROTATED if storage == "rotated" else FORMATS.get(storage)
    encoded = chosen.encode(layer.weight)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": encoded.storage or chosen}, dtype)
    return layer


def relative(found: Tensor, true: Tensor) -> float:
    return float((found.float() - true.float()).norm() / true.float().norm())


def both(layer: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """What the layer gives decoding and multiplying in int8."""
    with torch.inference_mode():
        decoded = layer(x)
        assert multiply_in_int8(layer)
        quick = layer(x)
    state = stored_state(layer)
    assert state is not None and isinstance(state.product, Int8Product) and state.product.error is not None
    return decoded, quick


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_is_that_of_its_rounded_factors(dtype: torch.dtype, bias: bool) -> None:
    layer = stored(nn.Linear(64, 48, bias=bias), dtype=dtype)
    x = noise(2, 20, 64).to(dtype)
    decoded, quick = both(layer, x)
    assert quick.dtype == dtype and quick.shape == (2, 20, 48)
    scale = x.float().abs().amax(-1, keepdim=True) / 127
    rounded = (x.float() / scale).round() * scale
    expected = rounded @ layer.weight.float().t() + (layer.bias.float() if bias else 0)
    assert relative(quick, expected) < {torch.float32: 1e-6}.get(dtype, 4e-3)
    assert relative(quick, decoded) < 0.015


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [(9, 11), (8, 12), (40, 33)])
def test_a_convolution_is_that_of_its_rounded_factors(size: tuple[int, int], stride: int, dtype: torch.dtype) -> None:
    layer = stored(nn.Conv2d(32, 48, 3, stride=stride, padding=1), dtype=dtype)
    x = (noise(2, 32, *size) * torch.tensor([1.0, 50.0]).view(2, 1, 1, 1)).to(dtype)
    decoded, quick = both(layer, x)
    assert quick.dtype == dtype and quick.shape == decoded.shape
    scale = x.float().abs().amax((1, 2, 3), keepdim=True) / 127  # an image's own
    rounded = (x.float() / scale).round() * scale
    expected = torch.nn.functional.conv2d(rounded, layer.weight.float(), layer.bias.float(), stride=stride, padding=1)
    for image in range(2):
        assert relative(quick[image], expected[image]) < {torch.float32: 1e-6}.get(dtype, 4e-3)
        assert relative(quick[image], decoded[image]) < 0.025


def test_slices_and_memory_layouts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, line = stored(nn.Conv2d(32, 32, 3, padding=1)), stored(nn.Linear(64, 200))
    x, tokens = noise(2, 32, 16, 16), noise(2, 300, 64)
    assert multiply_in_int8(layer) and multiply_in_int8(line)
    with torch.inference_mode():
        whole, rows = layer(x), line(tokens)
        assert torch.equal(layer(x.contiguous(memory_format=torch.channels_last)), whole)
        monkeypatch.setattr("modules.memory.int8_matmul.SLICE_COLUMNS", 1)
        monkeypatch.setattr("modules.memory.int8_matmul.SLICE_SUMS", 1)
        monkeypatch.setattr("modules.memory.int8_matmul.SLICE_ROWS", 70)
        assert torch.equal(layer(x), whole)
        assert torch.equal(line(tokens), rows)
        layer._parameters["weight"] = nn.Parameter(layer._parameters["weight"].contiguous(), requires_grad=False)
        assert torch.equal(layer(x), whole)  # as streaming brings it


def test_a_wide_layer_is_sliced_by_outputs_and_not_into_few_inputs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "SLICE_SUMS", 1 << 13)
    monkeypatch.setattr(under_test, "SLICE_ROWS", 100)
    shapes, product = [], torch._int_mm

    def watched(left: Tensor, right: Tensor, **more: Any) -> Tensor:
        shapes.append((len(left), right.shape[1]))
        return product(left, right, **more)

    layer = stored(nn.Linear(64, 512))
    assert multiply_in_int8(layer)
    monkeypatch.setattr(torch, "_int_mm", watched)
    with torch.inference_mode():
        layer(noise(1, 150, 64))
    assert shapes == [(75, 128)] * 8


def test_a_1x1_convolution_has_a_scale_per_place() -> None:
    layer = stored(nn.Conv2d(32, 64, 1))
    x = noise(1, 32, 6, 6)
    x[:, :, 2, 3] *= 1e4
    decoded, quick = both(layer, x)
    errors = (quick - decoded).norm(dim=1) / decoded.norm(dim=1)
    assert errors.max() < 0.02


def test_a_rotated_weight_has_its_input_rotated() -> None:
    layer = nn.Linear(512, 64)
    layer.weight.data[:, :8] *= 40
    decoded, quick = both(stored(layer, "rotated"), noise(1, 32, 512))
    assert relative(quick, decoded) < 0.015


def test_a_side_branch_beside_it_is_exact() -> None:
    layer = stored(nn.Linear(64, 48))
    conv = stored(nn.Conv2d(32, 32, 3, padding=1))
    x, image = noise(2, 20, 64), noise(1, 32, 8, 8)
    assert multiply_in_int8(layer) and multiply_in_int8(conv)
    down, up = noise(4, 64, seed=2), noise(48, 4, seed=3)
    conv_down, conv_up = noise(4, 32, 3, 3, seed=4), noise(32, 4, 1, 1, seed=5)
    with torch.inference_mode():
        alone, alone_conv = layer(x), conv(image)
        for one, branch in (
            (layer, SideBranch(down, up, None, 0.5)),
            (conv, SideBranch(conv_down, conv_up, None, 0.5)),
        ):
            state = stored_state(one)
            assert state is not None
            state.branches = AllBranches(joined_branches(one, [branch], torch.float32, torch.device("cpu")))
        torch.testing.assert_close(layer(x) - alone, 0.5 * x @ down.t() @ up.t(), rtol=1e-4, atol=1e-4)
        hidden = torch.nn.functional.conv2d(image, conv_down, padding=1)
        expected = 0.5 * torch.nn.functional.conv2d(hidden, conv_up)
        torch.testing.assert_close(conv(image) - alone_conv, expected, rtol=1e-4, atol=1e-3)


def test_large_activations_do_not_overflow() -> None:
    """int32 holds 127 * 127 * 133000 products; the scales come in float32, before the compute dtype."""
    wide = stored(nn.Linear(20000, 32, bias=False))
    wide._parameters["weight"].fill_(127)
    x = torch.full((1, 32, 20000), 1e4)
    with torch.inference_mode():
        decoded = wide(x)
        assert multiply_in_int8(wide)
        torch.testing.assert_close(wide(x), decoded, rtol=1e-4, atol=0)
    decoded, quick = both(
        stored(nn.Conv2d(32, 32, 3, padding=1), dtype=torch.bfloat16), 1e4 * noise(1, 32, 8, 8).bfloat16()
    )
    assert torch.isfinite(quick).all() and relative(quick, decoded) < 0.03


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_inputs_that_are_not_finite_are_decoded(bad: float) -> None:
    for layer, x in (
        (stored(nn.Linear(64, 48)), noise(2, 20, 64)),
        (stored(nn.Conv2d(32, 32, 3, padding=1)), noise(1, 32, 8, 8)),
        (stored(nn.Conv2d(32, 32, 1)), noise(1, 32, 8, 8)),
    ):
        x.view(-1)[7] = bad
        with torch.inference_mode():
            decoded = layer(x)
            assert multiply_in_int8(layer)
            torch.testing.assert_close(layer(x), decoded, equal_nan=True)


def test_one_notice_for_all_layers_with_inputs_that_are_not_finite(caplog: pytest.LogCaptureFixture) -> None:
    told, layers = Told(), [stored(nn.Linear(64, 48)) for _ in range(3)]
    x = torch.full((1, 20, 64), float("nan"))
    with torch.inference_mode():
        for layer in layers:
            assert multiply_in_int8(layer, told)
            layer(x), layer(x)
    assert caplog.text.count("holds NaN or infinite values; it is decoded instead") == 1


def test_a_kernel_that_refuses_a_layer_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A build without oneDNN, or a kernel that takes no such shapes."""
    asked = []

    def refuse(*factors: Tensor, out: Tensor | None = None) -> Tensor:
        asked.append(factors)
        raise RuntimeError("could not create a primitive\nmore lines")

    layers = [stored(nn.Linear(64, 48)) for _ in range(2)]
    x = noise(1, 20, 64)
    told = Told()
    with torch.inference_mode():
        decoded = [layer(x) for layer in layers]
        monkeypatch.setattr(torch, "_int_mm", refuse)
        assert all(multiply_in_int8(layer, told) for layer in layers)
        for _ in range(2):
            assert all(torch.equal(layer(x), expected) for layer, expected in zip(layers, decoded, strict=True))
    assert len(asked) == 2
    assert caplog.text.count("does not work here (could not create a primitive)") == 1


def test_running_out_of_memory_is_not_taken_for_that(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*factors: Tensor, out: Tensor | None = None) -> Tensor:
        raise torch.OutOfMemoryError("out of memory")

    layer = stored(nn.Linear(64, 48))
    assert multiply_in_int8(layer)
    monkeypatch.setattr(torch, "_int_mm", refuse)
    with torch.inference_mode(), pytest.raises(torch.OutOfMemoryError):
        layer(noise(1, 20, 64))


def test_zeros_no_rows_and_vectors() -> None:
    layer = stored(nn.Linear(64, 48))
    assert multiply_in_int8(layer)
    with torch.inference_mode():
        assert torch.equal(layer(torch.zeros(1, 20, 64)), layer.bias.expand(1, 20, 48))
        assert layer(torch.zeros(2, 0, 64)).shape == (2, 0, 48)
        vectors = noise(40, 64)  # a time embedding: whatever the batch, decoded
        assert torch.equal(layer(vectors), vectors @ layer.weight.t() + layer.bias)
        conv = stored(nn.Conv2d(32, 32, 3, padding=1))
        assert multiply_in_int8(conv)
        assert torch.equal(conv(torch.zeros(1, 32, 8, 8)), conv.bias.view(1, -1, 1, 1).expand(1, 32, 8, 8))


@pytest.mark.parametrize(
    "layer",
    [
        nn.Linear(64, 16),
        nn.Conv2d(32, 32, 3, padding=1, groups=2),
        nn.Conv2d(32, 32, 3),
        nn.Conv2d(32, 32, 5, padding=2),
        nn.Conv2d(32, 32, 3, padding=2, dilation=2),
        nn.Conv2d(32, 32, 3, padding=1, padding_mode="reflect"),
        nn.Conv1d(64, 64, 3, padding=1),
    ],
    ids=str,
)
def test_other_geometries_decode(layer: nn.Module) -> None:
    assert not multiply_in_int8(stored(layer))


def test_other_formats_decode() -> None:
    assert not multiply_in_int8(nn.Linear(64, 64))
    assert not multiply_in_int8(stored(nn.Linear(64, 64), "fp8_e4m3fn_row"))


def test_changed_weights_and_training_decode() -> None:
    class Half:
        def add_to(self, name: str, weight: Tensor) -> Tensor:
            return weight * 0.5 if name == "weight" else weight

    layer = stored(nn.Linear(64, 48, bias=False))
    x = noise(1, 20, 64)
    with torch.inference_mode():
        decoded = layer(x)
        multiply_in_int8(layer)
        state = stored_state(layer)
        assert state is not None and state.product is not None
        state.changes = (Half(),)
        torch.testing.assert_close(layer(x), decoded / 2)
        state.changes = ()
    assert state.product(layer, state, x, None) is None  # gradients are on
    trained = x.clone().requires_grad_()
    layer(trained).sum().backward()
    assert trained.grad is not None


def test_a_layer_that_would_lose_too_much_decodes() -> None:
    """All its outputs hang on the input that is smallest on the made-up ones."""
    width = 4096
    generator = torch.Generator().manual_seed(width)
    smallest = int(torch.randn(width, generator=generator).argmin())
    layer = nn.Linear(width, 64)
    layer.weight.data.zero_()[:, smallest] = 1
    stored(layer)
    data, scale = stored_tensors(layer, "weight")
    assert scale is not None
    assert measured_error(data, scale, FORMATS.get("int8_row")) > MAX_ERROR
    x = noise(1, 20, width)
    with torch.inference_mode():
        decoded = layer(x)
        assert multiply_in_int8(layer)
        assert torch.equal(layer(x), decoded)


def test_small_layers_decode_whatever_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, conv = stored(nn.Linear(64, 64)), stored(nn.Conv2d(32, 32, 3, padding=1))
    assert multiply_in_int8(layer) and multiply_in_int8(conv)
    monkeypatch.setattr("modules.memory.int8_matmul.MIN_PRODUCTS", 18 * 32 * 32 * 9 + 1)
    with torch.inference_mode():
        x, image = noise(8, 20, 64), noise(8, 32, 3, 6)
        assert torch.equal(layer(x), x @ layer.weight.t() + layer.bias)
        torch.testing.assert_close(conv(image), conv._conv_forward(image, conv.weight, conv.bias))
    states = [stored_state(one) for one in (layer, conv)]
    monkeypatch.setattr("modules.memory.int8_matmul.MIN_PRODUCTS", 20 * 64 * 64)
    with torch.inference_mode():
        layer(noise(1, 20, 64)), conv(noise(1, 32, 8, 8))
    assert all(state is not None and state.product is not None for state in states)
    assert [state.product.error is not None for state in states if state] == [True, True]  # type: ignore[union-attr]


class Attention(nn.Module):
    """Query, key and value of hidden states, or key and value of a context, and an output."""

    def __init__(self, storage: str = "int8_row") -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (stored(nn.Linear(256, 48), storage) for _ in range(3))
        self.to_out = stored(nn.Linear(48, 64))
        for layer in self.children():
            assert multiply_in_int8(layer)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        other = x if context is None else context
        mixed: Tensor = self.to_out(self.to_q(x) * self.to_k(other) + self.to_v(other))
        return mixed


@pytest.fixture
def roundings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The widths of the inputs that were rounded as a whole."""
    found: list[int] = []
    rounded = under_test._rounded

    def counted(x: Tensor, group: int) -> Any:
        found.append(x.shape[-1])
        return rounded(x, group)

    monkeypatch.setattr(under_test, "_rounded", counted)
    return found


@pytest.mark.parametrize("storage", ["int8_row", "rotated"])
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_query_key_and_value_round_their_input_once(mode: Any, storage: str, roundings: list[int]) -> None:
    attention, x, context = Attention(storage), noise(2, 20, 256), noise(2, 20, 256, seed=2)
    with mode():
        apart = attention(x), attention(x, context)
        assert roundings == []
        share_inputs(attention)
        together = attention(x), attention(x, context)
    assert roundings == [256] * 3
    assert all(torch.equal(a, b) for a, b in zip(apart, together, strict=True))
    product = stored_state(attention.to_q).product  # type: ignore[union-attr]
    assert isinstance(product, Int8Product) and product.shared is not None


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_an_input_that_was_changed_in_place_is_rounded_again(mode: Any) -> None:
    attention = Attention()
    share_inputs(attention)
    with mode():
        x = noise(2, 20, 256)
        attention.to_q(x)
        attention.to_k(x)
        x.mul_(-1).add_(noise(2, 20, 256, seed=3))
        once_more = attention.to_q(x)
        if mode is torch.no_grad:  # where changes are counted, they are seen by every layer
            x.add_(1)
            once_more = attention.to_k(x)
    fresh = Attention()
    layer, other = (attention.to_k, fresh.to_k) if mode is torch.no_grad else (attention.to_q, fresh.to_q)
    for name in ("weight", "bias"):
        other._parameters[name] = layer._parameters[name]
    other._buffers["weight_scale"] = layer._buffers["weight_scale"]
    with mode():
        assert torch.equal(other(x), once_more)


def is_kept(shared: SharedInput) -> bool:
    return shared._kept is not None


def test_a_rounded_input_is_let_go_with_the_input(roundings: list[int]) -> None:
    attention = Attention()
    share_inputs(attention)
    state = stored_state(attention.to_q)
    assert state is not None and isinstance(state.product, Int8Product) and state.product.shared is not None
    shared = state.product.shared
    with torch.inference_mode():
        x = noise(2, 20, 256)
        attention.to_q(x)
        assert is_kept(shared)
        del x
        assert not is_kept(shared)
        attention(noise(2, 20, 256))
        assert not is_kept(shared)  # all three had it
