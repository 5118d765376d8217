"""The process between the server and a worker on a Ray cluster: the only one that Ray is imported in.

Ray ends the process that it runs in when another head answers at the address of the one that was lost, and keeps state
of a lost cluster that a new connection trips over. Neither may happen to the server, so that each worker has a process
of its own here: it connects, starts one actor, carries messages both ways, and ends with the actor, with the cluster
or with the server. The next try is a new process.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from modules.errors import first_line
from modules.jobs.workers.loop import WorkerLoop
from modules.jobs.workers.process import Build
from modules.jobs.workers.protocol import Command, Report
from modules.system.threads import start_loop

log = logging.getLogger(__name__)

LOCAL = "local"
OWN_FOLDER = Path("extensions-builtin", "farm")  # of the program's, where actors find this package
TAKE_S = 1.0  # how long one call of an actor waits for a report
WATCH_S = 1.0  # how often it is looked whether the head's port is open
CONNECT_S = 2.0
CHECK_S = 10.0  # how often the cluster is asked whether it is still the same
ANSWER_S = 60.0  # how long it may take for an answer
LEAVE_S = 15.0  # how long ending a cluster of its own may take
BEGIN_S = 180.0  # how long connecting and placing an actor may take


@dataclass(frozen=True)
class Wanted:
    """Order to the process. `address`: "host:port" of a head, "auto" for the one that runs on this machine,
    "local" for a cluster of its own. `build` None: no actor is started, the cluster is held until the server ends.
    `token` is what the program's own cluster asks of who connects; "": as Ray's own environment says."""

    address: str
    root: Path
    data_dir: Path
    build: Build | None = None
    token: str = ""
    log_level: int = logging.WARNING


@dataclass(frozen=True)
class Begun:
    """The actor is there. `head`: where the cluster's head listens, "host:port"."""

    place: str
    head: str


@dataclass(frozen=True)
class Gone:
    """The last message, and why, to follow "The worker"."""

    cause: str


def is_open_port(address: str) -> bool:
    """Whether somebody listens at "host:port"."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError):
        return False
    return True


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
        """Return what was reported since the last call; waits a moment for the first."""
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


def enter(connection: Connection, wanted: Wanted) -> None:
    """The process's main thread."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the server's
    logging.basicConfig(level=wanted.log_level, format="%(asctime)s %(levelname)s %(message)s", force=True)
    _Bridge(connection, wanted).run()


