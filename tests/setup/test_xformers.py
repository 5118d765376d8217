"""--xformers: its wheel where one fits, and the reason where none does."""

from pathlib import Path

import pytest

from modules.setup.environment import Environment
from modules.setup.hardware import Nvidia
from modules.setup.prepare import Wanted, prepare
from modules.setup.xformers import XFORMERS_PIN, cuda_build
from tests.setup.fakes import FakeMachine, FakeRun, make_root

CARD = Nvidia(580, (8, 9))


@pytest.mark.parametrize(
    ("torch", "machine", "build"),
    [
        ("2.13.0+cu126", FakeMachine(), "cu126"),
        ("2.13.0+cu130", FakeMachine(system="Windows", architecture="AMD64"), "cu130"),
        ("2.13.0", FakeMachine(card=CARD), "cu130"),
        ("2.13.0", FakeMachine(), ""),
        ("2.13.0+cpu", FakeMachine(card=CARD), ""),
        ("2.13.0+rocm7.2", FakeMachine(), ""),
        ("2.13.0", FakeMachine(system="Darwin", architecture="arm64"), ""),
        ("2.13.0+cu130", FakeMachine(architecture="aarch64"), ""),
    ],
)
def test_the_build_that_a_wheel_is_looked_for(torch: str, machine: FakeMachine, build: str) -> None:
    assert cuda_build(torch, machine) == build


def install(root: Path, run_fails: dict[str, str], torch_build: str = "+cu130") -> tuple[FakeRun, list[str]]:
    make_root(root)
    environment = Environment(root / ".venv")
    run = FakeRun(environment, torch_build, run_fails)
    lines: list[str] = []
    for _ in range(2):  # the second start does nothing
        lines_before = len(lines)
        prepare(root, environment, Wanted(xformers=True), {}, run, FakeMachine(card=CARD), lines.append)
    assert len(lines) == lines_before
    return run, lines


def asked(run: FakeRun) -> list[list[str]]:
    return [words for words in run.pip_installs() if XFORMERS_PIN in words]


def test_it_is_installed_once_without_its_own_pytorch(tmp_path: Path) -> None:
    run, lines = install(tmp_path, {})
    (words,) = asked(run)
    assert words[0] == "--no-deps" and words[-1].endswith("/cu130") and XFORMERS_PIN in lines[-1]


def test_a_wheel_that_does_not_work_is_removed_and_the_start_goes_on(tmp_path: Path) -> None:
    run, lines = install(tmp_path, {"memory_efficient_attention": "ImportError: libcudart.so.12: no such file"})
    assert "does not work" in lines[-1] and "libcudart.so.12" in lines[-1]
    assert ["uninstall", "-y", "xformers"] in [
        [words[3], *words[-2:]] for words in run.commands if "uninstall" in words
    ]


def test_where_no_wheel_fits_the_reason_is_said(tmp_path: Path) -> None:
    run, lines = install(tmp_path, {}, torch_build="+cpu")
    assert asked(run) == [] and "no wheel fits PyTorch 2.13.0+cpu" in lines[-1]


def test_a_package_server_without_it_stops_nothing(tmp_path: Path) -> None:
    _, lines = install(tmp_path, {XFORMERS_PIN: "ERROR: No matching distribution found"})
    assert "The start goes on" in lines[-1] and "--reinstall-xformers" in lines[-1]
