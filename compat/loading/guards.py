"""Guards that keep an extension's faults its own: a time limit for loading, a limit of what it prints, and a look at
the classes of PyTorch that it may have patched."""

from __future__ import annotations

import contextvars
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from modules.errors import InvalidValueError
from modules.scripts.acting import acting_now
from modules.scripts.extension import Fault

LOADING_LIMIT_S = 30.0
PRINT_LIMIT_CHARACTERS = 1 << 20  # of one extension, at loading and in all its functions together
WATCHED = ("Module", "Linear", "Conv2d", "LayerNorm", "GroupNorm", "Embedding")
"""Classes of torch.nn that all models are made of."""


class TooLongError(InvalidValueError):
    """An extension's file was still being loaded after `LOADING_LIMIT_S`."""


def within(limit_s: float, call: Callable[[], Any]) -> Any:
    """Return what `call` gives, computed in a thread of its own. Raises what it raises (SystemExit too), and
    `TooLongError` where it is not done in time and imports nothing more; the thread goes on by itself then."""
    done: list[tuple[Any, BaseException | None]] = []

    def work() -> None:
        try:
            done.append((context.run(call), None))
        except BaseException as error:
            done.append((None, error))

    context = contextvars.copy_context()
    thread = threading.Thread(target=work, name="extension", daemon=True)
    thread.start()
    imported = -1
    while thread.is_alive() and len(sys.modules) != imported:  # large packages take their time on a slow disk
        imported = len(sys.modules)
        thread.join(limit_s)
    if not done:
        raise TooLongError(f"It was still being loaded after {limit_s:g} seconds, and was left out.")
    result, error = done[0]
    if error is not None:
        raise error
    return result


class LimitedStream:
    """Passes on what is written; of each extension only so much, then one sentence and nothing more."""

    def __init__(self, stream: TextIO, limit: int = PRINT_LIMIT_CHARACTERS) -> None:
        self.stream = stream
        self._limit = limit
        self._written: dict[int, int] = {}

    def write(self, text: str) -> int:
        """Write as a file does."""
        author = acting_now()
        if author is None or not author.is_foreign:
            return self.stream.write(text)
        before = self._written.get(id(author.owner), 0)
        self._written[id(author.owner)] = before + len(text)
        if before + len(text) <= self._limit:
            return self.stream.write(text)
        if before <= self._limit:
            notice = f"It printed more than {self._limit >> 20} MB; the rest is not shown."
            author.owner.faults.append(Fault("print", notice))
            self.stream.write(f"{text[: max(self._limit - before, 0)]}\n{author.owner.name}: {notice}\n")
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def limit_printing() -> None:
    """From now on what extensions print is limited; once is enough."""
    if not isinstance(sys.stdout, LimitedStream):
        sys.stdout = LimitedStream(sys.stdout)
    if not isinstance(sys.stderr, LimitedStream):
        sys.stderr = LimitedStream(sys.stderr)


@contextmanager
def unpatched_torch(report: Callable[[str], None]) -> Iterator[None]:
    """While open, code may patch classes of `WATCHED` as it likes: at the end they are as before, and `report` receives
    which attributes were replaced. Nothing where PyTorch is not loaded."""
    nn = sys.modules.get("torch.nn")
    classes = [getattr(nn, name) for name in WATCHED] if nn is not None else []
    before = [dict(vars(one)) for one in classes]
    try:
        yield
    finally:
        for one, attributes in zip(classes, before, strict=True):
            changed = [name for name, value in vars(one).items() if attributes.get(name, _NOTHING) is not value]
            for name in (*changed, *(name for name in attributes if name not in vars(one))):
                if name in attributes:
                    setattr(one, name, attributes[name])
                else:
                    delattr(one, name)
                report(f"torch.nn.{one.__name__}.{name}")


_NOTHING = object()
