"""How many cores this process may compute on, as the system tells. Standard library only."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
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
    usable = usable_cores()
    return Cores(len(usable), physical_cores(usable, system), cgroup_cores())


def usable_cores() -> frozenset[int]:
    """The logical cores that this process may run on."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def physical_cores(logical: Iterable[int], system: Path = SYSTEM) -> int:
    """How many cores these logical ones are; all of them where the system does not tell."""
    return max(1, len(core_groups(logical, system)))


def core_groups(logical: Iterable[int], system: Path = SYSTEM) -> tuple[tuple[int, ...], ...]:
    """The logical cores of each physical one, those of a package side by side; each by itself where the system does not
    tell."""
    found: dict[tuple[int, str], list[int]] = {}
    for number in sorted(logical):
        topology = system / f"cpu{number}/topology"
        try:
            siblings = (topology / "thread_siblings_list").read_text(encoding="ascii").strip()
        except OSError:  # other systems than Linux
            siblings = str(number)
        found.setdefault((_package(topology), siblings), []).append(number)
    return tuple(tuple(group) for _, group in sorted(found.items(), key=lambda item: (item[0][0], item[1])))


def _package(topology: Path) -> int:
    try:
        return int((topology / "physical_package_id").read_text(encoding="ascii"))
    except (OSError, ValueError):  # not told: one package
        return 0


def divide(groups: Sequence[tuple[int, ...]], count: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Physical cores for each of `count` workers: disjoint, neighbours together, as evenly as can be. None for anybody
    where there are fewer cores than workers."""
    if len(groups) < count:
        return ((),) * count
    ends = [len(groups) * index // count for index in range(count + 1)]
    return tuple(tuple(groups[begin:end]) for begin, end in itertools.pairwise(ends))


def in_words(logical: Iterable[int]) -> str:
    """Numbers of cores with ranges, as "0-3, 8"."""
    ranges: list[list[int]] = []
    for number in sorted(logical):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)


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
