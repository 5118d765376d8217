"""Reading what the machine has: nvidia-smi's answers, the kernel's files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from modules.setup import hardware
from modules.setup.hardware import Adapter, Nvidia, ThisMachine, adapters, parse_nvidia
from modules.setup.pip import Pip
from modules.setup.process import Outcome


def machine(root: Path, outcomes: Sequence[Outcome] = ()) -> ThisMachine:
    answers = iter(outcomes)
    return ThisMachine(lambda command: next(answers), Pip(Path("python"), lambda command: Outcome(1, "")), root)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("580.95.05, 8.9\n", Nvidia(580, (8, 9))),
        ("551.61, 6.1\n551.61, 12.0\n", Nvidia(551, (12, 0))),
        ("470.239.06\n", Nvidia(470, None)),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", None),
        ("", None),
    ],
)
def test_answers_of_nvidia_smi(output: str, expected: Nvidia | None) -> None:
    assert parse_nvidia(output) == expected


def test_an_old_driver_is_asked_again_without_the_capability(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/nvidia-smi")
    old = [Outcome(2, 'Field "compute_cap" is not a valid field to query.'), Outcome(0, "390.157\n")]
    assert machine(tmp_path, old).nvidia() == Nvidia(390, None)


def test_no_nvidia_smi_is_no_nvidia(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.setattr(hardware, "_WSL_NVIDIA_SMI", tmp_path / "nvidia-smi")
    assert machine(tmp_path).nvidia() is None


def test_amd_is_found_by_its_compute_device(tmp_path: Path) -> None:
    found = machine(tmp_path)
    found.system = "Linux"
    assert not found.has_amd()
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev" / "kfd").touch()
    assert found.has_amd()


@pytest.mark.parametrize(
    ("vendor", "device", "expected"),
    [("0x8086", "0x56a0", True), ("0x8086", "0xe20b", True), ("0x8086", "0x9a49", False), ("0x1002", "0x56a0", False)],
)
def test_arc_cards_are_told_from_integrated_graphics(tmp_path: Path, vendor: str, device: str, expected: bool) -> None:
    folder = tmp_path / "sys/class/drm/card1/device"
    folder.mkdir(parents=True)
    (folder / "vendor").write_text(vendor + "\n", encoding="ascii")
    (folder / "device").write_text(device + "\n", encoding="ascii")
    assert [card.is_arc for card in adapters(tmp_path, "Linux")] == [expected]


def test_windows_lists_its_cards_in_the_registry() -> None:
    rows = [
        ("AMD Radeon RX 7900 XTX", "pci\\ven_1002&dev_744c&subsys_0e3b1002"),
        ("Intel(R) Arc(TM) A770 Graphics", "PCI\\VEN_8086&DEV_56A0"),
        ("AMD Radeon RX 7900 XTX", "PCI\\VEN_1002&DEV_744C"),
        ("Microsoft Remote Display Adapter", "RdpIdd_IndirectDisplay"),
    ]
    found = adapters(system="Windows", rows=lambda: rows)
    assert found == [Adapter(0x1002, 0x744C, rows[0][0]), Adapter(0x8086, 0x56A0, rows[1][0])]
    assert [card.maker for card in found] == ["AMD", "Intel"] and found[1].is_arc
    assert str(Adapter(0x1002, 0x744C)) == "AMD 1002:744c" and Adapter(0x1234, 0x1111).maker == ""


def test_the_kernel_tells_amds_architecture(tmp_path: Path) -> None:
    assert machine(tmp_path).amd_architecture() is None
    for node, number in enumerate((0, 100300, 110002)):
        folder = tmp_path / f"sys/class/kfd/kfd/topology/nodes/{node}"
        folder.mkdir(parents=True)
        (folder / "properties").write_text(f"cpu_cores_count 0\ngfx_target_version {number}\nvendor_id 4098\n")
    assert machine(tmp_path).amd_architecture() == (11, 0)


def test_a_local_wheel_is_looked_for_without_downloading(tmp_path: Path) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str]) -> Outcome:
        commands.append(command)
        return Outcome(0, "")

    assert ThisMachine(run, Pip(Path("python"), run), tmp_path).has_local_wheel("torch==1")
    assert {"--no-index", "--dry-run", "--no-deps", "--ignore-installed", "torch==1"} <= set(commands[0])
