"""The way to a GPU: with a card that is made up, which does copies late, and with a real one."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
import torch
from torch import Tensor, nn

from modules.memory.storage import StorageRules
from modules.memory.streaming.groups import Group, Level, Piece, Slot
from modules.memory.streaming.offload_storage import OffloadStorage
from modules.memory.streaming.source import RamSource
from modules.memory.streaming.streaming import StreamOptions, stream
from modules.memory.streaming.transfer import ReadingCopyEngine, StreamCopyEngine, Transfer, pin, taken_bytes
from tests.memory.storing import apply_storage
from tests.memory.streaming.test_streaming import Blocks, everything, outputs, toy

CPU = torch.device("cpu")


@dataclass
class Event:
    stream: "Queue"
    after: int  # pieces of work that were queued on the stream before it

    def synchronize(self) -> None:
        self.stream.run(self.after)


@dataclass
class Queue:
    """Work is done when somebody waits for it, as late as a real stream may."""

    name: str
    log: list[str]
    lock: threading.RLock
    work: list[Callable[[], object]] = field(default_factory=list)
    done: int = 0

    def queue(self, work: Callable[[], object]) -> None:
        with self.lock:
            self.work.append(work)

    def run(self, count: int) -> None:
        with self.lock:
            while self.done < count:
                self.done += 1
                self.work[self.done - 1]()

    def record_event(self) -> Event:
        with self.lock:
            return Event(self, len(self.work))

    def wait_event(self, event: Event) -> None:
        self.log.append(f"{self.name} waits for {event.stream.name}")
        self.queue(event.synchronize)
        if self.name == "main":  # which does its work at once
            self.run(len(self.work))


class Card:
    """Stands for a GPU's streams: copies that are asked for on its side stream are only done when they must be."""

    def __init__(self) -> None:
        self.log: list[str] = []
        lock = threading.RLock()  # one for both: each may wait for the other
        self.main = Queue("main", self.log, lock)
        self.side = Queue("side", self.log, lock)
        self.current = self.main

    def new_stream(self, device: torch.device) -> Queue:
        return self.side

    def current_stream(self, device: torch.device) -> Queue:
        return self.main

    @contextmanager
    def in_stream(self, stream: Queue) -> Iterator[None]:
        self.current = stream
        yield
        self.current = self.main


class LateCopyEngine(StreamCopyEngine):
    """Its copies are work on the card's stream."""

    card: Card

    def _copy(self, host: Tensor, flat: Tensor, freed: Event) -> Event:
        side = self.card.side
        with side.lock:
            side.wait_event(freed)
            side.queue(lambda: flat.copy_(host[: flat.numel()]))
            return side.record_event()


def made_up(pinned: list[Tensor]) -> LateCopyEngine:
    card = Card()

    def pin(count: int) -> Tensor:
        pinned.append(torch.empty(count, dtype=torch.uint8))
        return pinned[-1]

    copy_engine = LateCopyEngine(CPU, backend=card, pin=pin)
    copy_engine.card = card
    return copy_engine


@pytest.mark.parametrize("level", list(Level))
def test_copies_are_waited_for_and_buffers_not_overwritten(level: Level) -> None:
    module = toy()
    expected = outputs(module)
    pinned: list[Tensor] = []
    copy_engine = made_up(pinned)
    with stream(module, CPU, level, place=everything(), copy_engine=copy_engine):
        for _ in range(3):
            assert all(torch.equal(a, b) for a, b in zip(outputs(module), expected, strict=True))
    assert "main waits for side" in copy_engine.card.log and "side waits for main" in copy_engine.card.log


def test_only_two_pinned_buffers_are_needed() -> None:
    pinned: list[Tensor] = []
    module = Blocks()
    x = torch.randn(1, 32)
    expected = module(x)
    with stream(module, CPU, place=everything(), copy_engine=made_up(pinned)):
        for _ in range(3):
            assert torch.equal(module(x), expected)
    assert len(pinned) <= 4  # of which two were too small


def test_what_rests_in_pinned_memory_is_copied_from_there() -> None:
    pinned: list[Tensor] = []
    copy_engine = made_up(pinned)
    tensor = torch.randn(8, 8)
    group = Group(0, "x", [Slot("x", nn.Linear(8, 8), "weight", RamSource(tensor))])
    (piece,) = group.pieces
    piece.host = tensor.view(-1).view(torch.uint8).clone()
    transfer = copy_engine.send(piece, ahead=True)
    assert not pinned
    assert torch.equal(transfer.wait()[: piece.size_bytes].view(torch.float32).view(8, 8), tensor)
    copy_engine.send(piece, ahead=True).discard()
    copy_engine.close()


