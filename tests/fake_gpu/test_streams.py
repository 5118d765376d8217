"""Copy streams of a made-up GPU: what is used too early or overwritten too soon is found, and our streaming does
neither."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from modules.memory.streaming.groups import Level
from modules.memory.streaming.streaming import StreamOptions, stream
from modules.memory.streaming.transfer import StreamCopyEngine
from tests.fake_gpu import FakeCard, fake_gpu
from tests.fake_gpu.jobs import engine_of, leave, made
from tests.fake_gpu.streams import RaceError
from tests.memory.streaming.test_streaming import everything

CUDA = torch.device("cuda")


def toy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(6))).requires_grad_(False)


def outputs(module: nn.Module, device: torch.device, rounds: int = 3) -> list[torch.Tensor]:
    with torch.no_grad():
        return [module(torch.full((2, 64), 0.1 * (1 + number), device=device)).cpu() for number in range(rounds)]


class NotWaiting(StreamCopyEngine):
    """Computes with a weight without waiting for its copy."""

    def keep_effect(self, flat: torch.Tensor, copied: Any) -> torch.Tensor:
        return flat


class TooSoon(StreamCopyEngine):
    """Copies into memory that the work before may still be reading."""

    def _copy(self, host: torch.Tensor, flat: torch.Tensor, freed: Any) -> Any:
        with self._backend.in_stream(self._side):
            flat.copy_(host[: flat.numel()], non_blocking=True)
            return self._side.record_event()


@pytest.mark.parametrize("pinned_bytes", [0, 20_000, None])
@pytest.mark.parametrize("level", list(Level))
def test_copies_end_before_their_use_and_memory_is_used_again_after_its_last(
    level: Level, pinned_bytes: int | None
) -> None:
    expected = outputs(toy(), torch.device("cpu"))
    with fake_gpu("cuda", 1) as card:
        module = toy()
        with stream(module, CUDA, level, StreamOptions(pinned_bytes=pinned_bytes), everything()) as handle:
            found = outputs(module, CUDA)
            assert handle.counts.moved_bytes > 0
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert card.pinned_bytes > 0
        del handle


@pytest.mark.parametrize("fault", [NotWaiting, TooSoon])
def test_a_copy_engine_that_does_not_wait_is_found(fault: type[StreamCopyEngine]) -> None:
    with fake_gpu("cuda", 1):
        module = toy()
        options = StreamOptions(ahead_bytes=1 << 20)
        engine = fault(CUDA)
        handle = stream(module, CUDA, Level.LAYER, options, everything(), engine)
        with pytest.raises(RaceError, match="may still be using"):
            outputs(module, CUDA)
        handle.close()


def test_a_copy_is_garbage_until_somebody_waits_for_it() -> None:
    with fake_gpu("cuda", 1) as card:
        host = card.pinned((4,), torch.float32).fill_(1.0)
        target = torch.zeros(4, device="cuda")
        side = card.new_stream(CUDA)
        side.wait_event(card.current_stream(CUDA).record_event())
        with card.in_stream(side):
            target.copy_(host, non_blocking=True)
            copied = side.record_event()
        assert host.is_pinned() and not torch.ones(1).is_pinned()
        with pytest.raises(RaceError):
            target.sum()
        card.current_stream(CUDA).wait_event(copied)
        assert target.sum().item() == 4.0


def test_operations_across_devices_raise_as_pytorch_says() -> None:
    with fake_gpu("cuda", 1):
        here, there = torch.ones(4, 4), torch.ones(4, 4, device="cuda")
        mixtures: tuple[Callable[[], Any], ...] = (
            lambda: there + here,
            lambda: nn.functional.linear(there, here),
            lambda: torch.cat([there, here]),
            lambda: torch.where(there > 0, here, there),
        )
        for mixed in mixtures:
            with pytest.raises(RuntimeError, match=r"same device|at once"):
                mixed()
        with pytest.raises(TypeError, match="to numpy"):
            there.numpy()
        with pytest.raises(RuntimeError, match="no such GPU"):
            torch.ones(1, device="xpu")
        assert (there + torch.tensor(1.0)).device == torch.device("cuda", 0)  # one number may come from the CPU
        assert there[torch.tensor([0, 1])].shape == (2, 4)  # and so may indices


def test_memory_has_a_limit_and_is_given_back() -> None:
    with fake_gpu("cuda", 0.5) as card:  # of which the driver takes 400 MB
        held = torch.zeros(64, 1 << 20, dtype=torch.uint8, device="cuda")
        with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
            torch.zeros(64, 1 << 20, dtype=torch.uint8, device="cuda")
        assert card.memory.allocated == 64 << 20
        del held
        assert card.memory.allocated == 0 and card.memory.reserved == 64 << 20
        card.empty_cache()
        assert card.memory.reserved == 0


def shares(card: FakeCard) -> tuple[int, int]:
    return card.memory.allocated, card.memory.tensors


@pytest.mark.parametrize("settings", [{}, {"stream_weights": "Layers"}, {"fp8_storage": "Enable"}])
def test_jobs_after_each_other_leave_the_same_behind(root: Path, settings: dict[str, Any]) -> None:
    with fake_gpu("cuda", 8) as card:
        engine = engine_of(root, "sd1")
        found = []
        for number in range(3):
            made(engine, "sd1", settings, seed=number, steps=1)
            found.append(shares(card))
        assert found[1] == found[2]
        leave(engine)
        assert shares(card) == (0, 0)
