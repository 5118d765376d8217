"""Workers on a Ray cluster: the same loop and protocol as in a process of this machine.

Ray places an actor and says when it is gone; what is to be done again is decided by the queue's own record, because
Ray's own state is lost with its head. Ray itself runs in processes of its own (`bridge`). Optional
(`requirements-farm.txt`). A cluster must be private: Ray lets whoever reaches its ports run code.
"""

from __future__ import annotations

import importlib.util
import logging
import multiprocessing
import secrets
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from lib_farm.bridge import LEAVE_S, LOCAL, Begun, Gone, Wanted, enter, is_open_port
from modules.errors import InvalidValueError
from modules.jobs.workers.executor import AwayError
from modules.jobs.workers.process import END_WAIT_S, Build, cause_of
from modules.jobs.workers.protocol import Command, Report

MISSING = (
    "--farm needs Ray, which is not installed. Install it into the program's environment, on every machine of the "
    "cluster in the same version: pip install -r requirements-farm.txt"
)


def check_installed() -> None:
    """Raise `InvalidValueError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise InvalidValueError(MISSING)


class Farm:
    """A cluster. `address`: "host:port" of its head, "auto" for the one that runs on this machine, "local" for one of
    this program's own, which a process holds from the first actor to the end."""

    def __init__(self, address: str, root: Path) -> None:
        self._address = address
        self._root = root
        self._lock = threading.Lock()
        self._own: FarmTransport | None = None
        self._token = secrets.token_hex(32) if address == LOCAL else ""

    def close(self) -> None:
        """End a cluster of this program's own."""
        with self._lock:
            if self._own is not None:
                self._own.leave()
                self._own = None

    def begin(self, build: Build, data_dir: Path) -> FarmTransport:
        """Start an actor. Raises `AwayError` while nobody listens at the address of the cluster's head."""
        head = self._own_head(data_dir) if self._address == LOCAL else self._address
        if ":" in head and not is_open_port(head):
            raise AwayError(f"the head of the cluster ({head}) cannot be reached; it is looked for until it is back")
        return FarmTransport(Wanted(head, self._root, data_dir, build, self._token, logging.getLogger().level))

    def _own_head(self, data_dir: Path) -> str:
        """Where the head of the program's own cluster listens; begun when there is none."""
        with self._lock:  # one after the other: all want the same one
            if self._own is None or not is_open_port(self._own.head):
                if self._own is not None:
                    self._own.end()
                self._own = FarmTransport(Wanted(LOCAL, self._root, data_dir, token=self._token))
                try:
                    self._own.wait_begun()
                except (EOFError, OSError) as error:
                    cause, self._own = self._own.cause(), None
                    raise OSError(cause) from error
            return self._own.head


class FarmTransport:
    """The server's end of a bridge to an actor. `head` is known when the actor is there."""

    def __init__(self, wanted: Wanted) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=enter, args=(theirs, wanted), name="featherweight-farm", daemon=True)
        self._process.start()
        theirs.close()
        self._sending = threading.Lock()
        self._cause = ""
        self.place = "Ray"
        self.head = ""

    def wait_begun(self) -> None:
        """Wait until the actor is there. Raises `EOFError` or `OSError` when it will not be; see `cause`."""
        while not self.head:
            self._take()

    def send(self, command: Command) -> None:
        with self._sending:
            self._connection.send(command)

    def receive(self) -> Report:
        while True:
            message = self._take()
            if message is not None:
                return message

    def _take(self) -> Report | None:
        """The next message; None for what is the bridge's own."""
        message: Report | Begun | Gone = self._connection.recv()
        match message:
            case Begun(place, head):
                self.place, self.head = place, head
                return None
            case Gone(cause):
                self._cause = cause
                raise EOFError(cause)
            case _:
                return message

    def leave(self) -> None:
        """Have it end by itself; a cluster that it holds ends first."""
        self._connection.close()
        self._process.join(LEAVE_S)
        self._process.kill()

    def end(self) -> None:
        """Its actor ends with it: Ray ends what a lost process has begun."""
        self._process.kill()
        self._process.join(END_WAIT_S)

    def cause(self) -> str:
        if self._cause:
            return self._cause
        self._process.join(END_WAIT_S)
        return f"is gone: its connection to the cluster {cause_of(self._process.exitcode)}"


def farm_workers(
    farm: Farm, count: int, build: Build, data_dir: Path
) -> Sequence[tuple[str, Callable[[], FarmTransport]]]:
    """`count` actors, by name, and how each is begun."""
    return [(f"farm-{index + 1}", lambda: farm.begin(build, data_dir)) for index in range(count)]
