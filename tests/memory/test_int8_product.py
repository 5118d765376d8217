"""The compiled kernels around int8 products: what PyTorch's operations compute, to the bit, where they pay."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.memory.formats.convrot import ROTATED
from modules.memory.formats.format import FORMATS
from modules.memory.int8_matmul import multiply_in_int8, share_inputs
from modules.memory.kernels import product_support
from modules.memory.kernels.product_support import ProductKernels, product_kernels
from modules.memory.kernels.row_support import llvm_problem
from modules.memory.layer import manage, put, stored_state
from tests.int8 import small_exact_products as small_exact_products

compiled = pytest.mark.skipif(llvm_problem() is not None, reason=llvm_problem() or "")
dtypes = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
CPU = torch.device("cpu")
NEVER = 1 << 62


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def kernels(monkeypatch: pytest.MonkeyPatch) -> ProductKernels:
    monkeypatch.setattr(product_support, "PAYS_FROM", 0)
    found = product_kernels(CPU, torch.float32, 1)
    assert found is not None
    return found


def stored(layer: Any, dtype: torch.dtype, storage: str = "int8_row") -> Any:
    layer.requires_grad_(False).to(dtype)
    chosen = ROTATED if storage == "rotated" else FORMATS.get(storage)
    encoded = chosen.encode(layer.weight)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": encoded.storage or chosen}, dtype)
    assert multiply_in_int8(layer)
    return layer


@torch.inference_mode()
def assert_same(layer: nn.Module, x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    for pays_from in (NEVER, 0):
        monkeypatch.setattr(product_support, "PAYS_FROM", pays_from)
        made.append(layer(x))
    state = stored_state(layer)
    assert state is not None and state.product is not None
    assert product_kernels(CPU, x.dtype, 0) is not None  # else both were PyTorch's
    assert made[0].dtype == made[1].dtype and made[0].stride() == made[1].stride()
    # where PyTorch's vectors end it may round a product before it adds the bias
    torch.testing.assert_close(made[1], made[0], rtol=1e-6 if x.dtype == torch.float32 else 8e-3, atol=1e-6)
    assert (made[0] == made[1]).float().mean() > 0.98


@compiled
@dtypes
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("storage", ["int8_row", "rotated"])
def test_linear_layers(
    storage: str, bias: bool, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("modules.memory.int8_matmul.SLICE_SUMS", 1 << 16)  # in slices of 700 inputs and 128 outputs
    layer = stored(nn.Linear(256, 200, bias=bias), dtype, storage)
    x = torch.randn(2, 700, 256).to(dtype)
    assert_same(layer, x, monkeypatch)
    assert_same(layer, torch.randn(2, 256, 700).to(dtype).transpose(1, 2), monkeypatch)  # not contiguous
    assert_same(layer, torch.randn(2, 700, 300).to(dtype)[..., 20:276], monkeypatch)  # rows apart


@compiled
@dtypes
@pytest.mark.parametrize("side", [1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_convolutions(
    side: int, layout: torch.memory_format, dtype: torch.dtype, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = stored(nn.Conv2d(40, 72, side, padding=side // 2), dtype)
    x = (torch.randn(2, 40, 33, 70) * torch.tensor([1.0, 50.0]).view(2, 1, 1, 1)).to(dtype)
    assert_same(layer, x.contiguous(memory_format=layout), monkeypatch)
    layer = stored(nn.Conv2d(40, 72, 3, stride=2, padding=1), dtype)
    assert_same(layer, x.contiguous(memory_format=layout), monkeypatch)
    assert_same(layer, torch.randn(1, 80, 12, 20).to(dtype)[:, 40:].contiguous(memory_format=layout), monkeypatch)


@compiled
def test_threads_where_there_is_no_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels(monkeypatch)
    monkeypatch.setattr("modules.memory.kernels.int8_product.openmp_team", lambda: None)
    monkeypatch.setattr("modules.memory.kernels.int8_product.LEAST_NUMBERS_OF_POOL", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert_same(stored(nn.Linear(64, 48), torch.float32), torch.randn(1, 301, 64), monkeypatch)
    assert_same(stored(nn.Conv2d(40, 48, 3, padding=1), torch.float32), torch.randn(1, 40, 9, 9), monkeypatch)


@compiled
@torch.inference_mode()
def test_layers_that_share_an_input(monkeypatch: pytest.MonkeyPatch) -> None:
    parent = nn.ModuleList([stored(nn.Linear(64, 48), torch.float32) for _ in range(3)])
    share_inputs(parent)
    x = torch.randn(1, 300, 64)
    made = []
    for pays_from in (NEVER, 0):
        monkeypatch.setattr(product_support, "PAYS_FROM", pays_from)
        made.append(torch.stack([layer(x) for layer in parent]))
    torch.testing.assert_close(made[1], made[0], rtol=1e-6, atol=1e-6)


@compiled
@torch.inference_mode()
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 39])
def test_layers_decode_for_what_is_not_finite(bad: float, place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product_support, "PAYS_FROM", 0)
    line, layer = stored(nn.Linear(40, 48), torch.float32), stored(nn.Conv2d(40, 48, 3, padding=1), torch.float32)
    x = torch.randn(1, 9, 40)
    x[0, 4, place] = bad
    assert line(x)[0, 4].isnan().all() or line(x)[0, 4].isinf().any()
    assert line(x)[0, 3].isfinite().all()
    image = torch.randn(1, 40, 12, 12).contiguous(memory_format=torch.channels_last)
    image[0, place, 3, 3] = bad
    made = layer(image)
    assert not made[0, :, 3, 3].isfinite().any() and made[0, :, 9, 9].isfinite().all()


@compiled
@dtypes
def test_numbers_of_any_size_are_rounded_as_pytorch_rounds(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels(monkeypatch)
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (300, 1001), generator=torch.Generator().manual_seed(0))
    numbers = bits.to(torch.int32).view(torch.float32).to(dtype)
    numbers = torch.where(numbers.isfinite(), numbers, 0.0)
    halves = (torch.arange(-127, 127) + 0.5).to(dtype)[None].expand(3, -1).clone()
    halves[:, 0] = 127  # the peak: steps of one, and every other number between two of them
    for rows in (numbers, halves, torch.zeros(4, 40, dtype=dtype), torch.randn(200, 77).to(dtype) * 1e-14):
        peaks = rows.float().abs().amax(1, keepdim=True).clamp(min=1e-12)
        data, factors = torch.empty(rows.shape, dtype=torch.int8), torch.empty(len(rows), 1)
        assert found.round_rows(rows, data, factors)
        assert torch.equal(data, (rows.float() * (127.0 / peaks)).round().to(torch.int8))
        assert torch.equal(factors, peaks * (1 / 127.0))
        assert found.peak_of(rows) == float(rows.float().abs().max())


@compiled
def test_sums_beyond_bfloat16_and_what_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    found = kernels(monkeypatch)
    sums = torch.tensor([[2**30, -(2**30), 0, 1] * 10], dtype=torch.int32)
    scale = torch.tensor([1e38, 1e38, 1.0, 1.0] * 10)
    bias = torch.full((40,), 1.0).index_fill_(0, torch.tensor([3, 39]), float("nan"))
    out = torch.empty(1, 40, dtype=torch.bfloat16)
    found.scale_sums(sums, torch.full((1, 1), 2.0), scale, bias, out)
    inf = float("inf")
    assert out[0, :4].nan_to_num(7.0, inf, -inf).tolist() == [inf, -inf, 1.0, 7.0]
    assert out[0, 36:39].tolist() == [inf, -inf, 1.0] and out[0, 39].isnan()


def test_other_devices_and_dtypes_and_small_work_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "modules.memory.kernels.int8_product"
    monkeypatch.delitem(sys.modules, kernel, raising=False)
    monkeypatch.setattr(product_support, "PAYS_FROM", NEVER)
    assert product_kernels(CPU, torch.float32, 1) is None
    monkeypatch.setattr(product_support, "PAYS_FROM", 0)
    assert product_kernels(CPU, torch.float16, 1) is None
    assert product_kernels(torch.device("meta"), torch.float32, 1) is None
    assert kernel not in sys.modules
