"""Storage formats: every code, every error, and the error of the whole."""

import pytest
import torch

from modules.errors import InvalidValueError, UnknownNameError
from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import FORMATS, Encoded

WIDE = (torch.float16, torch.bfloat16, torch.float32)
ROW = ("fp8_e4m3fn_row", "int8_row")


def decoded(name: str, encoded: Encoded, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return FORMATS.get(name).decode(encoded.data, encoded.scale, torch.empty(encoded.data.shape, dtype=dtype))


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("narrow", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_every_finite_code_is_decoded_exactly(narrow: torch.dtype, wide: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(narrow)
    expected = codes.to(torch.float32)
    got = decode_narrow(codes, None, torch.empty(256, dtype=wide)).float()
    finite = torch.isfinite(expected)
    assert finite.sum() >= 248
    assert torch.equal(got[finite], expected[finite])
    assert torch.equal(got[finite].signbit(), expected[finite].signbit())  # -0 stays -0


@pytest.mark.parametrize("wide", WIDE, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 5), (513, 300), (5, 3, 3, 3), (0,), (4, 0), (2, 200_000)])
def test_shapes_and_slices(shape: tuple[int, ...], wide: torch.dtype) -> None:
    data = torch.randn(shape).to(torch.float8_e4m3fn)
    got = decode_narrow(data, None, torch.empty(shape, dtype=wide))
    assert torch.equal(got.float(), data.float())


def test_a_slice_of_another_tensor_is_decoded_too() -> None:
    data = torch.randn(64, 64).to(torch.float8_e4m3fn).t()
    assert torch.equal(decode_narrow(data, None, torch.empty(64, 64)), data.float())


@pytest.mark.parametrize("spread", [1e-30, 1e-12, 1e-5, 0.02, 1.0, 3e3, 1e12, 1e30])
@pytest.mark.parametrize(("name", "goal"), [("fp8_e4m3fn_row", 0.027), ("int8_row", 0.0095)])
def test_rows_of_any_scale_have_the_same_relative_error(name: str, goal: float, spread: float) -> None:
    torch.manual_seed(0)
    weight = torch.randn(256, 1024) * spread
    got = decoded(name, FORMATS.get(name).encode(weight)).double()
    assert (got - weight).norm() / weight.double().norm() < goal


def test_rows_do_not_disturb_each_other() -> None:
    weight = torch.randn(3, 512) * torch.tensor([[1e-6], [1.0], [1e6]])
    got = decoded("fp8_e4m3fn_row", FORMATS.get("fp8_e4m3fn_row").encode(weight))
    errors = (got - weight).norm(dim=1) / weight.norm(dim=1)
    assert errors.max() < 0.03


@pytest.mark.parametrize("name", ROW)
def test_a_row_of_zeros_stays_zero(name: str) -> None:
    weight = torch.zeros(2, 64)
    weight[1] = 1
    got = decoded(name, FORMATS.get(name).encode(weight))
    assert torch.equal(got[0], weight[0])
    assert torch.allclose(got[1], weight[1], rtol=0.01)


@pytest.mark.parametrize("name", ROW)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_number_times_scale_is_rounded_once(name: str, dtype: torch.dtype) -> None:
    encoded = FORMATS.get(name).encode(torch.randn(64, 256) * 0.05)
    exact = decoded(name, encoded, torch.float32).double()
    assert encoded.scale is not None
    assert torch.equal(exact, encoded.data.double() * encoded.scale.double()[:, None])
    assert torch.equal(decoded(name, encoded, dtype), exact.to(dtype))


def test_encoding_again_changes_nothing() -> None:
    name = "fp8_e4m3fn_row"
    once = FORMATS.get(name).encode(torch.randn(64, 256))
    twice = FORMATS.get(name).encode(decoded(name, once))
    assert torch.equal(decoded(name, once), decoded(name, twice))


def test_plain_fp8_is_pytorchs_own_rounding() -> None:
    weight = torch.randn(100, 100).half()
    assert torch.equal(
        FORMATS.get("fp8_e4m3fn").encode(weight).data.view(torch.uint8),
        weight.to(torch.float8_e4m3fn).view(torch.uint8),
    )


def test_saturation_is_counted_and_finite() -> None:
    encoded = FORMATS.get("fp8_e4m3fn").encode(torch.tensor([1.0, 1000.0, -500.0, 448.0]))
    assert encoded.saturated == 2
    assert encoded.data.float().tolist() == [1.0, 448.0, -448.0, 448.0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["fp8_e4m3fn", "fp8_e5m2", *ROW])
def test_weights_that_are_not_finite_are_refused(name: str, bad: float) -> None:
    weight = torch.randn(8, 8)
    weight[3, 4] = bad
    with pytest.raises(InvalidValueError, match="NaN or infinite"):
        FORMATS.get(name).encode(weight)


def test_an_unknown_format_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match="fp8_e4m3fn_row"):
        FORMATS.get("fp7")
