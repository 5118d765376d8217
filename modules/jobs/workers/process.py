"""A worker in a process of its own on this machine, and how cores and GPUs are shared among several."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

from modules.jobs.workers.loop import DEVICE_FAILED, Asking, Host, WorkerLoop
from modules.jobs.workers.protocol import Command, Report
from modules.system.cores import cgroup_cores, core_groups, divide, in_words, threads_asked, usable_cores

log = logging.getLogger(__name__)

END_WAIT_S = 5.0


@dataclass(frozen=True)
class Share:
    """Share that one of several workers may use. `environment` is set before anything is imported; `threads` None: as
    PyTorch chooses. `cores`: the logical cores that it runs on, no other worker of this server among them; empty:
    any."""

    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None
    cores: frozenset[int] = frozenset()


@dataclass(frozen=True)
class CpuOfMachine:
    """`groups`: the logical cores of each physical one that may be used. `limit`: how many may compute at once, by a
    container's quota and OMP_NUM_THREADS."""

    groups: tuple[tuple[int, ...], ...]
    limit: int


def share_of(
    index: int, count: int, gpus: int, cpu: CpuOfMachine, environment: Mapping[str, str] = os.environ
) -> Share:
    """The part of this machine that worker `index` (from 0) of `count` gets: a GPU for each, by turns where there are
    fewer GPUs than workers; without a GPU the physical cores are split, so that the workers do not wait for each
    other's. One worker alone gets everything."""
    if count == 1:
        return Share()
    if gpus == 0:
        own = divide(cpu.groups, count)[index]
        threads = max(1, min(len(own), cpu.limit // count))
        words = {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        return Share(words, threads, frozenset(number for group in own for number in group))
    visible = [name for name in environment.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    names = visible or [str(number) for number in range(gpus)]
    return Share({"CUDA_VISIBLE_DEVICES": names[index % len(names)]})


def cpu_of_machine() -> CpuOfMachine:
    """Return what this process may use."""
    usable, quota = usable_cores(), cgroup_cores()
    groups = core_groups(usable)
    limit = len(groups) if quota is None else max(1, min(len(groups), round(quota)))
    wanted, _ = threads_asked(os.environ, len(usable))
    return CpuOfMachine(groups, limit if wanted is None else min(limit, wanted))


def bind(share: Share) -> None:
    """Keep this process and the threads that it starts on its own cores; where the system refuses, the log says so."""
    if not share.cores or not hasattr(os, "sched_setaffinity"):
        return
    try:
        os.sched_setaffinity(0, share.cores)
        log.info("computes on cores %s with %s threads", in_words(share.cores), share.threads)
    except OSError as error:  # the container was given other cores meanwhile
        log.warning("could not be bound to cores %s (%s): it computes on any", in_words(share.cores), error)


Build = Callable[[Path, Asking], Host]
"""Makes what computes; called in the worker. A function of a module, or a `functools.partial` of one."""


class ProcessTransport:
    """Starts a process, by spawning and not by forking: threads and GPUs do not survive a fork."""

    def __init__(self, name: str, build: Build, data_dir: Path, share: Share | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._sending = threading.Lock()
        self._process = context.Process(
            target=_enter,
            args=(theirs, build, data_dir, share or Share(), logging.getLogger().level),
            name=f"featherweight-{name}",
            daemon=True,
        )
        self._process.start()
        theirs.close()
        self.place = f"process {self._process.pid}"

    @property
    def pid(self) -> int:
        """Return the id of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send(self, command: Command) -> None:
        with self._sending:
            self._connection.send(command)

    def receive(self) -> Report:
        report: Report = self._connection.recv()
        return report

    def end(self) -> None:
        self._process.kill()

    def cause(self) -> str:
        self._process.join(END_WAIT_S)
        return cause_of(self._process.exitcode)


def cause_of(exit_code: int | None) -> str:
    """Why a process is gone, to follow "The worker"."""
    if exit_code is None:
        return "closed its channel"
    if exit_code == DEVICE_FAILED:
        return "ended, because its GPU takes no more work (the log says more)"
    if exit_code >= 0:
        return f"ended by itself (exit code {exit_code})"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = f"signal {-exit_code}"
    if -exit_code == signal.SIGKILL.value if hasattr(signal, "SIGKILL") else False:
        return "was killed (SIGKILL): if nobody did that, memory ran out"
    return f"crashed ({name})"


class _ConnectionChannel:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()

    def send(self, report: Report) -> None:
        with self._sending:
            self._connection.send(report)

    def receive(self) -> Command:
        command: Command = self._connection.recv()
        return command


def _enter(connection: Connection, build: Build, data_dir: Path, share: Share, log_level: int) -> None:
    """The worker's main thread. Ends with the server, however that ends."""
    os.environ.update(share.environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl+C is the server's; it says what is to be stopped
    faulthandler.enable()
    logging.basicConfig(level=log_level, format=f"%(asctime)s %(levelname)s [{_name()}] %(message)s", force=True)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    bind(share)
    if share.threads is not None:
        import torch

        torch.set_num_threads(share.threads)
    WorkerLoop(_ConnectionChannel(connection), build, data_dir, os._exit).run()
    sys.stdout.flush()
    os._exit(0)  # threads that still read a checkpoint, or wait, are of no use any more


def _name() -> str:
    return multiprocessing.current_process().name.removeprefix("featherweight-")


def processes(
    count: int,
    build: Build,
    data_dir: Path,
    gpus: Callable[[], int],
    cpu: Callable[[], CpuOfMachine] = cpu_of_machine,
) -> Sequence[tuple[str, Callable[[], ProcessTransport]]]:
    """`count` workers, by name, and how each is begun. `gpus` is asked when the first one begins."""

    def begin(index: int) -> Callable[[], ProcessTransport]:
        name = f"worker-{index + 1}"

        def now() -> ProcessTransport:
            share = share_of(index, count, gpus() if count > 1 else 0, cpu())
            return ProcessTransport(name, build, data_dir, share)

        return now

    return [(f"worker-{index + 1}", begin(index)) for index in range(count)]
