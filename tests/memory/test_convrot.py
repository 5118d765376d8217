"""int8_convrot: which weights are rotated, what is lost, and that stored layers come to the same weights either way."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.formats.convrot import ROTATED, RotatedRowFormat
from modules.memory.formats.format import FORMATS, Encoded
from modules.memory.formats.rowwise import INT8_ROW
from modules.memory.formats.stochastic import encode_stochastic
from modules.memory.layer import Part, manage, put, read_part, read_weight, stored_state, unmanage
from modules.memory.storage import StorageRules
from tests.memory.storing import apply_storage

CONVROT = FORMATS.get("int8_convrot")


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 0.02


def with_outliers(rows: int = 64, width: int = 512) -> Tensor:
    """Some inputs weigh fifteen times as much as the others."""
    weight = noise(rows, width)
    weight[:, torch.randperm(width, generator=torch.Generator().manual_seed(2))[: width // 64]] *= 15
    return weight


def decoded(encoded: Encoded, dtype: torch.dtype = torch.float32) -> Tensor:
    assert encoded.storage is not None
    return encoded.storage.decode(encoded.data, encoded.scale, torch.empty(encoded.data.shape, dtype=dtype))


def error(encoded: Encoded, weight: Tensor) -> float:
    return float((decoded(encoded) - weight).norm() / weight.norm())


def test_a_weight_with_outliers_is_rotated_and_keeps_the_error_of_one_without() -> None:
    weight = with_outliers()
    encoded = CONVROT.encode(weight)
    assert isinstance(encoded.storage, RotatedRowFormat)
    assert error(encoded, weight) < 0.0095
    assert error(encoded, weight) < 0.35 * float((_plain(weight) - weight).norm() / weight.norm())


def _plain(weight: Tensor) -> Tensor:
    encoded = INT8_ROW.encode(weight)
    return INT8_ROW.decode(encoded.data, encoded.scale, torch.empty(weight.shape))


@pytest.mark.parametrize(
    "weight",
    [noise(64, 512), with_outliers(64, 320), noise(32, 256, 3, 3), torch.rand(64, 512) - 0.5],
    ids=["gauss", "no whole groups", "convolution", "uniform"],
)
def test_others_are_int8_row_bit_for_bit(weight: Tensor) -> None:
    encoded, plain = CONVROT.encode(weight), INT8_ROW.encode(weight)
    assert encoded.storage is INT8_ROW
    assert plain.scale is not None and encoded.scale is not None
    assert torch.equal(encoded.data, plain.data) and torch.equal(encoded.scale, plain.scale)


def test_the_stored_numbers_are_those_of_the_definition() -> None:
    """W R in groups, s = max |row| / 127, q = round(W R / s): what files in ComfyUI's layout hold."""
    weight = with_outliers(8)
    base = torch.tensor([[1.0, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]]) / 2
    matrix = torch.kron(torch.kron(torch.kron(base, base), base), base)
    turned = (weight.view(8, 2, 256) @ matrix).view(8, 512)
    encoded = ROTATED.encode(weight)
    assert encoded.scale is not None
    torch.testing.assert_close(encoded.scale, turned.abs().amax(1) / 127)
    assert (encoded.data.float() - turned / encoded.scale[:, None]).abs().max() < 0.501


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_slices_are_decoded_like_the_whole(dtype: torch.dtype) -> None:
    weight = with_outliers(3000, 512)  # several slices
    encoded = CONVROT.encode(weight)
    whole = decoded(encoded, dtype)
    assert encoded.scale is not None and encoded.storage is not None
    some = encoded.storage.decode(encoded.data[7:9], encoded.scale[7:9], torch.empty(2, 512, dtype=dtype))
    torch.testing.assert_close(some, whole[7:9], rtol=1e-5 if dtype == torch.float32 else 1e-2, atol=1e-5)


def test_rows_of_zeros_stay_zero_and_nan_is_refused() -> None:
    weight = with_outliers()
    weight[3] = 0
    assert torch.equal(decoded(CONVROT.encode(weight))[3], torch.zeros(512))
    weight[5, 6] = float("nan")
    for storage in (CONVROT, ROTATED):
        with pytest.raises(InvalidValueError, match="NaN or infinite"):
            storage.encode(weight)


def test_stochastic_rounding_keeps_the_mean_of_a_rotated_weight() -> None:
    weight = with_outliers(4)
    mean = torch.stack([decoded(encode_stochastic(ROTATED, weight, seed)) for seed in range(64)]).mean(0)
    assert (mean - weight).norm() / weight.norm() < 0.005


def stored_model() -> Any:
    model: Any = nn.Sequential(nn.Linear(512, 64), nn.Linear(64, 512)).requires_grad_(False)
    model[0].weight.copy_(with_outliers())
    return model


def test_a_layer_knows_its_own_format_and_the_way_back() -> None:
    model = stored_model()
    apply_storage(model, StorageRules("int8_convrot"), torch.float32)
    formats = [state.formats["weight"] for layer in model if (state := stored_state(layer)) is not None]
    assert formats == [ROTATED, INT8_ROW]
    weight = read_weight(model[0], "weight")
    x = noise(5, 512)
    torch.testing.assert_close(model[0](x), x @ weight.t() + model[0].bias)
    again = ROTATED.encode(weight)
    assert (again.data.int() - model[0]._parameters["weight"].int()).abs().max() <= 1
    unmanage(model[0])
    assert torch.equal(model[0].weight, weight)


@pytest.mark.parametrize(("start", "stop"), [(0, 256), (256, 512), (100, 300)])
def test_columns_are_those_of_the_whole(start: int, stop: int) -> None:
    layer = stored_model()[0]
    encoded = CONVROT.encode(layer.weight)
    put(layer, "weight", encoded.data, encoded.scale)
    manage(layer, {"weight": ROTATED}, torch.float32)
    part = read_part(Part(layer, "weight", 1, start, stop))
    torch.testing.assert_close(part, read_weight(layer, "weight")[:, start:stop])
