"""How many cores this process may compute on, as the system tells. Standard library only."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Return the cores of this machine and this process."""
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


def cgroup_cores(cgroup: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> float | None:
    """Cores that this process may use at once by the quotas of its control groups (version 2 or 1), of a container or
    of a service: the least of them. None where there is no limit."""
    quotas = (_quota(folder) for folder in _groups_above(cgroup, own))
    return min((quota for quota in quotas if quota is not None), default=None)


def _groups_above(cgroup: Path, own: Path) -> Iterator[Path]:
    """The folders of the process's groups that may limit the CPU, from the outermost to its own. In a container the
    outermost is its own, and the paths may lead nowhere."""
    places = {cgroup: "/", cgroup / "cpu": "/"}
    try:
        lines = own.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # other systems than Linux
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            places[cgroup] = path
        elif "cpu" in controllers.split(","):
            places[cgroup / "cpu"] = path
    for root, path in places.items():
        parts = (part for part in path.split("/") if part not in ("", ".."))
        yield from itertools.accumulate(parts, Path.joinpath, initial=root)


def _quota(folder: Path) -> float | None:
    try:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text(encoding="ascii").split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (folder / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        return round(int(quota) / int(period), 2) if int(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):  # "max": no limit
        return None


THREADS_VARIABLE = "OMP_NUM_THREADS"


def threads_asked(environment: Mapping[str, str], logical: int) -> tuple[int | None, str]:
    """How many threads OMP_NUM_THREADS asks for, None where it does not, and for people what is wrong with it, or "".
    More than there are `logical` cores are as many as these: they would only wait for each other."""
    given = environment.get(THREADS_VARIABLE, "").strip()
    if not given:
        return None, ""
    first = given.partition(",")[0].strip()  # of the levels of nested loops
    if not (first.isascii() and first.isdigit() and int(first[:9]) > 0):
        return None, f"{THREADS_VARIABLE} is {given[:40]!r}, which is no number of threads, and is not used"
    if int(first[:9]) > logical:
        return logical, f"{THREADS_VARIABLE} is {given[:40]}, more than there are cores: {logical} compute"
    return int(first), ""
