"""Hardware of the machine, as far as it decides which build of PyTorch fits; asked before PyTorch is installed."""

import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from modules.setup.pip import Pip
from modules.setup.process import Run

_INTEL_VENDOR = "0x8086"
_ARC_DEVICE = re.compile(r"0x(56|e2)[0-9a-f]{2}$")  # Alchemist and Battlemage cards; integrated graphics differ
_WSL_NVIDIA_SMI = Path("/usr/lib/wsl/lib/nvidia-smi")


@dataclass(frozen=True)
class Nvidia:
    """Facts from nvidia-smi: the driver's major version and the newest card's compute capability (None: not told)."""

    driver: int
    capability: tuple[int, int] | None


class Machine(Protocol):
    """The questions that the choice of a build asks; each may start a program, so they are asked in turn."""

    system: str  # as platform.system(): Linux, Windows, Darwin
    architecture: str  # as platform.machine(): x86_64, AMD64, arm64, aarch64

    def has_local_wheel(self, requirement: str) -> bool: ...
    def nvidia(self) -> Nvidia | None: ...
    def has_amd(self) -> bool: ...
    def has_intel_arc(self) -> bool: ...


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

    def has_intel_arc(self) -> bool:
        """Whether an Intel Arc card sits in a Linux machine (elsewhere: --torch xpu)."""
        return any(
            _text(device / "vendor") == _INTEL_VENDOR and _ARC_DEVICE.match(_text(device / "device")) is not None
            for device in self._root.glob("sys/class/drm/card*/device")
        )


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
