"""`code4`: its error, its exact bytes, and layers that compute with it."""

import pytest
import torch
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.changes import AllBranches, SideBranch, joined_branches
from modules.memory.formats.catalog import FORMAT_SPECS
from modules.memory.formats.code4 import BLOCK, BOOKS, CODE4, HEADROOM, LEVELS, OFFSETS, STEPS_PER_OCTAVE
from modules.memory.formats.format import FORMATS
from modules.memory.layer import Part, read_part, read_weight, stored_state
from modules.memory.storage import StorageRules
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.streaming import stream
from tests.memory.storing import apply_storage


def error(weight: Tensor) -> float:
    encoded = CODE4.encode(weight)
    decoded = CODE4.decode(encoded.data, None, torch.empty(weight.shape))
    return float((decoded - weight).norm() / weight.norm())


def gaussian(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7)) / 50


EXPECTED = 0.066


def test_the_error_is_what_is_expected_and_below_that_of_other_formats_of_4_bits() -> None:
    weight = gaussian(128, 512)
    assert abs(error(weight) - EXPECTED) < 0.003
    assert error(weight) < (FORMAT_SPECS.get("gguf_q4_1").error or 0.0)
    outliers = weight.clone()
    outliers[:, 3] *= 20
    assert error(outliers) < 0.09
    assert error(gaussian(32, 5, 16) * 1e-6) < 0.08 and error(gaussian(16, 64) * 1e6) < 0.08


def least_errors(weight: Tensor) -> Tensor:
    """The smallest squared error of each block [rows, blocks], by trying each codebook and scale with each code."""
    blocks = weight.double().unflatten(1, (-1, BLOCK))  # type: ignore[no-untyped-call]
    peak = blocks.gather(2, blocks.abs().argmax(dim=2, keepdim=True))
    top = peak.abs().amax(dim=1, keepdim=True) * HEADROOM
    level = torch.round(torch.log2(peak.abs() / top) * -STEPS_PER_OCTAVE)
    errors = []
    for offset in OFFSETS:
        factor = top * torch.exp2((level + offset).clamp(0, LEVELS - 1) / -STEPS_PER_OCTAVE) * peak.sign()
        for book in torch.tensor(BOOKS, dtype=torch.float64).view(4, 16):
            errors.append((blocks[..., None] - factor[..., None] * book).square().amin(dim=3).sum(dim=2))
    return torch.stack(errors).amin(dim=0)


def test_no_block_is_worse_than_if_everything_was_tried() -> None:
    for weight in (
        gaussian(48, 512),
        gaussian(48, 512) ** 3,
        gaussian(48, 512) * (1 + 30 * (gaussian(48, 512) > 0.05)),
    ):
        decoded = CODE4.decode(CODE4.encode(weight).data, None, torch.empty(weight.shape))
        errors = (decoded - weight).square().unflatten(1, (-1, BLOCK)).sum(dim=2)  # type: ignore[no-untyped-call]
        least = least_errors(weight)
        assert float((errors / least).max()) < 1.01 and float(errors.sum() / least.sum()) < 1.0001


def test_rows_of_zeros_and_blocks_far_below_the_row_stay_near_zero() -> None:
    weight = gaussian(4, 64)
    weight[1] = 0
    weight[2, 16:32] = 0
    weight[3, :16] *= 1e4
    decoded = CODE4.decode(CODE4.encode(weight).data, None, torch.empty(4, 64))
    assert torch.equal(decoded[1], torch.zeros(64))
    assert float(decoded[2, 16:32].abs().max()) < float(weight[2].abs().max()) / 100
    assert torch.isfinite(decoded).all()
    for size, most in ((1e-38, 0.4), (1e-25, 0.03), (1e25, 0.03)):  # squares of which are nothing or infinite
        sized = gaussian(4, 64) * size
        decoded = CODE4.decode(CODE4.encode(sized).data, None, torch.empty(4, 64))
        assert float((decoded / size - sized / size).norm()) < most


def test_a_side_branch_has_its_full_effect() -> None:
    torch.manual_seed(1)
    layer, x = nn.Linear(64, 128), torch.randn(3, 64)
    apply_storage(layer, StorageRules("code4"), torch.float32)
    branch = SideBranch(torch.randn(4, 64) / 8, torch.randn(128, 4) / 100, None, 0.5)
    delta = branch.scale * branch.up @ branch.down
    expected = nn.functional.linear(x, read_weight(layer, "weight") + delta, layer.bias)
    state = stored_state(layer)
    assert state is not None
    state.branches = AllBranches(joined_branches(layer, [branch], torch.float32, torch.device("cpu")))
    with torch.no_grad():
        assert torch.allclose(layer(x), expected, atol=1e-5)


def test_a_layer_and_a_convolution_compute_with_their_codes_resident_and_streamed() -> None:
    torch.manual_seed(0)
    convolution, linear = nn.Conv2d(16, 48, 3, padding=1), nn.Linear(64, 1024)
    model = nn.Sequential(convolution, nn.Flatten(2), linear).requires_grad_(False)
    x, before = torch.randn(2, 16, 8, 8), [convolution.weight.detach().clone(), linear.weight.detach().clone()]
    apply_storage(model, StorageRules("code4"), torch.float32)
    for layer, weight in zip((convolution, linear), before, strict=True):
        decoded = read_weight(layer, "weight")
        assert decoded.shape == weight.shape and float((decoded - weight).norm() / weight.norm()) < 0.08
    assert torch.equal(read_part(Part(linear, "weight", 0, 32, 96)), read_weight(linear, "weight")[32:96])
    with torch.no_grad():
        resident = model(x)
        with stream(model, torch.device("cpu"), place=OffloadStorage(small_bytes=1024)) as handle:
            assert handle.offloaded_bytes > 30_000 and torch.equal(model(x), resident)
        assert torch.equal(model(x), resident)


def test_wrong_weights_are_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"no rows of whole blocks of 16, as code4 needs"):
        FORMATS.get("code4").encode(torch.ones(8, 20))
    with pytest.raises(InvalidValueError, match="NaN or infinite"):
        FORMATS.get("code4").encode(torch.full((8, 32), torch.nan))
