"""Which build of PyTorch is chosen for whom."""

import pytest

from modules.setup.hardware import Nvidia
from modules.setup.process import SetupError
from modules.setup.torch_choice import PIN, WHEELS, TorchRequest, choose_torch
from tests.setup.fakes import FakeMachine

AUTO = TorchRequest()
MODERN = Nvidia(driver=580, capability=(8, 9))


def index(name: str) -> tuple[str, ...]:
    return (PIN, "--index-url", WHEELS + name)


CPU_WORDS = (PIN, "--extra-index-url", WHEELS + "cpu", "--retries", "1")


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (FakeMachine(), CPU_WORDS),
        (FakeMachine(local_wheel=True, card=MODERN), (PIN,)),
        (FakeMachine(system="Darwin", architecture="arm64"), (PIN,)),
        (FakeMachine(card=MODERN), (PIN,)),
        (FakeMachine(card=Nvidia(590, None)), (PIN,)),
        (FakeMachine(card=MODERN, architecture="aarch64"), index("cu130")),
        (FakeMachine(system="Windows", architecture="AMD64", card=MODERN), index("cu130")),
        (FakeMachine(card=Nvidia(579, (8, 9))), index("cu126")),
        (FakeMachine(system="Windows", card=Nvidia(551, (8, 9))), index("cu126")),
        (FakeMachine(card=Nvidia(580, (6, 1))), index("cu126")),
        (FakeMachine(card=Nvidia(580, (7, 5))), (PIN,)),
        (FakeMachine(amd=True), index("rocm7.2")),
        (FakeMachine(arc=True), index("xpu")),
        (FakeMachine(card=MODERN, amd=True, arc=True), (PIN,)),
    ],
)
def test_auto_takes_what_fits_the_machine(machine: FakeMachine, words: tuple[str, ...]) -> None:
    assert choose_torch(AUTO, machine).words == words


@pytest.mark.parametrize(
    ("kind", "machine", "words"),
    [
        ("cpu", FakeMachine(card=MODERN), CPU_WORDS),
        ("cpu", FakeMachine(system="Darwin"), (PIN,)),
        ("cuda", FakeMachine(), index("cu130")),
        ("cuda", FakeMachine(card=MODERN, local_wheel=True), index("cu130")),
        ("cuda", FakeMachine(card=Nvidia(535, (8, 6))), index("cu126")),
        ("rocm", FakeMachine(), index("rocm7.2")),
        ("xpu", FakeMachine(system="Windows"), index("xpu")),
        ("mps", FakeMachine(system="Darwin"), (PIN,)),
    ],
)
def test_a_kind_asked_for_wins(kind: str, machine: FakeMachine, words: tuple[str, ...]) -> None:
    assert choose_torch(TorchRequest(kind), machine).words == words


@pytest.mark.parametrize(
    ("kind", "system", "message"),
    [
        ("rocm", "Windows", "no ROCm build for Windows.*TORCH_COMMAND"),
        ("xpu", "Darwin", "no XPU build for macOS"),
        ("mps", "Linux", "MPS exists on macOS only, this is Linux"),
    ],
)
def test_a_kind_that_does_not_exist_there_is_refused(kind: str, system: str, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        choose_torch(TorchRequest(kind), FakeMachine(system=system))


def test_variables_win_over_kind_and_the_command_over_the_index() -> None:
    environ = {"TORCH_COMMAND": "pip install torch==2.9.1 --pre", "TORCH_INDEX_URL": "https://mirror.example/whl"}
    assert choose_torch(TorchRequest.of("cuda", environ), FakeMachine()).words == ("torch==2.9.1", "--pre")
    del environ["TORCH_COMMAND"]
    words = choose_torch(TorchRequest.of("cuda", environ), FakeMachine()).words
    assert words == (PIN, "--index-url", "https://mirror.example/whl")


@pytest.mark.parametrize(
    "command", ["pip3 install torch", "python -m pip install torch", "/x/python3 -m pip install torch"]
)
def test_torch_command_may_name_pip_in_several_ways(command: str) -> None:
    assert choose_torch(TorchRequest(command=command), FakeMachine()).words == ("torch",)


@pytest.mark.parametrize("command", ["conda install torch", "pip", "pip install", "rm -rf /"])
def test_torch_command_must_be_pips(command: str) -> None:
    with pytest.raises(SetupError, match="must be a pip command"):
        choose_torch(TorchRequest(command=command), FakeMachine())


@pytest.mark.parametrize(
    ("request_", "version", "met"),
    [
        (AUTO, None, False),
        (AUTO, "2.13.0+cpu", True),
        (AUTO, "2.13.0", True),
        (AUTO, "2.12.1", False),
        (TorchRequest("cpu"), "2.13.0+cpu", True),
        (TorchRequest("cuda"), "2.13.0+cpu", False),
        (TorchRequest("cuda"), "2.13.0+cu126", True),
        (TorchRequest("cpu"), "2.13.0", False),
        (TorchRequest(command="pip install torch"), "2.13.0", False),
    ],
)
def test_what_an_installed_build_satisfies(request_: TorchRequest, version: str | None, met: bool) -> None:
    assert request_.is_met_by(version) is met
