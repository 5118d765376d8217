"""Cores that a process may compute on: second threads of a core, quotas of containers, and what is worth trying."""

from pathlib import Path

import pytest

from modules.cores import Cores, cgroup_cores, core_groups, divide, in_words, physical_cores


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
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("max 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path) is None
    (tmp_path / "cpu.max").write_text("150000 100000\n", encoding="ascii")
    assert cgroup_cores(tmp_path) == 1.5
