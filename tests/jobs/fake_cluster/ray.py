"""A stand-in for Ray, found by processes that are started with this folder on their path.

It does what costs a program of Ray: while the head is away its calls hang, and when another head answers at the same
address it ends the process. Actors run in the process that has made them.
"""

import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

_lost = threading.Event()
_facts = {"address": "", "node": ""}


def init(address: str = "auto", **options: object) -> None:
    """Connect to a head."""
    if address == "auto":
        raise ConnectionError("no cluster runs on this machine")
    connection, number = _connected(address)
    _facts.update(address=address, node=number)
    threading.Thread(target=_follow, args=(connection,), daemon=True).start()


def _connected(address: str) -> tuple[socket.socket, str]:
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    number = connection.makefile().readline().strip()
    if not number:
        raise ConnectionError("the head is gone again")
    return connection, number


def _follow(connection: socket.socket) -> None:
    while connection.recv(1):
        pass
    _lost.set()
    while True:
        try:
            _, number = _connected(_facts["address"])
        except OSError:
            time.sleep(0.02)
            continue
        if number != _facts["node"]:
            os._exit(1)


def _answered() -> None:
    while _lost.is_set():
        time.sleep(0.1)


class _Context:
    def get_node_id(self) -> str:
        return _facts["node"]

    @property
    def gcs_address(self) -> str:
        return _facts["address"]


def get_runtime_context() -> _Context:
    return _Context()


def shutdown() -> None:
    """Nothing of it stays when the process ends."""


def nodes() -> list[dict[str, object]]:
    _answered()
    return [{"NodeID": _facts["node"], "Alive": True}]


def cluster_resources() -> dict[str, float]:
    _answered()
    return {"CPU": 2.0}


def remote(cls: Callable[..., Any]) -> Any:
    return _ActorClass(cls)


def get(reference: "_Reference") -> object:
    reference.done.wait()
    _answered()
    return reference.value


class _Reference:
    def __init__(self, work: Callable[[], object]) -> None:
        self.done = threading.Event()
        self.value: object = None

        def run() -> None:
            self.value = work()
            self.done.set()

        threading.Thread(target=run, daemon=True).start()


class _ActorClass:
    def __init__(self, cls: Callable[..., Any]) -> None:
        self.cls = cls

    def options(self, **_: object) -> "_ActorClass":
        return self

    def remote(self, *arguments: object) -> "_Actor":
        return _Actor(self.cls(*arguments))


class _Method:
    def __init__(self, method: Callable[..., object]) -> None:
        self.method = method

    def remote(self, *arguments: object) -> _Reference:
        return _Reference(lambda: self.method(*arguments))


class _Actor:
    _actor_id = b"\0\1\2\3"

    def __init__(self, actor: Any) -> None:
        self.put = _Method(actor.put)
        self.take = _Method(actor.take)
