"""Cores that a process may compute on: second threads of a core, quotas of containers, and what is worth trying."""

from pathlib import Path

import pytest

from modules.system.cores import Cores, cgroup_cores, core_groups, divide, in_words, physical_cores, threads_asked


def test_second_threads_of_a_core_are_no_cores(tmp_path: Path) -> None:
    for number, siblings in enumerate(("0,2", "1,3", "0,2", "1,3")):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n", encoding="ascii")
    assert physical_cores(range(4), tmp_path) == 2
    assert physical_cores([0, 1], tmp_path) == 2 and physical_cores([0, 2], tmp_path) == 1
    assert physical_cores(range(3), tmp_path / "none") == 3


def test_cores_of_a_package_lie_side_by_side(tmp_path: Path) -> None:
    for number, (siblings, package) in enumerate((("0,4", 0), ("1,5", 1), ("2,6", 0), ("3,7", 1)) * 2):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n", encoding="ascii")
        (folder / "physical_package_id").write_text(f"{package}\n", encoding="ascii")
    groups = core_groups(range(8), tmp_path)
    assert groups == ((0, 4), (2, 6), (1, 5), (3, 7))
    assert divide(groups, 2) == (((0, 4), (2, 6)), ((1, 5), (3, 7)))
    assert core_groups([1, 2, 5], tmp_path) == ((2,), (1, 5))


def test_cores_are_divided_evenly_or_not_at_all() -> None:
    groups = tuple((number,) for number in range(7))
    assert [len(part) for part in divide(groups, 3)] == [2, 2, 3]
    assert divide(groups[:2], 3) == ((), (), ())
    assert in_words([8, 0, 1, 2, 3]) == "0-3, 8" and in_words([]) == ""


@pytest.mark.parametrize(
    ("cores", "expected"),
    [
        (Cores(1, 1), (1,)),
        (Cores(2, 2), (1, 2)),
        (Cores(16, 8), (4, 8, 16)),
        (Cores(64, 32, 4.0), (2, 4)),
        (Cores(8, 4, 1.5), (1, 2)),
        (Cores(8, 8, 0.4), (1,)),
    ],
)
def test_no_more_threads_are_tried_than_may_run(cores: Cores, expected: tuple[int, ...]) -> None:
    assert cores.candidates == expected


def test_the_quota_of_a_container(tmp_path: Path) -> None:
    assert cgroup_cores(tmp_path, tmp_path / "none") is None
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path, tmp_path / "none") is None
    (tmp_path / "cpu.max").write_text("150000 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path, tmp_path / "none") == 1.5


def test_the_quota_of_a_service_counts_and_the_least_of_those_above_it(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("0::/system.slice/featherweight.service\n", encoding="ascii")
    service = tmp_path / "system.slice" / "featherweight.service"
    service.mkdir(parents=True)
    (service / "cpu.max").write_text("50000 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path, own) == 0.5
    (service.parent / "cpu.max").write_text("20000 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path, own) == 0.2
    own.write_text("0::/../../elsewhere\n", encoding="ascii")  # as a container sees groups outside of it
    assert cgroup_cores(tmp_path, own) is None


def test_quotas_of_version_1(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.write_text("9:name=systemd:/\n1:cpu,cpuacct:/job\n0::/\n", encoding="ascii")
    (tmp_path / "cpu" / "job").mkdir(parents=True)
    for folder, quota in ((tmp_path / "cpu", "-1"), (tmp_path / "cpu" / "job", "150000")):
        (folder / "cpu.cfs_quota_us").write_text(quota, encoding="ascii")
        (folder / "cpu.cfs_period_us").write_text("100000", encoding="ascii")
    assert cgroup_cores(tmp_path, own) == 1.5


@pytest.mark.parametrize(
    ("given", "expected"),
    [("", None), ("2", 2), (" 3 ", 3), ("2,4", 2), ("8", 8), ("9", 8), ("1" * 40, 8)]
    + [(nonsense, None) for nonsense in ("0", "-1", "many", "\u00b2", "1.5", "0x4", ",", "2;4")],
)
def test_threads_that_are_asked_for(given: str, expected: int | None) -> None:
    count, problem = threads_asked({"OMP_NUM_THREADS": given}, 8)
    assert count == expected
    assert bool(problem) == (given not in ("", "2", " 3 ", "2,4", "8"))
    assert not problem or problem.startswith(f"OMP_NUM_THREADS is {given[:40]!r}, which is no number") or count == 8
