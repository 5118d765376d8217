"""Guards that keep an extension's faults its own: a time limit for loading, a limit of what it prints, and a look at
the classes of PyTorch that it may have patched."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from functools import cache, partial
from pathlib import Path
from typing import Any, TextIO, TypeVar

from modules.errors import InvalidValueError
from modules.scripts.acting import acting_now
from modules.scripts.extension import MAX_FAULTS, Fault

T = TypeVar("T")
LOADING_LIMIT_S = 30.0
WAITING = 4  # times the limit, of code that waits: for a server, for a lock
PATIENCE = 20  # times the limit, whatever the code does
IDLE = 0.005  # of the limit: code that computes less than this waits
BUSY = 0.05  # of the limit, of all threads together
STEPS = 30  # looks in the time of the limit
PRINT_LIMIT_CHARACTERS = 1 << 20  # of one extension, at loading and in all its functions together
WATCHED = ("Module", "Linear", "Conv2d", "LayerNorm", "GroupNorm", "Embedding")
"""Classes of torch.nn that all models are made of."""


class TooLongError(InvalidValueError):
    """Code of an extension that took longer than `within` lets it."""


class _EndedError(BaseException):
    """Raised inside of code that took too long."""


_LIMITED: ContextVar[bool] = ContextVar("limited", default=False)
"""Whether the code that runs was called by `within`."""


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Return what `call` gives, computed in a thread of its own. Raises what it raises (SystemExit too), and
    `TooLongError` where it computes for `limit_s` and imports nothing in that time, where it does neither for `WAITING`
    times that, and after `PATIENCE` times that whatever it does. It is ended then, as far as Python can end a thread.
    The limit is one of CPU time, so that a machine that is busy with other things costs no extension its place."""
    if _LIMITED.get():
        return call()
    done: list[tuple[Any, BaseException | None]] = []
    clocks: list[Callable[[], float]] = []
    has_loop = _has_running_loop()

    async def called() -> T:
        return call()

    def work() -> None:
        _LIMITED.set(True)
        try:
            # In a loop where the caller is in one: where none runs, Gradio makes loops and leaves them open.
            done.append((asyncio.run(called()) if has_loop else call(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=copy_context().run, args=(_timed, clocks, work), name="extension", daemon=True)
    thread.start()
    thread.join(limit_s / STEPS)
    if thread.is_alive() and not _ends(thread, clocks, limit_s):
        raise TooLongError(
            f"It was not done after {limit_s:g} s of computing or {WAITING * limit_s:g} s of waiting, and was left out."
        )
    result, error = done[0]
    if error is not None:
        raise error
    found: T = result
    return found


def _has_running_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _timed(clocks: list[Callable[[], float]], work: Callable[[], None]) -> None:
    """Run `work`, and say before how the CPU time of this thread is read: that of the process where it cannot be."""
    clock = time.process_time
    if hasattr(time, "pthread_getcpuclockid"):
        clock = partial(time.clock_gettime, time.pthread_getcpuclockid(threading.get_ident()))
    clocks.append(clock)
    work()


def _ends(thread: threading.Thread, clocks: Sequence[Callable[[], float]], limit_s: float) -> bool:
    """Wait for a thread until it has had its time; then end it. Return whether it ended by itself."""
    began = seen = time.monotonic()
    allowed_s, used_s, imported, others_s = limit_s, 0.0, len(sys.modules), time.process_time()
    while thread.is_alive() and time.monotonic() < began + PATIENCE * limit_s:
        try:
            now_s = clocks[0]() if clocks else 0.0
        except OSError:  # the thread has ended
            break
        if now_s > used_s + IDLE * limit_s:
            seen, used_s = time.monotonic(), now_s
        if time.process_time() > others_s + BUSY * limit_s:  # it may wait for what another thread computes
            seen, others_s = time.monotonic(), time.process_time()
        if len(sys.modules) != imported:  # large packages take their time on a slow disk
            seen, imported, allowed_s = time.monotonic(), len(sys.modules), now_s + limit_s
        if now_s > allowed_s or time.monotonic() > seen + WAITING * limit_s:
            break
        thread.join(limit_s / STEPS)
    else:
        return not thread.is_alive()
    if thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_EndedError))
        thread.join(limit_s / STEPS)
    return False


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


STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn")
PROGRAM = str(Path(__file__).resolve().parents[2] / "modules")


@cache
def watch_acts() -> None:
    """From now on notices of an extension name what it does outside of the program: starting a process, opening a port,
    writing to the program's own files; once is enough."""
    sys.addaudithook(_note_act)


def _note_act(event: str, args: tuple[Any, ...]) -> None:
    if event not in STARTS and event not in ("socket.bind", "open"):
        return
    if event == "open" and not (isinstance(args[0], str) and args[0].startswith(PROGRAM) and _writes(args[2])):
        return
    author = acting_now()
    if author is None or not author.is_foreign:
        return
    if event == "open":
        notice = f"It writes to the program's own file {Path(args[0]).name}."
    elif event == "socket.bind":
        notice = f"It opens the port {args[1][1] if isinstance(args[1], tuple) and len(args[1]) > 1 else args[1]}."
    else:
        first = args[1][0] if event == "subprocess.Popen" and args[1] and not isinstance(args[1], str) else args[0]
        notice = f"It starts a process: {Path(str(first)).name}."
    if notice not in author.owner.notices and len(author.owner.notices) < MAX_FAULTS:
        author.owner.notices.append(notice)


def _writes(flags: Any) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


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
