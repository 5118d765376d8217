"""How many threads compute on the CPU. PyTorch takes all physical cores, which is too many where a container may use
fewer, and where a neighbour computes too; so some numbers are tried once and the answer is remembered, by machine. What
was found while others computed holds for that run alone.

What is timed is what a sampling step is made of: a product of matrices, a convolution and attention.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional as F

from modules.atomic_files import write_atomic
from modules.cores import Cores, cores_here
from modules.memory.int8_support import cpu_name, read_answers

log = logging.getLogger(__name__)

ROUNDS = 4
AS_GOOD_AS = 1.04
"""Of two numbers of threads whose times differ by less the smaller one is taken."""
QUIET_LOAD = 0.5
"""Processes that ran on average during the last minute, for an answer to be worth remembering."""


@dataclass(frozen=True)
class ChosenThreads:
    """`reason`: why so many, for people. `milliseconds`: by number of threads, what was measured."""

    count: int
    reason: str
    milliseconds: Mapping[int, float]


def use_threads(
    wanted: int = 0,
    remembered: Path | None = None,
    cores: Cores | None = None,
    measure: Callable[[int], float] | None = None,
    environment: Mapping[str, str] = os.environ,
    load: Callable[[], float] | None = None,
) -> ChosenThreads:
    """Have PyTorch compute with `wanted` threads; 0: with as many as OMP_NUM_THREADS says, else as were the fastest
    here, found out now or read from the file `remembered`. `load`: how many processes ran during the last minute."""
    chosen = _choose(
        wanted, remembered, cores or cores_here(), measure or milliseconds_with, environment, load or machine_load
    )
    torch.set_num_threads(chosen.count)
    return chosen


def _choose(
    wanted: int,
    remembered: Path | None,
    cores: Cores,
    measure: Callable[[int], float],
    environment: Mapping[str, str],
    load: Callable[[], float],
) -> ChosenThreads:
    if wanted:
        return ChosenThreads(wanted, "asked for by --cpu-threads", {})
    given = environment.get("OMP_NUM_THREADS", "")
    if given.isdigit() and int(given) > 0:
        return ChosenThreads(int(given), "asked for by OMP_NUM_THREADS", {})
    quota = "" if cores.quota is None else f", quota {cores.quota:g}"
    key = f"{cpu_name()}, {cores.physical} cores, {cores.logical} threads{quota}, PyTorch {torch.__version__}"
    answers = read_answers(remembered)
    known = answers.get(key)
    if isinstance(known, dict) and known.get("threads") in cores.candidates:
        return ChosenThreads(known["threads"], "measured before", {})
    is_quiet = load() < QUIET_LOAD
    times = {count: measure(count) for count in cores.candidates} if len(cores.candidates) > 1 else {}
    best = min(times.values(), default=0.0)
    count = next((count for count, time_ms in times.items() if time_ms <= best * AS_GOOD_AS), cores.candidates[0])
    shown = ", ".join(f"{number}: {time_ms:.1f} ms" for number, time_ms in times.items())
    log.info("Threads that compute on the CPU: %d (%s).", count, shown or "one core")
    if remembered is not None and is_quiet:
        answers[key] = {"threads": count, "milliseconds": {str(number): ms for number, ms in times.items()}}
        try:
            write_atomic(remembered, json.dumps(answers, indent=1).encode())
        except OSError as error:
            log.warning("How many threads are the fastest could not be remembered: %s", error)
    return ChosenThreads(count, "measured now", times)


def machine_load() -> float:
    """How many processes ran or waited for a core during the last minute, on average; 0 where nobody counts them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


@torch.inference_mode()
def milliseconds_with(threads: int) -> float:
    """The shortest time of a few products, a convolution and attention with so many threads. Leaves PyTorch with
    them."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(512, 640, generator=generator)
    weight = torch.randn(1280, 640, generator=generator)
    image = torch.randn(1, 64, 32, 32, generator=generator)
    kernel = torch.randn(64, 64, 3, 3, generator=generator)
    heads = torch.randn(1, 8, 512, 40, generator=generator)
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.perf_counter()
        F.linear(tokens, weight)
        F.conv2d(image, kernel, padding=1)
        F.scaled_dot_product_attention(heads, heads, heads)
        best = min(best, 1000 * (time.perf_counter() - began))
    return round(best, 3)
