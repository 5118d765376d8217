"""CPU seconds of tests: of the process and everything below it, since wall time depends on what else the machine does.

`pytest --costs` prints the 20 tests and the 20 files that took most. `launch.py --test` passes it.
"""

from __future__ import annotations

import os
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
    for children in Path(f"/proc/{process}/task").glob("*/children"):
        try:
            for child in children.read_text().split():
                # The fields after the name, which is in parentheses: utime, stime, cutime, cstime are 14 to 17.
                fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                yield sum(map(int, fields[11:15])) / _TICKS
                yield from _living_s(int(child))
        except (OSError, ValueError):  # ended meanwhile
            continue


class Costs:
    """A plugin that notes at each report what the process has used since the last one, and sums up at the end."""

    def __init__(self) -> None:
        self.last_s = used_s()
        self.tests: Counter[str] = Counter()
        self.processes_s = 0.0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now_s = used_s()
        vars(report)["cpu_s"] = now_s - self.last_s  # with the report it reaches the process that prints
        self.last_s = now_s
        return report

    def pytest_runtest_logstart(self) -> None:
        self.last_s = max(self.last_s, used_s())

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.tests[report.nodeid] += vars(report)["cpu_s"]

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
