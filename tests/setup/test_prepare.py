"""The steps of the set-up: order, skipping, going on after a failure, never replacing PyTorch."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from modules.setup.environment import Environment
from modules.setup.prepare import CONSTRAINT_NAME, Wanted, is_ready, prepare
from modules.setup.process import SetupError
from modules.setup.stamp import STAMP_NAME, Stamp
from modules.setup.torch_choice import PIN, TORCH_VERSION, TorchRequest
from tests.setup.fakes import FakeMachine, FakeRun, add_package, make_environment, make_root


@dataclass
class House:
    """A program folder with a set-up that only pretends to install."""

    root: Path
    environment: Environment = field(init=False)
    run: FakeRun = field(init=False)
    machine: FakeMachine = field(default_factory=lambda: FakeMachine(local_wheel=True))
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        make_root(self.root)
        self.environment = Environment(self.root / ".venv")
        self.run = FakeRun(self.environment)

    def prepare(self, wanted: Wanted | None = None) -> list[list[str]]:
        """Prepare; returns what pip was asked to install this time."""
        self.run.commands.clear()
        prepare(self.root, self.environment, wanted or Wanted(), {}, self.run, self.machine, self.lines.append)
        return self.run.pip_installs()


@pytest.fixture
def house(tmp_path: Path) -> House:
    return House(tmp_path)


def test_from_nothing_torch_comes_first_and_alone(house: House) -> None:
    torch, packages, nodeps = house.prepare()
    constraint = str(house.environment.folder / CONSTRAINT_NAME)
    assert torch == [PIN]
    assert packages == ["alpha==1.0", "beta-pack==2.0", "-c", constraint]
    assert nodeps == ["--no-deps", "gamma==3.0", "-c", constraint]
    assert Path(constraint).read_text(encoding="utf-8") == f"torch=={TORCH_VERSION}+cpu\n"
    assert house.lines[-1] == "PyTorch 2.13.0 is ready; it computes on a test"


def test_an_equal_stamp_starts_no_program_at_all(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.prepare()

    def forbidden(*args: object, **keywords: object) -> None:
        raise AssertionError(f"started {args}")

    monkeypatch.setattr(subprocess, "Popen", forbidden)
    lines: list[str] = []
    prepare(house.root, house.environment, Wanted(), {}, tell=lines.append)
    assert lines == []


def test_everything_installed_but_no_stamp_needs_no_pip(house: House) -> None:
    house.prepare()
    (house.environment.folder / STAMP_NAME).unlink()
    assert house.prepare() == []
    assert is_ready(house.root, house.environment, Wanted())


def test_a_damaged_stamp_is_no_stamp(house: House) -> None:
    house.prepare()
    (house.environment.folder / STAMP_NAME).write_text('{"done": 3}', encoding="utf-8")
    assert not is_ready(house.root, house.environment, Wanted())
    assert house.prepare() == []


def test_changed_requirements_install_only_packages(house: House) -> None:
    house.prepare()
    (house.root / "requirements.txt").write_text("alpha==1.1\n", encoding="utf-8")
    installs = house.prepare()
    assert [words[0] for words in installs] == ["alpha==1.1"]


def test_a_failure_names_the_step_and_the_next_run_goes_on_there(house: House) -> None:
    house.run.fail["alpha==1.0"] = "ERROR: No space left on device"
    with pytest.raises(SetupError, match=r"installing requirements.txt[\s\S]*disk is full[\s\S]*same command again"):
        house.prepare()
    house.run.fail.clear()
    assert [words[0] for words in house.prepare()] == ["alpha==1.0", "--no-deps"]


def test_a_failed_torch_leaves_no_stamp(house: House) -> None:
    house.run.fail[PIN] = "ERROR: Could not find a version that satisfies the requirement"
    with pytest.raises(SetupError, match="installing PyTorch"):
        house.prepare()
    assert Stamp.read(house.environment.folder).done == {}


def test_test_tools_are_an_extra_step(house: House) -> None:
    house.prepare()
    wanted = Wanted(tests=True)
    assert not is_ready(house.root, house.environment, wanted)
    assert [words[0] for words in house.prepare(wanted)] == ["delta==4.0"]
    assert is_ready(house.root, house.environment, wanted)
    assert is_ready(house.root, house.environment, Wanted())


AVX512 = {"type": "cpu", "instructions": "AVX512"}


@pytest.mark.parametrize(
    ("facts", "is_wanted"),
    [
        (AVX512, True),
        ({"type": "cpu", "instructions": "AVX2"}, False),
        ({"type": "cpu", "instructions": "DEFAULT"}, False),
        ({"type": "cuda", "instructions": "AVX512"}, False),
    ],
)
def test_kernels_come_last_and_only_where_the_cpu_gains(house: House, facts: dict[str, str], is_wanted: bool) -> None:
    house.run.facts = facts
    installs = house.prepare()
    assert ("numba" in house.environment.installed()) is is_wanted
    assert ("numba==5.0" in installs[-1]) is is_wanted
    assert any("64 MB" in line for line in house.lines) is is_wanted
    assert house.prepare() == []


def test_kernels_may_not_change_other_packages(house: House) -> None:
    house.run.facts = AVX512
    words = house.prepare()[-1]
    constraints = [words[at + 1] for at, word in enumerate(words) if word == "-c"]
    assert constraints == [str(house.root / "requirements.txt"), str(house.environment.folder / CONSTRAINT_NAME)]


@pytest.mark.parametrize("fails", ["numba==5.0", "import numba"])
def test_kernels_that_cannot_be_installed_are_told_and_stop_nothing(house: House, fails: str) -> None:
    house.run.facts, house.run.fail = AVX512, {fails: "ERROR: no such wheel"}
    house.prepare()
    assert "numba" not in house.environment.installed()
    assert "no such wheel" in house.lines[-1] and "-m pip install -r" in house.lines[-1]
    assert is_ready(house.root, house.environment, Wanted())


def test_an_older_environment_gets_kernels_at_the_next_start(house: House) -> None:
    house.prepare()
    Stamp.read(house.environment.folder).without_step("kernels").write(house.environment.folder)
    house.run.facts = AVX512
    assert ["numba==5.0" in words for words in house.prepare()] == [True]


def test_the_triton_of_pytorch_for_gpus_stays(house: House) -> None:
    (house.root / "requirements-test.txt").write_text("delta==4.0\ntriton==1.0\n", encoding="utf-8")
    make_environment(house.environment)
    add_package(house.environment, "triton", "2.0")
    house.prepare(Wanted(tests=True))
    assert house.environment.installed()["triton"] == "2.0" and "delta" in house.environment.installed()


def test_another_build_of_the_same_version_is_forced(house: House) -> None:
    house.prepare()
    house.run.torch_build = "+cu130"
    installs = house.prepare(Wanted(request=TorchRequest("cuda")))
    assert installs[0][:2] == ["--force-reinstall", PIN]
    assert house.environment.installed()["torch"] == "2.13.0+cu130"


def test_auto_keeps_what_was_asked_for_before(house: House) -> None:
    house.run.torch_build = "+cu130"
    house.prepare(Wanted(request=TorchRequest("cuda")))
    assert house.prepare() == []
    assert Stamp.read(house.environment.folder).request == TorchRequest("cuda")


def test_reinstall_installs_torch_again_and_only_torch(house: House) -> None:
    house.prepare()
    assert house.prepare(Wanted(reinstall_torch=True)) == [["--force-reinstall", PIN]]


def test_an_interrupted_reinstall_is_taken_up_again(house: House) -> None:
    house.prepare()
    house.run.fail[PIN] = "killed"
    with pytest.raises(SetupError):
        house.prepare(Wanted(reinstall_torch=True))
    assert not is_ready(house.root, house.environment, Wanted())


def test_a_broken_torchvision_is_removed_and_said(house: House) -> None:
    make_environment(house.environment)
    add_package(house.environment, "torchvision", "0.28.0")
    house.run.fail["import torchvision"] = "RuntimeError: operator torchvision::nms does not exist"
    house.prepare()
    assert "torchvision" not in house.environment.installed()
    assert any("removing torchvision" in line for line in house.lines)


def test_a_working_torchvision_stays(house: House) -> None:
    make_environment(house.environment)
    add_package(house.environment, "torchvision", "0.28.0")
    house.prepare()
    assert "torchvision" in house.environment.installed()


def test_a_torch_that_cannot_be_imported_stops_with_advice(house: House) -> None:
    house.run.fail["import json, sys, torch"] = "ImportError: libcudart.so.13"
    with pytest.raises(SetupError, match=r"importing PyTorch[\s\S]*libcudart[\s\S]*--reinstall-torch"):
        house.prepare()
    assert not is_ready(house.root, house.environment, Wanted())


def test_the_device_is_not_named_when_not_wanted(house: House) -> None:
    house.prepare(Wanted(name_device=False))
    assert not any("computes on" in line for line in house.lines)
