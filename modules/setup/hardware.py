"""Hardware of the machine, as far as it decides which build of PyTorch fits; asked before PyTorch is installed."""

import platform
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from modules.setup.pip import Pip
from modules.setup.process import Run

MAKERS = {0x10DE: "NVIDIA", 0x1002: "AMD", 0x8086: "Intel"}
_ARC_DEVICES = (0x56, 0xE2, 0x64, 0xB0)  # so begin Alchemist, Battlemage, and what is in Core Ultra 200V and 300
_ARC_IN_CPUS = (0x7D51, 0x7D55, 0x7DD1, 0x7DD5)  # Core Ultra 100H and 200H; others of 0x7D.. are no Arc
_REGISTRY = r"SYSTEM\CurrentControlSet\Control\Class\{4d36e968-e325-11ce-bfc1-08002be10318}"
_WSL_NVIDIA_SMI = Path("/usr/lib/wsl/lib/nvidia-smi")


@dataclass(frozen=True)
class Nvidia:
    """Facts from nvidia-smi: the driver's major version and the newest card's compute capability (None: not told)."""

    driver: int
    capability: tuple[int, int] | None


@dataclass(frozen=True)
class Adapter:
    """A GPU as the system lists it, by the numbers of maker and model; `name` is empty where the system has none."""

    vendor: int
    device: int
    name: str = ""

    @property
    def maker(self) -> str:
        """NVIDIA, AMD or Intel; empty for others, such as those of virtual machines."""
        return MAKERS.get(self.vendor, "")

    @property
    def is_arc(self) -> bool:
        """Whether PyTorch has a build for this GPU of Intel's: a card, or the Arc graphics of a Core Ultra."""
        return self.maker == "Intel" and (self.device >> 8 in _ARC_DEVICES or self.device in _ARC_IN_CPUS)

    def __str__(self) -> str:
        return self.name or f"{self.maker or 'unknown maker'} {self.vendor:04x}:{self.device:04x}"


class Machine(Protocol):
    """The questions that the choice of a build asks; each may start a program, so they are asked in turn."""

    system: str  # as platform.system(): Linux, Windows, Darwin
    architecture: str  # as platform.machine(): x86_64, AMD64, arm64, aarch64

    def has_local_wheel(self, requirement: str) -> bool: ...
    def nvidia(self) -> Nvidia | None: ...
    def adapters(self) -> Sequence[Adapter]: ...
    def has_amd(self) -> bool: ...
    def amd_architecture(self) -> tuple[int, int] | None: ...


class ThisMachine:
    """The machine we run on. `root` is "/" except in tests."""

    def __init__(self, run: Run, pip: Pip, root: Path = Path("/")) -> None:
        self.system = platform.system()
        self.architecture = platform.machine()
        self._run, self._pip, self._root = run, pip, root

    def has_local_wheel(self, requirement: str) -> bool:
        """Whether pip finds it in a configured folder (offline mirrors, images with a wheel prepared)."""
        return self._pip.finds_locally(requirement)

    def nvidia(self) -> Nvidia | None:
        """The NVIDIA cards, if a driver answers."""
        program = nvidia_smi()
        if program is None:
            return None
        # compute_cap is unknown to old drivers, which then answer nothing at all: ask again without it.
        for query in ("driver_version,compute_cap", "driver_version"):
            outcome = self._run([program, f"--query-gpu={query}", "--format=csv,noheader"])
            if outcome.ok and (found := parse_nvidia(outcome.output)) is not None:
                return found
        return None

    def has_amd(self) -> bool:
        """Whether the Linux kernel offers AMD's compute device."""
        return self.system == "Linux" and (self._root / "dev/kfd").exists()

    def amd_architecture(self) -> tuple[int, int] | None:
        """The newest architecture of AMD's that the Linux kernel computes on: gfx1030 as (10, 3); None: not told."""
        found = []
        for node in self._root.glob("sys/class/kfd/kfd/topology/nodes/*/properties"):
            told = re.search(r"^gfx_target_version (\d+)$", _text(node), re.MULTILINE)
            if told is not None and (number := int(told.group(1))):
                found.append((number // 10000, number // 100 % 100))
        return max(found, default=None)

    def adapters(self) -> Sequence[Adapter]:
        """Every GPU that the system lists, whether or not a driver of PyTorch's is there."""
        return adapters(self._root)


Rows = Callable[[], Iterable[tuple[str, str]]]


def registry_rows() -> Iterable[tuple[str, str]]:
    """The display adapters of a Windows machine: what the system calls each, and its hardware id."""
    import winreg as registry  # on Windows alone

    asked: Any = registry
    with asked.OpenKey(asked.HKEY_LOCAL_MACHINE, _REGISTRY) as adapters_key:
        for number in range(asked.QueryInfoKey(adapters_key)[0]):
            try:
                with asked.OpenKey(adapters_key, asked.EnumKey(adapters_key, number)) as key:
                    yield (
                        str(asked.QueryValueEx(key, "DriverDesc")[0]),
                        str(asked.QueryValueEx(key, "MatchingDeviceId")[0]),
                    )
            except OSError:  # a key for administrators only, or one without such values
                continue


def adapters(root: Path = Path("/"), system: str = "", rows: Rows = registry_rows) -> list[Adapter]:
    """Every GPU of a Linux or Windows machine, in the system's order and each once."""
    found: dict[Adapter, None] = {}
    if (system or platform.system()) == "Windows":
        for name, hardware_id in rows():
            numbers = re.search(r"VEN_([0-9A-F]{4})&DEV_([0-9A-F]{4})", hardware_id, re.IGNORECASE)
            if numbers is not None:  # what is not: remote desktops, and monitors without a card
                found[Adapter(int(numbers.group(1), 16), int(numbers.group(2), 16), name.strip())] = None
        return list(found)
    for device in sorted(root.glob("sys/class/drm/card*/device")):
        vendor, model = _text(device / "vendor"), _text(device / "device")
        if re.fullmatch("0x[0-9a-f]{4}", vendor) and re.fullmatch("0x[0-9a-f]{4}", model):
            found[Adapter(int(vendor, 16), int(model, 16), _text(device / "product_name"))] = None
    return list(found)


def nvidia_smi() -> str | None:
    """The program that asks NVIDIA's driver, where there is one."""
    return shutil.which("nvidia-smi") or (str(_WSL_NVIDIA_SMI) if _WSL_NVIDIA_SMI.exists() else None)


def parse_nvidia(output: str) -> Nvidia | None:
    """Read lines such as "580.95.05, 8.9", one per card; None if there is no such line."""
    lines = re.findall(r"^\s*(\d+)\.[\d.]+(?:\s*,\s*(\d+)\.(\d+))?\s*$", output, re.MULTILINE)
    if not lines:
        return None
    capabilities = [(int(major), int(minor)) for _, major, minor in lines if major]
    return Nvidia(driver=int(lines[0][0]), capability=max(capabilities, default=None))


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii", errors="replace").strip().lower() if path.is_file() else ""
