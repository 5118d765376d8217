"""8-bit floats as bytes: the same numbers to the bit, on the CPU and on a GPU that has no such dtype."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from modules.memory.formats.codes import CodesFormat, as_codes
from modules.memory.formats.format import FORMATS, StorageFormat
from modules.memory.formats.plain import MAX_CODES
from modules.memory.formats.rowwise import E5M2_ROW
from modules.memory.formats.stochastic import encode_stochastic
from modules.system.devices import has_float8
from tests.fake_gpu import FakeCard, fake_gpu

FLOATS = (FORMATS.get("fp8_e4m3fn"), FORMATS.get("fp8_e5m2"), FORMATS.get("fp8_e4m3fn_row"), E5M2_ROW)
WIDE = (torch.float16, torch.bfloat16, torch.float32)
by_format = pytest.mark.parametrize("storage", FLOATS, ids=lambda storage: storage.name)


@pytest.fixture
def card() -> Iterator[FakeCard]:
    with fake_gpu("mps", 8) as card:
        yield card


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.cpu().contiguous().view(torch.uint8)


def codes_format(storage: StorageFormat) -> CodesFormat:
    found = as_codes(storage)
    assert isinstance(found, CodesFormat) and found.name == storage.name and found.scaled == storage.scaled
    return found


@by_format
@pytest.mark.parametrize("dtype", WIDE)
def test_every_code_decodes_to_the_bit(storage: StorageFormat, dtype: torch.dtype, card: FakeCard) -> None:
    positive = torch.arange(MAX_CODES[storage.dtype] + 1, dtype=torch.uint8)
    codes = torch.cat([positive, positive | 0x80]).repeat(3, 1)
    scale = torch.tensor([0.01171875, 1.0, 3.0]) if storage.scaled else None
    expected = storage.decode(codes.view(storage.dtype), scale, torch.empty(codes.shape, dtype=dtype))
    for device in ("cpu", "mps"):
        own_scale = None if scale is None else scale.to(device)
        out = torch.empty(codes.shape, dtype=dtype, device=device)
        codes_format(storage).decode(codes.to(device), own_scale, out)
        assert torch.equal(bits(out), bits(expected)), device


@by_format
@pytest.mark.parametrize("seed", [None, 5])
def test_a_weight_on_the_gpu_is_encoded_to_the_same_bytes(
    storage: StorageFormat, seed: int | None, card: FakeCard
) -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)).half()
    found = codes_format(storage)
    if seed is None:
        expected, made = storage.encode(weight), found.encode(weight.to("mps"))
    else:
        expected, made = encode_stochastic(storage, weight, seed), encode_stochastic(found, weight.to("mps"), seed)
    assert made.data.dtype is torch.uint8 and made.data.device.type == "mps"
    assert torch.equal(bits(made.data), bits(expected.data)) and made.saturated == expected.saturated
    assert (made.scale is None) is (expected.scale is None)
    if made.scale is not None and expected.scale is not None:
        assert torch.equal(made.scale.cpu(), expected.scale)


@pytest.mark.parametrize("name", ["int8_row", "int8_convrot", "code4", "gguf_q8_0", "fp16"])
def test_formats_without_8_bit_floats_stay(name: str) -> None:
    assert as_codes(FORMATS.get(name)) is FORMATS.get(name)


@pytest.mark.parametrize(("device_type", "has"), [("mps", False), ("cuda", True), ("xpu", True)])
def test_what_a_device_has_is_found_out(device_type: str, has: bool) -> None:
    with fake_gpu(device_type, 8):
        assert has_float8(torch.device(device_type)) is has and has_float8(torch.device("cpu"))