@pytest.mark.parametrize("budget", [0, 9000, None])
def test_pinning_goes_as_far_as_the_budget(budget: int | None) -> None:
    pinned: list[Tensor] = []
    module = Blocks()
    x = torch.randn(1, 32)
    expected = module(x)
    with stream(module, CPU, place=everything(), copy_engine=made_up(pinned)) as handle:
        pin(handle.groups, budget, lambda count: torch.empty(count, dtype=torch.uint8))
        hosts = [piece.host for group in handle.groups for piece in group.pieces]
        held = sum(host.numel() for host in hosts if host is not None)
        taken = sum(taken_bytes(host.numel()) for host in hosts if host is not None)
        assert (held > 0) is (budget != 0) and (budget is None or taken <= budget)
        assert budget is not None or held == sum(group.size_bytes for group in handle.groups)
        for _ in range(2):
            assert torch.equal(module(x), expected)
        assert bool(pinned) is (budget is not None)


def test_where_the_system_pins_no_more_it_goes_on_without() -> None:
    """A third piece, and the buffers on the way, are refused."""
    module, x = Blocks(), torch.randn(1, 32)
    expected, given = module(x), list[int]()

    def limited(count: int) -> Tensor:
        if len(given) == 2:
            raise RuntimeError("CUDA error: out of memory")
        given.append(count)
        return torch.empty(count, dtype=torch.uint8)

    copy_engine = LateCopyEngine(CPU, backend=Card(), pin=limited)
    copy_engine.card = copy_engine._backend  # type: ignore[assignment]
    with stream(module, CPU, place=everything(), copy_engine=copy_engine) as handle:
        pin(handle.groups, None, limited)
        assert len([piece for group in handle.groups for piece in group.pieces if piece.host is not None]) == 2
        for _ in range(3):
            assert torch.equal(module(x), expected)


def test_what_should_come_ahead_and_finds_no_room_comes_when_it_is_used() -> None:
    class Full(ReadingCopyEngine):
        def send(self, piece: Piece, ahead: bool) -> Transfer:
            if ahead:
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().send(piece, ahead)

    module, x = Blocks(), torch.randn(1, 32)
    expected = module(x)
    with stream(module, CPU, place=everything(), copy_engine=Full()) as handle:
        for _ in range(3):
            assert torch.equal(module(x), expected)
        assert handle.counts.no_room > 0 and handle.counts.ready == 0


def test_a_piece_that_is_not_needed_goes_back() -> None:
    copy_engine = ReadingCopyEngine(spare_bytes=1 << 20)
    group = Group(0, "x", [Slot("x", nn.Linear(8, 8), "weight", RamSource(torch.randn(8, 8)))])
    copy_engine.send(group.pieces[0], ahead=True).discard()
    flat = copy_engine.send(group.pieces[0], ahead=False).wait()
    copy_engine.release(flat)
    copy_engine.close()


card = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.gpu
@card
@pytest.mark.parametrize("level", list(Level))
@pytest.mark.parametrize(
    "options",
    [
        StreamOptions(),
        StreamOptions(pinned_bytes=None),
        StreamOptions(pinned_bytes=40_000, record_stream=True),
        StreamOptions(own_stream=False),
        StreamOptions(kept_bytes=40_000, ahead_bytes=1 << 20),
    ],
    ids=str,
)
@pytest.mark.parametrize("storage", [None, "fp8_e4m3fn_row"])
def test_a_card_computes_what_it_does_with_all_weights_there(
    level: Level, options: StreamOptions, storage: str | None
) -> None:
    device = torch.device("cuda")
    module = nn.Sequential(*(nn.Linear(512, 512) for _ in range(12))).requires_grad_(False)
    if storage:
        apply_storage(module, StorageRules(storage), torch.float32)
    x = torch.randn(64, 512, device=device)
    expected = module.to(device)(x)
    module.to("cpu")
    torch.cuda.synchronize()
    with torch.inference_mode(), stream(module, device, level, options, OffloadStorage(small_bytes=1024)) as handle:
        for _ in range(5):
            torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=0)
        assert handle.offloaded_bytes >= 12 * 512 * 512
    torch.testing.assert_close(module(x), expected, atol=1e-5, rtol=0)


@pytest.mark.gpu
@card
def test_a_card_holds_less_the_finer_it_is() -> None:
    device = torch.device("cuda")
    module = nn.ModuleList(nn.Sequential(nn.Linear(2048, 2048), nn.Linear(2048, 2048)) for _ in range(8))
    whole = nn.Sequential(*module).requires_grad_(False)
    x = torch.randn(4, 2048, device=device)
    nn.functional.linear(x, torch.zeros(2048, 2048, device=device), torch.zeros(2048, device=device))  # its workspace
    peaks = {}
    for level in (Level.LAYER, Level.BLOCK, Level.COMPONENT):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with torch.inference_mode(), stream(whole, device, level) as handle:
            for _ in range(3):
                whole(x)
            peaks[level] = torch.cuda.max_memory_allocated() - before
            handle.let_go()
        whole.to("cpu")
    assert peaks[Level.LAYER] < peaks[Level.BLOCK] < peaks[Level.COMPONENT]
