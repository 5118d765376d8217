"""The compiled encoder of rows: the codes and scales of PyTorch's operations, to the bit, where it pays."""

from __future__ import annotations

import sys
from threading import Thread

import pytest
import torch
from torch import Tensor

from modules.errors import InvalidValueError
from modules.memory.formats.format import Encoded
from modules.memory.formats.rowwise import E4M3_ROW, E5M2_ROW, INT8_ROW, RowFormat
from modules.memory.kernels import row_support
from modules.memory.kernels.row_support import llvm_problem, row_encoder

compiled = pytest.mark.skipif(llvm_problem() is not None, reason=llvm_problem() or "")
both = pytest.mark.parametrize("storage", [E4M3_ROW, INT8_ROW], ids=lambda one: one.name)
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)


def encoded(storage: RowFormat, weight: Tensor, monkeypatch: pytest.MonkeyPatch, pays_from: int) -> Encoded:
    monkeypatch.setattr(row_support, "PAYS_FROM", pays_from)
    return storage.encode(weight)


def assert_same(storage: RowFormat, weight: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    plain, quick = (encoded(storage, weight, monkeypatch, pays) for pays in (1 << 62, 0))
    assert row_encoder(CPU, weight.dtype, storage.dtype, 0) is not None  # else both were PyTorch's
    assert plain.scale is not None and quick.scale is not None
    assert torch.equal(plain.scale, quick.scale)
    assert torch.equal(plain.data.view(torch.uint8), quick.data.view(torch.uint8))


def all_finite(dtype: torch.dtype) -> Tensor:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    return numbers[numbers.isfinite()]


@compiled
@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_16_bit_number_under_many_peaks(
    storage: RowFormat, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = all_finite(dtype)
    assert_same(storage, numbers[:, None].contiguous(), monkeypatch)  # each its own peak
    magnitudes = numbers.abs()
    for peak in magnitudes.sort().values[:: len(numbers) // 150]:
        assert_same(storage, numbers[magnitudes <= peak][None], monkeypatch)


@compiled
@both
def test_float32_of_any_bits_and_of_usual_size(storage: RowFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(1 << 31), (1 << 31) - 1, (200, 1000), generator=generator)
    numbers = bits.to(torch.int32).view(torch.float32)
    assert_same(storage, torch.where(numbers.isfinite(), numbers, 0.0), monkeypatch)
    for deviation in (1e-38, 1e-30, 0.02, 1e3):
        assert_same(storage, torch.randn(300, 1000, generator=generator) * deviation, monkeypatch)


@compiled
@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (5, 33), (3, 4, 3, 3), (600, 1000), (0, 4), (4, 0), (2, 600_001)])
def test_shapes_and_slices(
    storage: RowFormat, dtype: torch.dtype, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same(storage, torch.randn(shape).to(dtype), monkeypatch)


@compiled
@both
def test_rows_of_zeros_and_a_transposed_weight(storage: RowFormat, monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.randn(64, 80, dtype=torch.float16)
    weight[3] = -0.0
    assert_same(storage, weight, monkeypatch)
    assert_same(storage, weight.t(), monkeypatch)


@compiled
@both
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 39])
def test_what_is_not_finite_is_refused(
    storage: RowFormat, dtype: torch.dtype, bad: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = torch.randn(4, 40).to(dtype)
    weight[2, place] = bad
    with pytest.raises(InvalidValueError, match="NaN or infinite"):
        encoded(storage, weight, monkeypatch, 0)


@compiled
def test_two_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.randn(500, 1000, dtype=torch.bfloat16) for _ in range(2)]
    plain = [encoded(E4M3_ROW, weight, monkeypatch, 1 << 62) for weight in weights]
    monkeypatch.setattr(row_support, "PAYS_FROM", 0)
    quick: dict[int, Encoded] = {}

    def work(index: int) -> None:
        quick[index] = E4M3_ROW.encode(weights[index])

    threads = [Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, one in enumerate(plain):
        assert torch.equal(one.data.view(torch.uint8), quick[index].data.view(torch.uint8))


@compiled
def test_tensors_of_another_kind_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_support, "PAYS_FROM", 0)
    encode = row_encoder(CPU, torch.float16, torch.int8, 1)
    assert encode is not None
    part, codes = torch.zeros(4, 8, dtype=torch.float16), torch.empty(4, 8, dtype=torch.int8)
    for wrong in [(part.float(), codes, torch.empty(4)), (part, codes[:3], torch.empty(4)), (part, codes, codes[:, 0])]:
        with pytest.raises(ValueError, match="need as many codes"):
            encode(*wrong)


def test_other_formats_and_dtypes_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_support, "PAYS_FROM", 0)
    assert row_encoder(CPU, torch.float64, torch.int8, 1) is None
    assert row_encoder(CPU, torch.float16, E5M2_ROW.dtype, 1) is None
    assert row_encoder(torch.device("meta"), torch.float16, torch.int8, 1) is None


def test_few_weights_and_many_threads_start_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = "modules.memory.kernels.row_encoding"
    monkeypatch.delitem(sys.modules, kernel, raising=False)
    monkeypatch.setattr(row_support, "PAYS_FROM", 1 << 62)
    assert row_encoder(CPU, torch.float16, torch.int8, 1) is None
    monkeypatch.setattr(row_support, "PAYS_FROM", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert row_encoder(CPU, torch.float16, torch.int8, 1) is None
    assert kernel not in sys.modules


def test_what_encodes_rows_is_said_in_words() -> None:
    said = row_support.what_encodes_rows(torch.device("meta"))
    assert said == "encoded by PyTorch, because kernels compiled by LLVM are for CPUs"


@compiled
def test_a_kernel_that_runs_is_said_with_when(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert row_support.what_encodes_rows() == "encoded by a compiled kernel, after the first 67 million weights"
    monkeypatch.setattr(torch, "get_num_threads", lambda: 16)
    assert "weights and only while loading, as more than two threads compute" in row_support.what_encodes_rows()
