"""Which build of PyTorch is chosen for whom."""

import re

import pytest

from modules.setup.hardware import Adapter, Nvidia
from modules.setup.process import SetupError
from modules.setup.torch_choice import PIN, ROCM_WINDOWS, WHEELS, TorchRequest, choose_torch
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
        ("rocm", "Darwin", "no ROCm build for Darwin"),
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


RX_7900, RX_6800 = Adapter(0x1002, 0x744C, "AMD Radeon RX 7900 XTX"), Adapter(0x1002, 0x73BF, "AMD Radeon RX 6800 XT")
ARC, IRIS = Adapter(0x8086, 0xE20B, "Intel(R) Arc(TM) B580"), Adapter(0x8086, 0x9A49, "Intel(R) Iris(R) Xe Graphics")
GTX = Adapter(0x10DE, 0x2184, "NVIDIA GeForce GTX 1660")


def windows(*cards: Adapter, python: tuple[int, int] = (3, 12)) -> FakeMachine:
    return FakeMachine(system="Windows", architecture="AMD64", cards=cards, python=python)


@pytest.mark.parametrize(
    ("machine", "build", "said"),
    [
        (windows(ARC), "xpu", "Intel card: XPU"),
        (windows(IRIS, ARC), "xpu", "Intel card: XPU"),
        (windows(IRIS), "cpu", "Iris.*no Arc card.*Vulkan"),
        (windows(RX_7900), "cpu", "RX 7900 XTX.*--torch rocm --reinstall-torch"),
        (windows(RX_6800), "cpu", "RX 6800 XT, older than RDNA 3.*Vulkan"),
        (windows(GTX), "cpu", "GTX 1660, whose driver does not answer.*--reinstall-torch"),
        (windows(Adapter(0x1234, 0x1111, "virtual")), "cpu", "^the CPU$"),
        (FakeMachine(cards=(RX_6800,)), "cpu", "without AMD's compute device"),
        (FakeMachine(amd=True, gfx=(8, 0)), "cpu", "gfx80x, which PyTorch has no code for.*Vulkan"),
        (FakeMachine(amd=True, gfx=(10, 1)), "cpu", "gfx101x"),
        (FakeMachine(amd=True, gfx=(10, 3)), "rocm7.2", "AMD card: ROCm"),
        (FakeMachine(amd=True, gfx=(12, 0)), "rocm7.2", "AMD card: ROCm"),
    ],
)
def test_what_was_found_and_why_it_was_chosen(machine: FakeMachine, build: str, said: str) -> None:
    choice = choose_torch(AUTO, machine)
    assert choice.words == (CPU_WORDS if build == "cpu" else index(build))
    assert re.search(said, choice.reason)


def test_rocm_on_windows_is_amds_own() -> None:
    words = choose_torch(TorchRequest("rocm"), windows(RX_7900)).words
    assert len(words) == 4 and all(word.startswith(ROCM_WINDOWS) for word in words)
    assert words[-1].endswith("torch-2.9.1%2Brocm7.2.1-cp312-cp312-win_amd64.whl")
    with pytest.raises(SetupError, match=r"for Python 3.12, this is 3.13.*TORCH_COMMAND"):
        choose_torch(TorchRequest("rocm"), windows(RX_7900, python=(3, 13)))
    with pytest.raises(SetupError, match=r"RDNA 3 and 4.*not on AMD Radeon RX 6800 XT.*Vulkan"):
        choose_torch(TorchRequest("rocm"), windows(RX_6800))
