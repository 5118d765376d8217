"""Which build of PyTorch is chosen for whom."""

import json
import re
from pathlib import Path

import pytest

from modules.setup.hardware import Adapter, Nvidia
from modules.setup.process import SetupError
from modules.setup.torch_choice import AMD_WHEELS, LOCK, PIN, RDNA, TORCH_VERSION, WHEELS, TorchRequest, choose_torch
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


RX_5700, APU = Adapter(0x1002, 0x731F, "AMD Radeon RX 5700 XT"), Adapter(0x1002, 0x164E, "AMD Radeon(TM) Graphics")
ARC_140V = Adapter(0x8086, 0x64A0, "Intel(R) Arc(TM) 140V GPU (16GB)")
RECORDED = json.loads((Path(__file__).parent / "recorded_indexes.json").read_text(encoding="utf-8"))
TAGS = {"Linux": "manylinux_2_28", "Windows": "win_amd64", "Darwin": "macosx"}


def windows(*cards: Adapter) -> FakeMachine:
    return FakeMachine(system="Windows", architecture="AMD64", cards=cards)


def amd(architecture: str) -> tuple[str, ...]:
    return (f"torch[device-{architecture}]=={TORCH_VERSION}+rocm10.0.0", "--index-url", AMD_WHEELS)


@pytest.mark.parametrize(
    ("machine", "build", "said"),
    [
        (windows(ARC), "xpu", "Intel card: XPU"),
        (windows(IRIS, ARC), "xpu", "Intel card: XPU"),
        (windows(ARC_140V), "xpu", "Intel card: XPU"),
        (windows(IRIS), "cpu", "Iris.*no Arc GPU.*Vulkan"),
        (windows(APU, RX_7900), "gfx1100", "RX 7900 XTX: AMD's ROCm for Windows"),
        (windows(RX_6800), "cpu", "RX 6800 XT, which AMD builds.*does not support.*Vulkan.*--torch rocm"),
        (windows(APU), "cpu", "AMD Radeon.TM. Graphics, which AMD has no PyTorch for.*Vulkan"),
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
    assert choice.words == (CPU_WORDS if build == "cpu" else amd(build) if build.startswith("gfx") else index(build))
    assert re.search(said, choice.reason)


@pytest.mark.parametrize(
    ("name", "architecture", "is_automatic"),
    [
        ("AMD Radeon RX 9070 XT", "gfx1201", True),
        ("AMD Radeon AI PRO R9700", "gfx1201", True),
        ("AMD Radeon RX 9060 XT", "gfx1200", True),
        ("AMD Radeon PRO W7900", "gfx1100", True),
        ("AMD Radeon RX 7800 XT", "gfx1101", True),
        ("AMD Radeon RX 7600", "gfx1102", True),
        ("AMD Radeon(TM) 8060S Graphics", "gfx1151", True),
        ("AMD Radeon RX 6700 XT", "gfx1031", False),
        ("AMD Radeon RX 6600", "gfx1032", False),
        ("AMD Radeon RX 5700 XT", "gfx1010", False),
        ("AMD Radeon RX 5500 XT", "gfx1012", False),
        ("AMD Radeon 780M Graphics", "gfx1103", False),
        ("AMD Radeon RX 580", "", False),
        ("AMD Radeon RX 590 Series", "", False),
        ("AMD Radeon RX Vega 56", "", False),
    ],
)
def test_amds_architectures_by_name(name: str, architecture: str, is_automatic: bool) -> None:
    machine = windows(Adapter(0x1002, 0, name))
    assert (choose_torch(AUTO, machine).words == amd(architecture)) is is_automatic
    if architecture:
        assert choose_torch(TorchRequest("rocm"), machine).words == amd(architecture)
    else:
        with pytest.raises(SetupError, match=rf"no code for {name}.*Vulkan.*TORCH_COMMAND"):
            choose_torch(TorchRequest("rocm"), machine)


def test_rocm_by_name_without_a_known_card_has_code_for_all() -> None:
    assert choose_torch(TorchRequest("rocm"), windows()).words == amd("all")


@pytest.mark.parametrize(("system", "device"), LOCK)
def test_each_pin_is_in_its_index(system: str, device: str) -> None:
    """By the names of files that were seen in the indexes."""
    pin = LOCK[system, device]
    version = TORCH_VERSION + (f"+{pin.local}" if pin.local else "")
    tag = "aarch64" if device == "cuda, Arm" else TAGS[system]
    wheels = [name for name in RECORDED["files"][pin.index] if name.startswith(f"torch-{version}-cp")]
    assert any(tag in name for name in wheels), f"{version} for {system} in {pin.index or 'the usual index'}"


def test_each_architecture_has_its_packages() -> None:
    assert {architecture for _, architecture, _ in RDNA} <= set(RECORDED["extras"][AMD_WHEELS])
