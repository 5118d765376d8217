"""When memory runs out in the middle of a call: free what can be freed, have the work take less, call again.

What is called must not have changed anything before it fails, so that the same call with the same arguments gives the
same result. Fallbacks that were applied stay until `close`, so that later calls do not fail first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TypeVar

import torch

from modules.errors import MemoryShortageError
from modules.system.devices import collect_garbage

log = logging.getLogger(__name__)

T = TypeVar("T")
FREED = "freed"
_SIGNS = (
    "out of memory",  # CUDA, HIP, MPS, XPU
    "can't allocate memory",  # the CPU's allocator
    "not enough memory",  # the same on Windows
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)


@dataclass(frozen=True)
class Step:
    """One thing that was done: `text` goes on after "from here on", `undo` takes it back."""

    text: str
    undo: Callable[[], None]


@dataclass(frozen=True)
class Fallback:
    """A way to need less memory in some stages.

    `apply` puts it into effect, one size further each time, and returns None where it can do no more.
    """

    name: str  # short, for the record: "query slices"
    stages: frozenset[str]
    apply: Callable[[], Step | None]


@dataclass(frozen=True)
class Taken:
    """A fallback that was applied; `text` for people."""

    stage: str
    fallback: str
    text: str


class Recovery:
    """Runs calls, and runs them again with less memory. Close it (or leave its `with`) to take all steps back.

    `before` receives the stage of each call before it runs. `free` gives unused memory back to the device and the
    system; it runs before each further attempt. `advice` ends the message when nothing helped.
    """

    def __init__(
        self,
        fallbacks: Sequence[Fallback] = (),
        free: Callable[[], object] = collect_garbage,
        before: Callable[[str], None] = lambda stage: None,
        advice: str = "",
    ) -> None:
        self._fallbacks = tuple(fallbacks)
        self._free = free
        self._before = before
        self._advice = advice
        self._steps: list[Step] = []
        self._taken: list[Taken] = []

    @property
    def taken(self) -> tuple[Taken, ...]:
        """Return the fallbacks so far, in order; freeing alone is in it as "freed"."""
        return tuple(self._taken)

    def run(self, stage: str, call: Callable[[], T], is_model: bool = True) -> T:
        """The result of `call`, after as many further attempts as it takes.

        First the same again with freed memory, then one fallback after the other. Raises `MemoryShortageError` when no
        fallback is left, and every other error at once. With `is_model` off, for what is computed next to the model,
        `before` is only told of further attempts.
        """
        attempts = 0
        while True:
            try:
                if is_model or attempts:
                    self._before(stage)
                return call()
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                message = str(error).strip().split("\n")[0][:300]
            # Outside of the handler: the error's traceback no longer holds the tensors of the failed attempt.
            attempts += 1
            self._need_less(stage, message, is_first=attempts == 1)

    def apply(self, name: str) -> bool:
        """Put a fallback into effect before memory runs out, one size further each time; False where it can do no
        more, or there is none of this name. It is taken back with the others, and is not in `taken`."""
        for fallback in self._fallbacks:
            step = self._apply(fallback) if fallback.name == name else None
            if step is not None:
                self._steps.append(step)
                return True
        return False

    def close(self) -> None:
        """Take all steps back, the last first. What was done stays in `taken`."""
        while self._steps:
            self._steps.pop().undo()

    def __enter__(self) -> Recovery:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _need_less(self, stage: str, message: str, is_first: bool) -> None:
        if is_first:
            self._free()
            self._note(stage, FREED, "with freed memory", message)
            return
        for fallback in self._fallbacks:
            step = self._apply(fallback) if stage in fallback.stages else None
            if step is not None:
                self._steps.append(step)
                self._free()
                self._note(stage, fallback.name, step.text, message)
                return
        tried = ", ".join(dict.fromkeys(item.text for item in self._taken if item.stage == stage))
        raise MemoryShortageError(f"Memory ran out ({stage}: {message}), also {tried}. {self._advice}".strip())

    def _apply(self, fallback: Fallback) -> Step | None:
        """A fallback that itself runs out of memory (it moves something) is no help."""
        try:
            return fallback.apply()
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            log.warning("Out of memory while trying %s: %s", fallback.name, error)
            return None

    def _note(self, stage: str, name: str, text: str, message: str) -> None:
        log.warning("Out of memory (%s: %s). Trying again %s.", stage, message, text)
        self._taken.append(Taken(stage, name, text))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory, on whatever device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and any(sign.lower() in text.lower() for sign in _SIGNS)
