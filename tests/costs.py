"""CPU seconds of tests: of the process and everything below it, since wall time depends on what else the machine does.

`pytest --costs` prints the 20 tests and the 20 files that took most. `launch.py --test` passes it.
`python -m tests.costs` prints how slow this CPU is: `yardstick_s`.
"""

from __future__ import annotations

import ast
import os
import time
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

SHOWN = 20
_TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 1


def used_s() -> float:
    """Return the CPU seconds of this process, of its finished children and, on Linux, of those that still run."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system + sum(_living_s(os.getpid()))


def _living_s(process: int) -> Iterator[float]:
    """Yield what each running process below this one has used so far: Chromium, servers, workers."""
    try:
        threads = list(os.scandir(f"/proc/{process}/task"))
    except OSError:  # it ended meanwhile, or this is not Linux
        return
    for thread in threads:
        try:
            for child in map(int, _read(f"{thread.path}/children").split()):
                # The fields after the name, which is in parentheses: utime, stime, cutime, cstime are 14 to 17.
                fields = _read(f"/proc/{child}/stat").rpartition(b")")[2].split()
                yield sum(map(int, fields[11:15])) / _TICKS
                yield from _living_s(child)
        except (OSError, ValueError):  # ended meanwhile
            continue


def _read(path: str) -> bytes:
    """Return what a small file holds, in a third of the time that `Path` takes: there is one for each thread."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 1 << 16)
    finally:
        os.close(file)


class Costs:
    """A plugin that notes after each test what the process has used since the one before, and sums up at the end."""

    def __init__(self) -> None:
        self.last_s = used_s()
        self.tests: Counter[str] = Counter()
        self.processes_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "teardown":  # looking at all processes takes a millisecond
            now_s = used_s()
            vars(report)["cpu_s"] = now_s - self.last_s  # with the report it reaches the process that prints
            self.last_s = now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += vars(report).get("cpu_s", 0.0)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu_s"] = used_s()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        self.processes_s += getattr(node, "workeroutput", {}).get("cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        files: Counter[str] = Counter()
        for test, seconds in self.tests.items():
            files[test.partition("::")[0]] += seconds
        whole_s = self.processes_s or used_s()
        terminalreporter.section(
            f"CPU seconds: {whole_s:.0f}, of which {sum(files.values()):.0f} in {len(self.tests)} tests"
        )
        for costs in (files, self.tests):
            for name, seconds in costs.most_common(SHOWN):
                terminalreporter.line(f"{seconds:7.1f} {name}")
            terminalreporter.line("")


def yardstick_s() -> float:
    """Return the CPU seconds of a fixed amount of what tests consist of: Python, and small layers on one thread."""
    import torch
    from torch.nn import functional as F

    torch.set_num_threads(1)
    source, generator = Path(__file__).read_text(encoding="utf-8"), torch.Generator().manual_seed(0)
    weight = torch.randn(64, 64, 3, 3, generator=generator) / 24
    x = torch.randn(1, 64, 48, 48, generator=generator)
    began_s = time.process_time()
    for _ in range(180):
        ast.dump(ast.parse(source))
    for _ in range(360):
        x = F.silu(F.group_norm(F.conv2d(x, weight, padding=1), 32))
    return time.process_time() - began_s


if __name__ == "__main__":
    print(yardstick_s())
