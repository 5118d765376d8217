"""Workers as actors on a Ray cluster: the same loop and protocol as in a process of this machine.

Ray places an actor and says when it is gone; what is to be done again is decided by the queue's own record, because
Ray's own state is lost with its head. Optional (`requirements-farm.txt`). A cluster must be private: Ray lets whoever
reaches its ports run code.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

from modules.errors import InvalidValueError
from modules.jobs.workers.loop import WorkerLoop
from modules.jobs.workers.process import Build
from modules.jobs.workers.protocol import Command, Report

log = logging.getLogger(__name__)
T = TypeVar("T")

TAKE_S = 1.0  # how long one call waits for a report
SEND_S = 60.0
CALL_S = 30.0  # how long the head of the cluster may take for an answer
WATCH_S = 1.0  # how often it is looked whether the head's port is open
CONNECT_S = 2.0
CHECK_S = 10.0  # without a report for so long, it is asked whether the cluster is still there
LOCAL = "local"
MISSING = (
    "--farm needs Ray, which is not installed. Install it into the program's environment, on every machine of the "
    "cluster in the same version: pip install -r requirements-farm.txt"
)


def check_installed() -> None:
    """Raise `InvalidValueError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise InvalidValueError(MISSING)


class ClusterLostError(OSError):
    """The cluster does not answer, or is another one than that which actors were begun in."""


class FarmActor:
    """In the actor's process: a worker loop in a thread, and its messages for those who call."""

    def __init__(self, build: Build, data_dir: Path, log_level: int) -> None:
        logging.basicConfig(level=log_level, format="%(asctime)s %(levelname)s %(message)s")
        self._commands: queue.SimpleQueue[Command] = queue.SimpleQueue()
        self._reports: queue.SimpleQueue[Report] = queue.SimpleQueue()
        loop = WorkerLoop(self, build, data_dir, os._exit)
        threading.Thread(target=self._run, args=(loop,), name="featherweight-job", daemon=True).start()

    def _run(self, loop: WorkerLoop) -> None:
        try:
            loop.run()
        except BaseException:
            log.exception("the worker could not go on")
            os._exit(1)
        os._exit(0)

    def put(self, command: Command) -> None:
        """From the server."""
        self._commands.put(command)

    def take(self) -> list[Report]:
        """What was reported since the last call; waits a moment for the first."""
        try:
            found = [self._reports.get(timeout=TAKE_S)]
        except queue.Empty:
            return []
        while not self._reports.empty():
            found.append(self._reports.get())
        return found

    # -- `Channel`, for the loop ---------------------------------------------------------------------------------------

    def send(self, report: Report) -> None:
        self._reports.put(report)

    def receive(self) -> Command:
        return self._commands.get()


class Farm:
    """One connection to a cluster, made when the first actor is begun, and made anew when the cluster was lost.
    `address`: "host:port" of its head, "auto" for the one that runs on this machine, "local" for one of this program's
    own."""

    def __init__(
        self,
        address: str,
        root: Path,
        call_s: float = CALL_S,
        is_open: Callable[[str], bool] | None = None,
        watch_s: float = WATCH_S,
    ) -> None:
        """`is_open` says whether somebody listens at "host:port"."""
        self._address = address
        self._root = root
        self._call_s = call_s
        self._is_open = is_open or is_open_port
        self._watch_s = watch_s
        self._head = self._known_head()
        self._lock = threading.Lock()
        self._ray: Any = None
        self._node = ""  # of this machine in the cluster
        self._connection = 0  # counts them

    def close(self) -> None:
        """Leave the cluster; actors that are left end."""
        with self._lock:
            self._leave()

    def begin(self, build: Build, data_dir: Path) -> FarmTransport:
        """Start an actor. Raises `ClusterLostError` while the cluster does not answer; the next call connects anew."""
        with self._lock:  # one after the other: all would wait for the same head
            self._look()
            if self._ray is None:
                self._ray, self._node, self._head = self._asked(self._connected)
                self._connection += 1
                watch = threading.Thread(
                    target=self._watch, args=(self._connection,), name="featherweight-farm-watch", daemon=True
                )
                watch.start()
            ray = self._ray
            actor = self._asked(lambda: _actor(ray, build, data_dir))
            return FarmTransport(self, ray, actor, self._connection)

    def check(self, connection: int) -> None:
        """Raise `ClusterLostError` where the cluster of this connection is gone, also where a new one has taken its
        place."""
        with self._lock:
            if self._ray is None or self._connection != connection:
                raise ClusterLostError(f"the cluster at {self._address} was lost")
            self._look()
            nodes = self._asked(self._ray.nodes)
            if not any(node.get("NodeID") == self._node and node.get("Alive") for node in nodes):
                self._leave()
                raise ClusterLostError(f"the cluster at {self._address} was begun anew")

    def _known_head(self) -> str:
        """Where the head listens ("host:port"), as far as the address says it."""
        return self._address if ":" in self._address else ""

    def loss(self, connection: int) -> str:
        """Why the cluster of this connection is gone, to follow "The worker"; "" where it is there."""
        with self._lock:
            if self._ray is not None and self._connection == connection:
                return ""
        return f"is gone: the head of the cluster ({self._address}) was lost; it is looked for until it is back"

    def _look(self) -> None:
        """Raise `ClusterLostError` where nobody listens at the head's port. Ray itself is not asked: it would go on
        asking, and end this process when another head answers at the same address (WrongClusterID)."""
        if self._head and not self._is_open(self._head):
            self._leave()
            raise ClusterLostError(
                f"the head of the cluster ({self._address}) cannot be reached; it is looked for until it is back"
            )

    def _watch(self, connection: int) -> None:
        """Leave the cluster as soon as its head is gone, so that nothing of Ray waits for another one."""
        while True:
            time.sleep(self._watch_s)
            if self._connection != connection or self._ray is None:
                return
            if not self._is_open(self._head):
                with self._lock:
                    if self._connection == connection:
                        self._leave()
                return

    def _connected(self) -> tuple[Any, str, str]:
        """The package, the name of this machine in the cluster, and where the cluster's head listens."""
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would report to its makers
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # it would begin a cluster of its own when it has lost one
        # It would end the process when the head stays away; that is the server, which goes on without it.
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(10**6))
        ray = importlib.import_module("ray")
        options: dict[str, Any] = {
            "logging_level": "ERROR",
            "log_to_driver": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": str(self._root), "RAY_USAGE_STATS_ENABLED": "0"}},
        }
        if self._address == LOCAL:
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        else:
            options |= {"address": self._address}
        ray.init(**options)
        context = ray.get_runtime_context()
        return ray, str(context.get_node_id()), str(context.gcs_address)

    def _asked(self, work: Callable[[], T]) -> T:
        """What a call of Ray gives, which may wait for ever while the head is gone."""
        replies: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

        def call() -> None:
            try:
                replies.put((work(), None))
            except BaseException as error:
                replies.put((None, error))

        threading.Thread(target=call, name="featherweight-farm", daemon=True).start()
        try:
            reply, error = replies.get(timeout=self._call_s)
        except queue.Empty:
            reply, error = None, TimeoutError(f"no answer within {self._call_s:g} s")
        if error is not None:
            self._leave()
            raise ClusterLostError(
                f"the head of the cluster ({self._address}) cannot be reached ({error}); it is asked until it is back"
            ) from error
        return cast(T, reply)

    def _leave(self) -> None:
        """Forget the connection: the next call makes a new one."""
        ray, self._ray = self._ray, None
        self._head = self._known_head()
        if ray is not None:
            leaving = threading.Thread(target=ray.shutdown, name="featherweight-farm", daemon=True)
            leaving.start()
            leaving.join(self._call_s)


def is_open_port(address: str) -> bool:
    """Whether somebody listens at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


def _actor(ray: Any, build: Build, data_dir: Path) -> Any:
    """One with a GPU of its own where the cluster has any, else with a core."""
    has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
    resources = {"num_gpus": 1} if has_gpus else {"num_cpus": 1}
    # No restarts by Ray: what ran is known here, and a new actor is begun from here.
    actor = ray.remote(FarmActor).options(max_restarts=0, max_concurrency=8, **resources)
    return actor.remote(build, data_dir, logging.getLogger().level)


class FarmTransport:
    """The server's end of an actor."""

    def __init__(self, farm: Farm, ray: Any, actor: Any, connection: int) -> None:
        self._farm = farm
        self._connection = connection
        self._ray = ray
        self._actor = actor
        self._sending = threading.Lock()
        self._left: list[Report] = []
        self._cause = "is gone"
        self._is_gone = False
        self.place = f"Ray actor {actor._actor_id.hex()[:8]}"

    def send(self, command: Command) -> None:
        with self._sending:  # one after the other: an actor with several threads keeps no order
            try:
                sent, until = self._actor.put.remote(command), time.monotonic() + SEND_S
                while not self._ray.wait([sent], timeout=TAKE_S)[0]:
                    if self._is_gone or time.monotonic() > until:
                        raise OSError(self._cause)
                self._ray.get(sent)
            except Exception as error:  # Ray has plain ones too, for actors of a cluster that it has left
                raise OSError(str(error)) from error

    def receive(self) -> Report:
        while not self._left:
            try:
                taken = self._actor.take.remote()
                while not self._ray.wait([taken], timeout=CHECK_S)[0]:  # it has no place yet, or the head is gone
                    self._farm.check(self._connection)
                self._left = list(self._ray.get(taken))
            except ClusterLostError as error:
                self._cause, self._is_gone = f"is gone: {error}", True
                raise
            except Exception as error:  # Ray has plain ones too, for actors of a cluster that it has left
                self._is_gone = True
                self._cause = self._farm.loss(self._connection) or (
                    f"is gone: its Ray actor was lost ({type(error).__name__})"
                )
                raise EOFError(str(error)) from error
        return self._left.pop(0)

    def end(self) -> None:
        try:
            self._ray.kill(self._actor)
        except Exception as error:  # it is gone with its cluster
            log.debug("%s was not ended: %s", self.place, error)

    def cause(self) -> str:
        return self._cause


def farm_workers(
    farm: Farm, count: int, build: Build, data_dir: Path
) -> Sequence[tuple[str, Callable[[], FarmTransport]]]:
    """`count` actors, by name, and how each is begun."""
    return [(f"farm-{index + 1}", lambda: farm.begin(build, data_dir)) for index in range(count)]
