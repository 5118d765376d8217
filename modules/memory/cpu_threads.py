"""How many threads compute on the CPU. PyTorch takes all physical cores, which is too many where a container may use
fewer, and where a neighbour computes too; so some numbers are tried once, in turns, and the answer is remembered, by
machine. What was found while others computed is doubted: it is found out again in the first quiet moment. Others
compute where the machine had too few cores during the last minute, or these threads waited for one meanwhile.

What is timed is what a sampling step is made of: a product of matrices, a convolution and attention.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from modules.memory.int8_support import cpu_name, read_answers, remember_answer
from modules.system.cores import THREADS_VARIABLE, Cores, cores_here, threads_asked

log = logging.getLogger(__name__)

ROUNDS = 4
AS_GOOD_AS = 1.04
"""Of two numbers of threads whose times differ by less the smaller one is taken."""
CLEARLY = 1.25
"""How much longer the second takes where the fastest is found after two rounds."""
QUIET_LOAD = 0.5
"""Processes that ran on average during the last minute, for an answer to be worth remembering; more where the machine
has cores for them besides those that compute here."""
WAITED = 0.1
"""Of the time of the largest number of threads, what these may wait for a core while they are timed."""


@dataclass(frozen=True)
class ChosenThreads:
    """`reason`: why so many, for people. `milliseconds`: by number of threads, what was measured. `is_doubted`: others
    computed meanwhile."""

    count: int
    reason: str
    milliseconds: Mapping[int, float]
    is_doubted: bool = False


class CpuThreads:
    """How many threads this process computes with on the CPU; `choose` finds it out and sets it (`use_threads`)."""

    def __init__(
        self, choose: Callable[[], ChosenThreads], load: Callable[[], float] | None = None, cores: Cores | None = None
    ) -> None:
        """Chooses at once. `load`, `cores`: see `use_threads`."""
        self._choose = choose
        self._load = load or machine_load
        self._cores = cores or cores_here()
        self.chosen = choose()

    def try_again(self) -> bool:
        """To be called in the thread that computes, while nothing is computed: what was measured beside others is
        measured again if the machine is quiet now. True: there is nothing left to find out."""
        if self.chosen.is_doubted and _is_quiet(self._load(), self._cores):
            self.chosen = self._choose()
        return not self.chosen.is_doubted


def use_threads(
    wanted: int = 0,
    remembered: Path | None = None,
    cores: Cores | None = None,
    measure: Callable[[int], float] | None = None,
    environment: Mapping[str, str] = os.environ,
    load: Callable[[], float] | None = None,
    waited: Callable[[], float] | None = None,
) -> ChosenThreads:
    """Have PyTorch compute with `wanted` threads; 0: with as many as OMP_NUM_THREADS says, else as were the fastest
    here, found out now or read from the file `remembered`. `load`: how many processes ran during the last minute.
    `waited`: the seconds that the threads of this process have waited for a core."""
    found = cores or cores_here()
    trial = _Trial(measure or milliseconds_with, load or machine_load, waited or waited_s)
    chosen = _choose(wanted, remembered, found, trial, environment)
    torch.set_num_threads(chosen.count)
    return chosen


@dataclass(frozen=True)
class _Trial:
    """How numbers of threads are tried; see `use_threads`."""

    measure: Callable[[int], float]
    load: Callable[[], float]
    waited: Callable[[], float]

    def run(self, candidates: Sequence[int]) -> tuple[dict[int, float], bool]:
        """The shortest time of each number of threads, and whether these waited for a core. In turns, so that a busy
        second costs all of them one round."""
        times = dict.fromkeys(candidates, float("inf"))
        waited, began = self.waited(), time.perf_counter()
        clear: list[int] = []
        for _ in range(ROUNDS):
            found = {count: self.measure(count) for count in candidates}
            times = {count: min(times[count], time_ms) for count, time_ms in found.items()}
            first, second = sorted(candidates, key=found.__getitem__)[:2]
            clear = [*clear, first] if found[first] * CLEARLY < found[second] else []
            if len(clear) > 1 and clear[-1] == clear[-2]:  # twice, one after the other: no accident
                break
        return times, self.waited() - waited > WAITED * candidates[-1] * (time.perf_counter() - began)


def _choose(
    wanted: int, remembered: Path | None, cores: Cores, trial: _Trial, environment: Mapping[str, str]
) -> ChosenThreads:
    if wanted:
        return ChosenThreads(wanted, "asked for by --cpu-threads", {})
    given, problem = threads_asked(environment, cores.logical)
    if problem:
        log.warning("%s.", problem)
    if given is not None:
        return ChosenThreads(given, f"asked for by {THREADS_VARIABLE}", {})
    quota = "" if cores.quota is None else f", quota {cores.quota:g}"
    key = f"{cpu_name()}, {cores.physical} cores, {cores.logical} threads{quota}, PyTorch {torch.__version__}"
    known = read_answers(remembered).get(key)
    if isinstance(known, dict) and known.get("threads") in cores.candidates and not known.get("doubted"):
        return ChosenThreads(known["threads"], "measured before", {})
    is_quiet, did_wait = _is_quiet(trial.load(), cores), False
    times: dict[int, float] = {}
    if len(cores.candidates) > 1:
        times, did_wait = trial.run(cores.candidates)
    best = min(times.values(), default=0.0)
    count = next((count for count, time_ms in times.items() if time_ms <= best * AS_GOOD_AS), cores.candidates[0])
    shown = ", ".join(f"{number}: {time_ms:.1f} ms" for number, time_ms in times.items())
    is_doubted = bool(times) and (not is_quiet or did_wait)
    doubt = "; others computed meanwhile, so it will be measured again" if is_doubted else ""
    log.info("Threads that compute on the CPU: %d (%s%s).", count, shown or "one core", doubt)
    answer = {"threads": count, "milliseconds": {str(number): ms for number, ms in times.items()}}
    if is_doubted:
        answer["doubted"] = True
    remember_answer(remembered, key, answer, "How many threads are the fastest")
    reason = "measured while others computed" if is_doubted else "measured now"
    return ChosenThreads(count, reason, times, is_doubted)


def _is_quiet(load: float, cores: Cores) -> bool:
    """Whether the processes of the last minute left the cores that compute here free: in a container they are all that
    its machine runs."""
    return load < max(QUIET_LOAD, (os.cpu_count() or 1) - cores.candidates[-1])


def machine_load() -> float:
    """How many processes ran or waited for a core during the last minute, on average; 0 where nobody counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def waited_s(tasks: Path = Path("/proc/self/task")) -> float:
    """How long all threads of this process were ready and had no core, since they began; 0 where the system does not
    tell."""
    nanoseconds = 0
    for stat in tasks.glob("*/schedstat"):
        try:
            nanoseconds += int(stat.read_text(encoding="ascii").split()[1])
        except (OSError, ValueError, IndexError):  # a thread that has ended
            continue
    return nanoseconds / 1e9


@torch.inference_mode()
def milliseconds_with(threads: int) -> float:
    """The shorter time of two rounds of a few products, a convolution and attention with so many threads; the first
    starts the threads. Leaves PyTorch with them."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(512, 640, generator=generator)
    weight = torch.randn(1280, 640, generator=generator)
    image = torch.randn(1, 64, 32, 32, generator=generator)
    kernel = torch.randn(64, 64, 3, 3, generator=generator)
    heads = torch.randn(1, 8, 512, 40, generator=generator)
    best = float("inf")
    for _ in range(2):
        began = time.perf_counter()
        F.linear(tokens, weight)
        F.conv2d(image, kernel, padding=1)
        F.scaled_dot_product_attention(heads, heads, heads)
        best = min(best, 1000 * (time.perf_counter() - began))
    return round(best, 3)
