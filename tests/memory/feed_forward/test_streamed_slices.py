"""A split feed-forward whose weights are streamed: only the slice in use is there, and the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.attention import FeedForward
from torch import Tensor, nn

from modules.memory.changes import AllBranches, Branches
from modules.memory.feed_forward import SplitOptions, split_feed_forward
from modules.memory.feed_forward.options import hidden_slices
from modules.memory.layer import put, stored_state
from modules.memory.storage import StorageRules
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.groups import Level
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.source import FileRegion, WatchedFile, as_bytes
from modules.memory.streaming.streaming import StreamHandle, StreamOptions, stream
from modules.memory.streaming.transfer import pin
from tests.memory.feed_forward.allocations import peak_bytes
from tests.memory.storing import apply_storage
from tests.memory.streaming.test_link import made_up

CPU = torch.device("cpu")
WIDTH, HIDDEN, SPLITS = 128, 1024, 4
UP_BYTES, DOWN_BYTES = 2 * HIDDEN * WIDTH * 4, HIDDEN * WIDTH * 4  # of geglu, in float32
SLICE_BYTES = (UP_BYTES + DOWN_BYTES) // SPLITS
CUT = SplitOptions(num_splits=SPLITS)
PLAIN = StreamOptions(ahead_bytes=0)


class Block(nn.Module):
    """A feed-forward, and a layer beside it that belongs to the same block."""

    def __init__(self) -> None:
        super().__init__()
        self.entry = nn.Linear(WIDTH, WIDTH)
        self.ff = FeedForward(WIDTH, inner_dim=HIDDEN, activation_fn="geglu")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.ff(self.entry(x))
        return x + y


class Model(nn.Module):
    """Three blocks of known weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def inputs() -> Tensor:
    return torch.randn(1, 8, WIDTH, generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def run(model: nn.Module) -> Tensor:
    output: Tensor = model(inputs())
    return output


@torch.no_grad()
def split_output(model: nn.Module, options: SplitOptions = CUT) -> Tensor:
    """Of the resident model."""
    with split_feed_forward(model, options):
        return run(model)


def in_file(model: nn.Module, path: Path) -> OffloadStorage:
    """All weights of Linear layers lie in a file, one after the other behind a few other bytes."""
    place, begin = OffloadStorage(small_bytes=1 << 14), 24
    data = [bytes(begin)]
    watched = WatchedFile(path)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            weight = layer.weight.detach().clone()
            data.append(as_bytes(weight).numpy().tobytes())
            place.take_from_file(layer, "weight", FileRegion(watched, begin, weight.dtype, weight.shape), weight.dtype)
            begin += len(data[-1])
    path.write_bytes(b"".join(data))
    place.file(watched)
    return place


@pytest.mark.parametrize("level", [Level.LAYER, Level.BLOCK])
def test_only_the_slice_in_use_is_there(level: Level) -> None:
    model = Model()
    expected, block_bytes = split_output(model), UP_BYTES + DOWN_BYTES + WIDTH * WIDTH * 4
    with stream(model, CPU, level, PLAIN) as handle:
        whole = peak_bytes(lambda: run(model))
        assert handle.counts.max_bytes == (UP_BYTES if level is Level.LAYER else block_bytes)
        with split_feed_forward(model, CUT):
            assert torch.equal(run(model), expected)
            handle.counts.max_bytes = handle.counts.moved_bytes = 0
            in_slices = peak_bytes(lambda: run(model))
            assert handle.counts.max_bytes == SLICE_BYTES
            assert handle.counts.moved_bytes == handle.offloaded_bytes
        assert SLICE_BYTES <= in_slices < 1.3 * SLICE_BYTES
        assert whole >= handle.counts.max_bytes * SPLITS * 2 // 3
        torch.testing.assert_close(run(model), expected)


def test_of_what_comes_ahead_no_more_than_the_next_slice() -> None:
    model = Model()
    expected = split_output(model)
    with stream(model, CPU, Level.LAYER, StreamOptions(ahead_bytes=1 << 30)) as handle:
        with split_feed_forward(model, CUT):
            run(model)
            handle.counts.max_bytes = 0
            before = handle.counts.ready
            assert torch.equal(run(model), expected)
        assert handle.counts.max_bytes <= 2 * SLICE_BYTES + WIDTH * WIDTH * 4  # and the layer in between
        assert handle.counts.ready - before >= 3 * (SPLITS + 1) - 1


@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize("storage", [None, "fp8_e4m3fn_row"])
@pytest.mark.parametrize("where", ["memory", "disk"])
def test_bit_for_bit_as_resident(level: Level, storage: str | None, where: str, tmp_path: Path) -> None:
    model = Model()
    if storage is not None:
        apply_storage(model, StorageRules(storage), torch.float32)
    factors = torch.Generator().manual_seed(1)
    for path, layer in model.named_modules():
        state = stored_state(layer)
        if state is not None and isinstance(layer, nn.Linear) and ".ff." in path:
            down = torch.randn(3, layer.in_features, generator=factors) / 8
            up = torch.randn(layer.out_features, 3, generator=factors) / 8
            state.branches = AllBranches([Branches(down, up, torch.ones(3))])
    cuts = (CUT, SplitOptions(num_splits=5, token_chunk=3), SplitOptions(token_chunk=4))
    expected = [split_output(model, options) for options in cuts]
    place = OffloadStorage(BlobStore(tmp_path) if where == "disk" else None, small_bytes=1 << 14)
    with stream(model, CPU, level, place=place) as handle:
        for _ in range(2):
            for options, wanted in zip(cuts, expected, strict=True):
                assert torch.equal(split_output(model, options), wanted)
        wanted = run(model)
        assert len(handle.streamer._parts) <= 3 * 5, "slices of another cut are forgotten"
    assert torch.equal(run(model), wanted)


@pytest.mark.parametrize("splits", [2, 7])
def test_slices_are_read_from_the_file_itself(splits: int, tmp_path: Path) -> None:
    model, options = Model(), SplitOptions(num_splits=splits)
    expected = split_output(model, options)
    with stream(model, CPU, Level.LAYER, PLAIN, in_file(model, tmp_path / "weights")) as handle:
        assert handle.offloaded_bytes == 3 * (UP_BYTES + DOWN_BYTES + WIDTH * WIDTH * 4)
        assert torch.equal(split_output(model, options), expected)
        widest = max(stop - start for start, stop in hidden_slices(HIDDEN, splits))
        assert handle.counts.max_bytes == (UP_BYTES + DOWN_BYTES) * widest // HIDDEN


def test_under_gradients_too() -> None:
    model = Model()

    def gradient() -> Tensor:
        x = inputs().requires_grad_()
        return torch.autograd.grad(model(x).square().mean(), x)[0]

    with split_feed_forward(model, CUT):
        expected = gradient()
        with stream(model, CPU, Level.BLOCK, PLAIN) as handle:
            assert torch.equal(gradient(), expected)
            handle.counts.max_bytes = 0
            assert torch.equal(gradient(), expected)
            assert handle.counts.max_bytes == SLICE_BYTES


def test_weights_that_stay_on_the_device_are_not_brought_again() -> None:
    model = Model()
    expected = split_output(model)
    with stream(model, CPU, Level.LAYER, StreamOptions(kept_bytes=1 << 30)) as handle, split_feed_forward(model, CUT):
        assert torch.equal(run(model), expected)
        moved = handle.counts.moved_bytes
        assert torch.equal(run(model), expected)
        assert handle.counts.moved_bytes == moved


def test_a_weight_that_is_replaced_is_seen_by_its_slices() -> None:
    model: Any = Model()
    layer = model.blocks[1].ff.net[2]
    other = torch.randn(WIDTH, HIDDEN, generator=torch.Generator().manual_seed(9))
    with stream(model, CPU, Level.BLOCK), split_feed_forward(model, CUT):
        before = run(model)
        put(layer, "weight", other, None)
        after = run(model)
    assert torch.equal(layer.weight, other)
    assert torch.equal(split_output(model), after) and not torch.equal(before, after)


def _finer(handle: StreamHandle) -> Callable[[], None]:
    back = handle.make_finer("a", Level.LAYER)
    assert back is not None
    return back


@pytest.mark.parametrize("change", [_finer, lambda handle: handle.compute_on("a", CPU)], ids=["finer", "elsewhere"])
@pytest.mark.parametrize("cut_before", [False, True])
def test_changes_of_the_streaming_and_back(
    change: Callable[[StreamHandle], Callable[[], None]], cut_before: bool
) -> None:
    """Weights may be cut before, while, or after it: of the component that changes, and of another."""
    models = {"a": Model(), "b": Model()}
    expected = {name: split_output(model) for name, model in models.items()}
    plain = {name: run(model) for name, model in models.items()}

    def all_right() -> bool:
        return all(torch.equal(split_output(model), expected[name]) for name, model in models.items())

    with stream(models, CPU, Level.BLOCK) as handle:
        assert not cut_before or all_right()
        back = change(handle)
        assert all_right()
        back()
        assert all_right()
        assert all(torch.equal(run(model), plain[name]) for name, model in models.items())
        slots = [slot for group in handle.groups for slot in group.slots]
        assert len(slots) == len(set(slots)) == 2 * 9
    assert all(torch.equal(run(model), plain[name]) for name, model in models.items())


def test_weights_are_the_same_after_it() -> None:
    model = Model()
    expected, state = run(model), {key: value.clone() for key, value in model.state_dict().items()}
    with stream(model, CPU, Level.BLOCK):
        split_output(model)
        assert torch.equal(run(model), expected)
        assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


def test_a_card_gets_slices_from_pinned_memory_and_from_elsewhere() -> None:
    model = Model()
    expected, plain = split_output(model), run(model)
    for budget in (0, UP_BYTES, None):
        with stream(model, CPU, Level.BLOCK, copy_engine=made_up([])) as handle:
            pin(handle.groups, budget, lambda count: torch.empty(count, dtype=torch.uint8))
            for _ in range(3):
                assert torch.equal(split_output(model), expected)
            hosts = [piece.host for group in handle.groups for piece in group.pieces]
            assert len(hosts) == 3 * 3 and all((host is None) == (budget is not None) for host in hosts[:1])
            for _ in range(2):
                assert torch.equal(run(model), plain)
