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
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from modules.errors import InvalidValueError
from modules.jobs.workers.loop import WorkerLoop
from modules.jobs.workers.process import Build
from modules.jobs.workers.protocol import Command, Report

log = logging.getLogger(__name__)

TAKE_S = 1.0  # how long one call waits for a report
SEND_S = 60.0
LOCAL = "local"
MISSING = (
    "--farm needs Ray, which is not installed. Install it into the program's environment, on every machine of the "
    "cluster in the same version: pip install -r requirements-farm.txt"
)


def check_installed() -> None:
    """Raise `InvalidValueError` where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise InvalidValueError(MISSING)


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
    """One connection to a cluster, made when the first actor is begun. `address`: "host:port" of its head, "auto" for
    the one that runs on this machine, "local" for one of this program's own."""

    def __init__(self, address: str, root: Path) -> None:
        self._address = address
        self._root = root
        self._lock = threading.Lock()
        self._ray: Any = None

    def ray(self) -> Any:
        """The package, connected."""
        with self._lock:
            if self._ray is None:
                os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # it would report to its makers
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
                self._ray = ray
            return self._ray

    def close(self) -> None:
        """Leave the cluster; actors that are left end."""
        with self._lock:
            if self._ray is not None:
                self._ray.shutdown()
                self._ray = None

    def begin(self, build: Build, data_dir: Path) -> FarmTransport:
        """Start an actor: with a GPU of its own where the cluster has any, else with a core."""
        ray = self.ray()
        has_gpus = ray.cluster_resources().get("GPU", 0) >= 1
        resources = {"num_gpus": 1} if has_gpus else {"num_cpus": 1}
        # No restarts by Ray: what ran is known here, and a new actor is begun from here.
        actor = ray.remote(FarmActor).options(max_restarts=0, max_concurrency=8, **resources)
        return FarmTransport(ray, actor.remote(build, data_dir, logging.getLogger().level))


class FarmTransport:
    """The server's end of an actor."""

    def __init__(self, ray: Any, actor: Any) -> None:
        self._ray = ray
        self._actor = actor
        self._sending = threading.Lock()
        self._left: list[Report] = []
        self._cause = "is gone"
        self.place = f"Ray actor {actor._actor_id.hex()[:8]}"

    def send(self, command: Command) -> None:
        with self._sending:  # one after the other: an actor with several threads keeps no order
            try:
                self._ray.get(self._actor.put.remote(command), timeout=SEND_S)
            except self._ray.exceptions.RayError as error:
                raise OSError(str(error)) from error

    def receive(self) -> Report:
        while not self._left:
            try:
                self._left = list(self._ray.get(self._actor.take.remote()))
            except self._ray.exceptions.RayError as error:
                self._cause = f"is gone: its Ray actor was lost ({type(error).__name__})"
                raise EOFError(str(error)) from error
        return self._left.pop(0)

    def end(self) -> None:
        try:
            self._ray.kill(self._actor)
        except (self._ray.exceptions.RayError, ValueError, RuntimeError) as error:
            log.debug("%s was not ended: %s", self.place, error)

    def cause(self) -> str:
        return self._cause


def farm_workers(
    farm: Farm, count: int, build: Build, data_dir: Path
) -> Sequence[tuple[str, Callable[[], FarmTransport]]]:
    """`count` actors, by name, and how each is begun."""
    return [(f"farm-{index + 1}", lambda: farm.begin(build, data_dir)) for index in range(count)]
