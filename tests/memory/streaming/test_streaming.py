"""Streamed modules compute what resident ones do, whatever is streamed how, in which order, and from where."""

import copy
import gc
import weakref
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from modules.errors import InvalidValueError
from modules.memory.layer import put, stored_state, stored_tensors
from modules.memory.storage import StorageRules
from modules.memory.streaming.blobs import BlobStore
from modules.memory.streaming.groups import Level
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.streamer import keep_out_of_graphs
from modules.memory.streaming.streaming import StreamOptions, stream
from tests.memory.storing import apply_storage
from tests.memory.toys import Toy, toy_inputs

CPU = torch.device("cpu")


class Blocks(nn.Module):
    """Blocks in a list, one of them optional, one in a nested container, a module that stands in two blocks."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        shared = nn.Linear(32, 32)
        self.entry = nn.Linear(32, 32)
        self.blocks = nn.ModuleList(
            nn.ModuleDict({"norm": nn.LayerNorm(32), "own": nn.Linear(32, 32), "both": shared}) for _ in range(4)
        )
        self.optional = nn.Sequential(nn.Linear(32, 32), nn.Sequential(nn.GELU(), nn.Linear(32, 32)))
        self.eval().requires_grad_(False)

    def forward(self, x: Tensor, order: tuple[int, ...] = (0, 1, 2, 3), with_optional: bool = False) -> Tensor:
        x = self.entry(x)
        for index in order:
            block: nn.ModuleDict = self.blocks[index]  # type: ignore[assignment]
            x = x + block["both"](block["own"](block["norm"](x)))
        return self.optional(x) if with_optional else x


def toy() -> Toy:
    toy = Toy()
    toy.requires_grad_(False)
    return toy


def everything(store: BlobStore | None = None) -> OffloadStorage:
    """Takes the smallest weights too."""
    return OffloadStorage(store, small_bytes=0)


@torch.inference_mode()
def outputs(module: nn.Module) -> list[Tensor]:
    return list(module(*toy_inputs()))


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(params=["memory", "disk"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> OffloadStorage:
    return everything(BlobStore(tmp_path) if request.param == "disk" else None)


@pytest.mark.parametrize("level", list(Level))
def test_the_output_is_that_of_the_resident_module_every_time(level: Level, place: OffloadStorage) -> None:
    module = toy()
    expected = outputs(module)
    with stream(module, CPU, level, place=place) as handle:
        assert all(parameter.is_meta for parameter in module.parameters())
        for _ in range(3):
            assert equal(outputs(module), expected)
        assert handle.offloaded_bytes == sum(parameter.numel() * 4 for parameter in module.parameters())
    assert not any(parameter.is_meta for parameter in module.parameters())
    assert type(module.first) is nn.Linear and stored_state(module.first) is None
    assert equal(outputs(module), expected)


@pytest.mark.parametrize("storage", ["fp8_e4m3fn", "fp8_e4m3fn_row", "int8_row", "bf16"])
def test_what_is_stored_in_8_bits_moves_in_8_bits(storage: str, place: OffloadStorage) -> None:
    module = toy()
    apply_storage(module, StorageRules(storage, embeddings=True, direct=True), torch.float32)
    expected = outputs(module)
    narrow = sum(p.numel() for p in module.parameters() if p.element_size() == 1)
    with stream(module, CPU, place=place) as handle:
        assert equal(outputs(module), expected)
        assert handle.offloaded_bytes < sum(4 * p.numel() for p in module.parameters()) - 2 * narrow
    assert equal(outputs(module), expected)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 1, 0, 2), (2, 2, 0)])
@pytest.mark.parametrize(
    ("level", "options"),
    [
        (Level.LAYER, StreamOptions()),
        (Level.LAYER, StreamOptions(ahead_bytes=0)),
        (Level.LAYER, StreamOptions(ahead_bytes=1 << 20, kept_bytes=9000)),
        (Level.BLOCK, StreamOptions()),
        (Level.BLOCK, StreamOptions(blocks_per_group=3)),
        (Level.BLOCK, StreamOptions(max_block_bytes=4500)),
        (Level.COMPONENT, StreamOptions()),
    ],
)
def test_any_order_and_optional_parts(order: tuple[int, ...], level: Level, options: StreamOptions) -> None:
    module = Blocks()
    x = torch.randn(2, 32)
    with torch.inference_mode():
        expected = [module(x, order, bool(turn % 2)) for turn in range(4)]
        with stream(module, CPU, level, options, everything()):
            for turn in range(4):
                assert torch.equal(module(x, order, bool(turn % 2)), expected[turn])
            assert torch.equal(module(x, (0, 3)), Blocks()(x, (0, 3)))


def test_blocks_are_groups_and_what_they_share_is_not_in_them() -> None:
    handle = stream(Blocks(), CPU, Level.BLOCK, place=everything())
    assert [group.path for group in handle.groups] == [
        *(f"blocks.{number}" for number in range(4)),
        *("optional.0", "optional.1", "entry", "blocks.0.both"),
    ]
    pairs = stream(Blocks(), CPU, Level.BLOCK, StreamOptions(blocks_per_group=2), everything())
    assert [group.path for group in pairs.groups][:3] == ["blocks.0", "blocks.2", "optional.0"]
    halved = stream(Blocks(), CPU, Level.BLOCK, StreamOptions(max_block_bytes=4200), everything())
    assert "optional.1.1" in [group.path for group in halved.groups]
    assert "blocks.0.own" in [group.path for group in halved.groups]


def test_only_the_group_in_use_and_the_next_are_there() -> None:
    module = Blocks()
    with torch.inference_mode(), stream(module, CPU, place=everything()) as handle:
        module(torch.randn(1, 32))
        assert handle.live_bytes <= 2 * max(group.size_bytes for group in handle.groups)
        handle.let_go()
        assert handle.live_bytes == 0
        module(torch.randn(1, 32))


def test_what_fits_the_budget_stays() -> None:
    module = Blocks()
    with (
        torch.inference_mode(),
        stream(module, CPU, options=StreamOptions(kept_bytes=1 << 20, ahead_bytes=0), place=everything()) as handle,
    ):
        module(torch.randn(1, 32))
        moved = handle.counts.moved_bytes
        module(torch.randn(1, 32))
        assert handle.counts.moved_bytes == moved


def test_the_order_of_the_first_pass_is_prefetched_on_the_next(place: OffloadStorage) -> None:
    module = Blocks()
    x = torch.randn(1, 32)
    with torch.inference_mode(), stream(module, CPU, place=place) as handle:
        module(x)
        counts = handle.counts
        uses, ready = counts.uses, counts.ready
        module(x)
        module(x)
        assert counts.uses - uses == 2 * uses
        assert counts.ready - ready >= 2 * uses - 3  # the shared module's successors must be told apart once
        wasted = counts.wasted
        module(x, (1, 0, 2, 3))
        module(x, (1, 0, 2, 3))
        before, uses = counts.ready, counts.uses
        module(x, (1, 0, 2, 3))
        assert counts.ready - before == counts.uses - uses
        assert counts.wasted > wasted


def test_components_take_turns() -> None:
    first, second = Blocks(), Blocks()
    levels = {"first": Level.COMPONENT, "second": Level.LAYER}
    with torch.inference_mode():
        handle = stream({"first": first, "second": second}, CPU, levels, place=everything())
        whole = handle.groups[0].size_bytes
        x = torch.randn(1, 32)
        first(x)
        assert handle.live_bytes == whole
        moved = handle.counts.moved_bytes
        first(x)
        assert handle.counts.moved_bytes == moved
        second(x)
        assert handle.live_bytes < whole / 2
        first(x)
        assert handle.live_bytes == whole
    handle.remove()


def test_small_weights_and_buffers_stay() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).eval().requires_grad_(False)
    expected = module(torch.ones(2, 64))
    with stream(module, CPU, place=OffloadStorage(small_bytes=1000)) as handle:
        assert [slot.name for group in handle.groups for slot in group.slots] == ["weight"]
        assert torch.equal(module(torch.ones(2, 64)), expected)


def test_nobody_holds_on_to_what_was_put_elsewhere(tmp_path: Path) -> None:
    module = toy()
    seen = weakref.ref(module.line.weight)
    with stream(module, CPU, place=everything(BlobStore(tmp_path))):
        gc.collect()
        assert seen() is None


def test_what_was_taken_into_a_file_is_freed_before_the_next_is_read(tmp_path: Path) -> None:
    first, second, tied = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
    tied.weight = first.weight
    place = everything(BlobStore(tmp_path))
    ours, theirs = weakref.ref(second.weight), weakref.ref(first.weight)
    assert place.take(second, "weight", is_sure=True) and place.take(first, "weight", is_sure=True)
    assert ours() is None and theirs() is tied.weight
    assert place.take(tied, "weight", is_sure=True)
    assert theirs() is None and tied.weight is first.weight


def test_reading_weights_without_calling_the_layer() -> None:
    module = toy()
    first, back = module.first.weight.clone(), module.back.weight.clone()
    with stream(module, CPU, place=everything()):
        held = module.first.weight
        assert torch.equal(module.back.weight, back)
        outputs(module)
        assert torch.equal(held, first)  # nobody else was given its memory
        assert torch.equal(stored_tensors(module.first, "weight")[0], first)


def test_state_dict_has_the_weights(place: OffloadStorage) -> None:
    module = toy()
    expected = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with stream(module, CPU, place=place):
        saved = module.state_dict()
        assert list(saved) == list(expected)
        assert all(torch.equal(saved[name], tensor) for name, tensor in expected.items())
        with pytest.raises(InvalidValueError, match="Remove the streaming first"):
            module.load_state_dict(expected)
    module.load_state_dict(expected)


def test_a_weight_that_is_put_takes_effect_and_the_old_one_comes_back(place: OffloadStorage) -> None:
    module = toy()
    expected = outputs(module)
    before = module.first.weight.detach().clone()
    with stream(module, CPU, place=place) as handle:
        outputs(module)
        rest = handle.offloaded_bytes
        put(module.convolution, "weight", module.convolution.weight + 1, None)
        put(module.first, "weight", before.double().mul(2).float(), None)
        changed = outputs(module)
        assert not torch.equal(changed[0], expected[0])
        assert module.convolution._parameters["weight"].is_meta  # type: ignore[union-attr]
        put(module.first, "weight", before, None)
        put(module.convolution, "weight", module.convolution.weight - 1, None)
        assert equal(outputs(module)[:1], expected[:1])
        assert handle.offloaded_bytes >= rest


def test_storage_may_change_while_streamed(place: OffloadStorage) -> None:
    module, plain = toy(), toy()
    rules = StorageRules("fp8_e4m3fn_row", direct=True)
    apply_storage(plain, rules, torch.float32)
    with stream(module, CPU, place=place):
        outputs(module)
        apply_storage(module, rules, torch.float32)
        assert equal(outputs(module), outputs(plain))
    assert equal(outputs(module), outputs(plain))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_another_dtype_reaches_the_weights(dtype: torch.dtype) -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).requires_grad_(False)
    plain = copy.deepcopy(module)
    x = torch.randn(2, 64)
    handle = stream(module, CPU, place=everything())
    if dtype == torch.float64:
        module.to(torch.bfloat16), plain.to(torch.bfloat16)
        dtype = torch.float32
        assert torch.equal(module(x.bfloat16()), plain(x.bfloat16()))
    module.to(dtype), plain.to(dtype)
    assert torch.equal(module(x.to(dtype)), plain(x.to(dtype)))
    handle.remove()
    assert torch.equal(module(x.to(dtype)), plain(x.to(dtype)))


def test_an_exception_in_a_forward_pass_leaves_nothing_behind() -> None:
    module = Blocks()
    x = torch.randn(1, 32)
    expected = module(x)
    with stream(module, CPU, Level.BLOCK, place=everything()):
        with pytest.raises(IndexError):
            module(x, (0, 1, 9))
        assert torch.equal(module(x), expected)


def test_gradients_flow_through_streamed_weights() -> None:
    module = Blocks()
    grads = []
    for streamed in (False, True):
        x = torch.ones(1, 32, requires_grad=True)
        handle = stream(module, CPU, place=everything()) if streamed else None
        for _ in range(2):
            module(x, (0, 1, 2, 3, 1)).square().sum().backward()
        grads.append(x.grad)
        if handle is not None:
            handle.remove()
    assert grads[0] is not None and grads[1] is not None and torch.equal(grads[0], grads[1])


@settings(max_examples=25, deadline=None)
@given(passes=st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=5), ahead=st.integers(0, 20_000))
def test_any_sequence_of_passes(passes: list[list[int]], ahead: int) -> None:
    module = Blocks()
    x = torch.randn(1, 32)
    with torch.inference_mode():
        expected = [module(x, tuple(order), len(order) % 2 == 0) for order in passes]
        with stream(module, CPU, Level.LAYER, StreamOptions(ahead_bytes=ahead), everything()) as handle:
            got = [module(x, tuple(order), len(order) % 2 == 0) for order in passes]
            assert handle.live_bytes <= ahead + max(group.size_bytes for group in handle.groups)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_every_error() -> None:
    module = toy()
    handle = stream(module, CPU, place=everything())
    with pytest.raises(InvalidValueError, match="streamed already"):
        stream(module, CPU)
    with pytest.raises(InvalidValueError, match="cannot be copied"):
        copy.deepcopy(module)
    with pytest.raises(NotImplementedError):
        module.to("cpu")
    handle.remove()
    handle.remove()
    copy.deepcopy(module)
    with pytest.raises(InvalidValueError, match="own requires a gradient"):
        stream(Toy(), CPU, place=everything())
    for wrong in ({"ahead_bytes": -1}, {"kept_bytes": -1}, {"pinned_bytes": -1}):
        with pytest.raises(InvalidValueError, match="must be 0 or more"):
            StreamOptions(**wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="must be 1 or more"):
        stream(toy(), CPU, options=StreamOptions(blocks_per_group=0))


@pytest.mark.parametrize(("storage", "level"), [(None, Level.BLOCK), ("fp8_e4m3fn_row", Level.LAYER)])
def test_compiled_it_computes_the_same_and_stays_usable(storage: str | None, level: Level) -> None:
    module = Blocks()
    if storage is not None:
        apply_storage(module, StorageRules(storage), torch.float32)
    x = torch.randn(1, 32)
    torch._dynamo.reset()
    keep_out_of_graphs()  # as whoever compiles a model does
    with torch.inference_mode():
        expected = module(x, (0, 1), True)
        with stream(module, CPU, level, place=everything()):
            compiled = torch.compile(module, backend="aot_eager")
            for _ in range(2):
                assert torch.allclose(compiled(x, (0, 1), True), expected, atol=1e-6)
            assert torch.equal(module(x, (0, 1), True), expected)
        assert torch.equal(module(x, (0, 1), True), expected)
    torch._dynamo.reset()


def test_streaming_may_become_finer_and_go_back() -> None:
    module = Blocks()
    x = torch.randn(1, 32)
    with torch.inference_mode():
        expected = module(x)
        with stream(module, CPU, Level.COMPONENT, StreamOptions(kept_bytes=1 << 20), everything()) as handle:
            whole, sizes, undos = handle.groups, [handle.offloaded_bytes], []
            for level in (Level.BLOCK, Level.LAYER):
                undo = handle.make_finer("", level)
                assert undo is not None and handle.make_finer("", level) is None
                undos.append(undo)
                for _ in range(2):
                    assert torch.equal(module(x), expected)
                assert handle.live_bytes <= max(
                    group.size_bytes for group in handle.groups
                )  # nothing ahead, nothing kept
                sizes.append(max(group.size_bytes for group in handle.groups))
            assert handle.make_finer("", Level.BLOCK) is None  # it is finer already
            assert sizes == sorted(sizes, reverse=True) and sizes[0] > sizes[1]
            put(module.entry, "weight", torch.ones(32, 32), None)
            changed = module(x)
            while undos:
                undos.pop()()
                assert torch.equal(module(x), changed)
            assert handle.groups == whole
        assert torch.equal(module(x), changed)


def test_a_component_may_compute_elsewhere_in_another_dtype() -> None:
    """Two modules streamed together; one leaves for a while (here to the same device, in a wider dtype)."""
    first, second = Blocks().half(), Blocks()
    x = torch.randn(1, 32)
    with torch.inference_mode():
        wide, narrow, other = copy.deepcopy(first).float()(x), first(x.half()), second(x)
        with stream({"a": first, "b": second}, CPU, Level.BLOCK, place=everything()):
            assert torch.equal(first(x.half()), narrow)
        with stream({"a": first, "b": second}, CPU, Level.BLOCK, place=everything()) as handle:
            back = handle.compute_on("a", CPU, torch.float32)
            for _ in range(2):
                assert torch.equal(first(x), wide) and torch.equal(second(x), other)
            back()
            assert torch.equal(first(x.half()), narrow) and torch.equal(second(x), other)
        assert first.entry.weight.dtype == torch.float16


def test_threads_share_a_module() -> None:
    from concurrent.futures import ThreadPoolExecutor

    module = Blocks()
    x = torch.randn(1, 32)
    orders = [(0, 1, 2, 3), (3, 2, 1, 0), (1, 3)]
    with torch.inference_mode():
        expected = [module(x, order) for order in orders]

    @torch.inference_mode()
    def run(number: int) -> bool:
        return all(torch.equal(module(x, orders[number]), expected[number]) for _ in range(20))

    with stream(module, CPU, place=everything()), ThreadPoolExecutor(3) as threads:
        assert all(threads.map(run, range(3)))
