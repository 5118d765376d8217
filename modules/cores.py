"""How many cores this process may compute on, as the system tells. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cores:
    """`logical`: those that this process may run on; `physical`: the same without second threads of a core; `quota`: as
    many as a container may use at once, None without a limit."""

    logical: int
    physical: int
    quota: float | None = None

    @property
    def candidates(self) -> tuple[int, ...]:
        """Numbers of threads that are worth trying, from few to many."""
        limit = self.logical if self.quota is None else max(1, min(self.logical, round(self.quota)))
        cores = min(self.physical, limit)
        return tuple(sorted({max(1, cores // 2), cores, limit}))


def cores_here(system: Path = SYSTEM) -> Cores:
    """Of this machine and this process."""
    affinity = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return Cores(len(affinity), physical_cores(affinity, system), cgroup_cores())


def physical_cores(logical: Iterable[int], system: Path = SYSTEM) -> int:
    """How many cores these logical ones are; all of them where the system does not tell."""
    found = set()
    for number in logical:
        try:
            siblings = (system / f"cpu{number}/topology/thread_siblings_list").read_text(encoding="ascii").strip()
        except OSError:  # other systems than Linux
            siblings = str(number)
        found.add(siblings)
    return max(1, len(found))


def cgroup_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Cores that a container may use at once (cgroup version 2 or 1); None where there is no limit."""
    try:
        if (cgroup / "cpu.max").exists():
            quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return round(int(quota) / int(period), 2) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None