class _Bridge:
    def __init__(self, connection: Connection, wanted: Wanted) -> None:
        self._connection = connection
        self._wanted = wanted
        self._telling = threading.Lock()
        self._head = ""
        self._ray: Any = None
        self._node = ""  # of this machine in the cluster
        self._actor: Any = None

    def run(self) -> NoReturn:
        limit = threading.Timer(BEGIN_S, self._end, [f"could not be started: no answer within {BEGIN_S:g} s"])
        limit.daemon = True
        limit.start()
        try:
            self._connect()
            if self._wanted.build is not None:
                self._start_actor(self._wanted.build)
        except Exception as error:  # Ray has plain ones too
            log.debug("the cluster was not reached", exc_info=True)
            self._end(
                f"could not be started: the cluster ({self._wanted.address}) gave no worker ({first_line(error)}); "
                "it is asked again until it does"
            )
        limit.cancel()
        place = f"Ray actor {self._actor._actor_id.hex()[:8]}" if self._actor is not None else "Ray"
        self._tell(Begun(place, self._head))
        start_loop("featherweight-farm-watch", self._watch)
        if self._actor is None:
            self._until_server_ends()
        threading.Thread(target=self._carry_commands, name="featherweight-farm-commands", daemon=True).start()
        self._carry_reports()

    def _connect(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would report to its makers
        os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # it would begin a cluster of its own when it has lost one
        if self._wanted.token:  # else Ray would write one into the user's home, and two clusters would share it
            os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN=self._wanted.token)
        elif _has_token():  # `ray start` asks for it then, and Ray sends none to an address that it is given
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        ray = importlib.import_module("ray")
        places = os.pathsep.join((str(self._wanted.root), str(self._wanted.root / OWN_FOLDER)))
        options: dict[str, Any] = {
            "logging_level": "ERROR",
            "log_to_driver": False,
            "runtime_env": {"env_vars": {"PYTHONPATH": places, "RAY_USAGE_STATS_ENABLED": "0"}},
        }
        if self._wanted.address == LOCAL:
            options |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
        else:
            options |= {"address": self._wanted.address}
        ray.init(**options)
        context = ray.get_runtime_context()
        self._ray, self._node, self._head = ray, str(context.get_node_id()), str(context.gcs_address)

    def _start_actor(self, build: Build) -> None:
        """One with a GPU of its own where the cluster has any, else with a core."""
        has_gpus = self._ray.cluster_resources().get("GPU", 0) >= 1
        resources = {"num_gpus": 1} if has_gpus else {"num_cpus": 1}
        # No restarts by Ray: what ran is known to the server, which begins a new actor.
        made = self._ray.remote(FarmActor).options(max_restarts=0, max_concurrency=8, **resources)
        self._actor = made.remote(build, self._wanted.data_dir, self._wanted.log_level)

    def _carry_commands(self) -> None:
        try:
            while True:
                command: Command = self._connection.recv()
                self._ray.get(self._actor.put.remote(command))  # one after the other: an actor keeps no order
        except (EOFError, OSError):
            self._leave()  # the server has ended
        except Exception as error:
            self._lose(error)

    def _carry_reports(self) -> NoReturn:
        try:
            while True:
                for report in self._ray.get(self._actor.take.remote()):
                    self._tell(report)
        except Exception as error:
            self._lose(error)

    def _lose(self, error: Exception) -> NoReturn:
        log.debug("the actor was lost", exc_info=error)
        if not is_open_port(self._head):
            self._end(self._lost_head())
        self._end(f"is gone: its Ray actor was lost ({type(error).__name__})")

    def _lost_head(self) -> str:
        return f"is gone: the head of the cluster ({self._head}) was lost; it is looked for until it is back"

    def _watch(self) -> NoReturn:
        """End as soon as the head is gone, before anything of Ray meets another one at its address."""
        asking = ThreadPoolExecutor(1)
        asked_at = time.monotonic()
        answer: Future[bool] | None = None
        while True:
            time.sleep(WATCH_S)
            if not is_open_port(self._head):
                self._end(self._lost_head())
            waited_s = time.monotonic() - asked_at
            if answer is None and waited_s > CHECK_S:
                answer, asked_at = asking.submit(self._is_same_cluster), time.monotonic()
            elif answer is not None and answer.done():
                if answer.exception() is not None or not answer.result():
                    self._end(f"is gone: the cluster ({self._head}) was started again")
                answer = None
            elif answer is not None and waited_s > ANSWER_S:
                self._end(f"is gone: the cluster ({self._head}) does not answer; it is asked until it does")

    def _is_same_cluster(self) -> bool:
        return any(node.get("NodeID") == self._node and node.get("Alive") for node in self._ray.nodes())

    def _until_server_ends(self) -> NoReturn:
        try:
            self._connection.recv()
        except (EOFError, OSError):
            log.debug("the server has ended")
        self._leave()

    def _tell(self, message: Report | Begun | Gone) -> None:
        with self._telling:
            self._connection.send(message)

    def _end(self, cause: str) -> NoReturn:
        """Say why, and end; what Ray would do first is of no use any more."""
        try:
            self._tell(Gone(cause))
        except OSError as error:
            log.debug("nobody heard that this worker %s (%s)", cause, error)
        os._exit(0)

    def _leave(self) -> NoReturn:
        """End with the server: the actor, and a cluster of its own, end too."""
        leaving = threading.Thread(target=self._ray.shutdown, daemon=True)
        leaving.start()
        leaving.join(LEAVE_S)
        os._exit(0)


def _has_token() -> bool:
    """Whether this user has a token of Ray's, where Ray looks for it."""
    places = (os.environ.get("RAY_AUTH_TOKEN_PATH"), Path.home() / ".ray" / "auth_token")
    return bool(os.environ.get("RAY_AUTH_TOKEN")) or any(place and Path(place).is_file() for place in places)
