"""Calls that run out of memory are made again with less."""

import weakref
from collections.abc import Callable

import pytest
import torch

from modules.errors import MemoryShortageError
from modules.memory.recovery import FREED, Fallback, Recovery, Step, is_out_of_memory

ERRORS: tuple[Exception, ...] = (
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("MPS backend out of memory (MPS allocated: 17.90 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
)


class Work:
    """Needs 8; each call of `less` halves that. Fits when it is at most `room`."""

    def __init__(self, room: int) -> None:
        self.room, self.need = room, 8
        self.log: list[str] = []

    def __call__(self) -> str:
        self.log.append(f"call {self.need}")
        if self.need > self.room:
            raise torch.OutOfMemoryError("out of memory")
        return "done"

    def fallback(self, name: str, times: int, stages: tuple[str, ...] = ("a",)) -> Fallback:
        left = times

        def apply() -> Step | None:
            nonlocal left
            if not left:
                return None
            left -= 1
            old, self.need = self.need, self.need // 2

            def undo() -> None:
                self.log.append(f"undo {name}")
                self.need = old

            return Step(f"with {name}", undo)

        return Fallback(name, frozenset(stages), apply)

    def free(self) -> None:
        self.log.append("free")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_what_counts_as_out_of_memory(error: Exception) -> None:
    assert is_out_of_memory(error)
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_free_then_fallback_after_fallback_each_as_often_as_it_helps() -> None:
    work = Work(room=1)
    with Recovery([work.fallback("x", 2), work.fallback("y", 1)], work.free) as recovery:
        assert recovery.run("a", work) == "done"
        assert [(item.fallback, item.text) for item in recovery.taken] == [
            (FREED, "with freed memory"),
            ("x", "with x"),
            ("x", "with x"),
            ("y", "with y"),
        ]
        assert recovery.run("a", work) == "done"  # what was climbed stays: no further failure
        assert len(recovery.taken) == 4
    assert work.log == [
        *("call 8", "free", "call 8", "free", "call 4", "free", "call 2", "free", "call 1"),
        *("call 1", "undo y", "undo x", "undo x"),
    ]
    assert work.need == 8


def test_a_call_that_fits_is_called_once_and_nothing_is_freed() -> None:
    work, stages = Work(room=8), list[str]()
    recovery = Recovery([work.fallback("x", 1)], work.free, before=stages.append)
    assert recovery.run("a", work) == "done"
    assert (work.log, recovery.taken, stages) == (["call 8"], (), ["a"])


def test_fallbacks_of_other_stages_are_left_alone_and_the_error_says_what_was_tried() -> None:
    work = Work(room=1)
    recovery = Recovery([work.fallback("x", 1), work.fallback("y", 9, ("b",))], work.free, advice="Take less.")
    expected = r"Memory ran out \(a: out of memory\), also with freed memory, with x. Take less."
    with pytest.raises(MemoryShortageError, match=expected):
        recovery.run("a", work)
    recovery.close()
    assert work.need == 8


def test_a_fallback_that_runs_out_of_memory_itself_is_passed_over() -> None:
    def apply() -> Step | None:
        raise torch.OutOfMemoryError("no room to move")

    work = Work(room=4)
    recovery = Recovery([Fallback("bad", frozenset({"a"}), apply), work.fallback("x", 1)], work.free)
    assert recovery.run("a", work) == "done"
    assert [item.fallback for item in recovery.taken] == [FREED, "x"]


def test_other_errors_pass_at_once() -> None:
    calls = []

    def broken() -> None:
        calls.append(1)
        raise RuntimeError("shapes")

    with pytest.raises(RuntimeError, match="shapes"):
        Recovery().run("a", broken)
    assert calls == [1]


def test_what_the_failed_attempt_held_is_free_before_the_next() -> None:
    held: list[weakref.ref[torch.Tensor]] = []

    def call() -> bool:
        if held:
            return held[0]() is None
        large = torch.ones(8)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("out of memory")

    assert Recovery(free=lambda: None).run("a", call)


def test_recovery_works_for_any_call() -> None:
    """The ladder works for whatever is called."""
    attempts = iter([MemoryError(), None])

    def call() -> int:
        error = next(attempts)
        if error is not None:
            raise error
        return 3

    run: Callable[[str, Callable[[], int]], int] = Recovery().run
    assert run("anything", call) == 3
