"""Which build of PyTorch to install: what the user asked for, else what fits the machine."""

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass

from modules.setup.hardware import Adapter, Machine, Nvidia
from modules.setup.process import SetupError

TORCH_VERSION = "2.13.0"
PIN = f"torch=={TORCH_VERSION}"
WHEELS = "https://download.pytorch.org/whl/"
CUDA, OLD_CUDA, ROCM = "cu130", "cu126", "rocm7.2"  # what PyTorch 2.13 is published for
CUDA_13_DRIVER = 580  # CUDA 13 needs this driver ...
CUDA_13_CAPABILITY = (7, 5)  # ... and dropped Maxwell, Pascal and Volta cards
ROCM_WINDOWS = "https://repo.radeon.com/rocm/windows/rocm-rel-7.2.1/"
ROCM_WINDOWS_TORCH = "2.9.1+rocm7.2.1"
ROCM_WINDOWS_PYTHON = (3, 12)
ROCM_WINDOWS_FILES = (
    *("rocm_sdk_core-7.2.1-py3-none-win_amd64.whl", "rocm_sdk_libraries_custom-7.2.1-py3-none-win_amd64.whl"),
    *("rocm-7.2.1.tar.gz", f"torch-{ROCM_WINDOWS_TORCH.replace('+', '%2B')}-cp312-cp312-win_amd64.whl"),
)
"""AMD's own packages for Windows, an older PyTorch than the one for other machines."""
_RDNA_3_AND_4 = re.compile(r"\bRX [79]\d{3}|\bW7\d{3}\b|\bR9700\b|\b80[56]0S\b")
"""In names of GPUs that those packages compute on: Radeon RX 7000 and 9000, PRO W7000 and R9700, Ryzen AI Max."""
ROCM_ARCHITECTURES = ((9, 0), (9, 4), (9, 5), (10, 3), (11, 0), (11, 5), (12, 0))
"""Of AMD's GPUs, those that PyTorch's build for Linux has code for: gfx900 on, without RX 5000 (gfx1010)."""
INSTEAD = "the CPU (programs that use Vulkan, such as stable-diffusion.cpp, compute on it)"


@dataclass(frozen=True)
class TorchRequest:
    """Request for a PyTorch: --torch, TORCH_COMMAND, TORCH_INDEX_URL. The command beats the index, both beat the
    build."""

    build: str = "auto"
    command: str = ""
    index_url: str = ""

    @classmethod
    def of(cls, build: str, environ: Mapping[str, str]) -> "TorchRequest":
        return cls(build, environ.get("TORCH_COMMAND", "").strip(), environ.get("TORCH_INDEX_URL", "").strip())

    @property
    def is_auto(self) -> bool:
        return self == TorchRequest()

    def is_met_by(self, version: str | None) -> bool:
        """Whether an installed version (None: not installed) is certainly what is asked for."""
        base, _, local = (version or "").partition("+")
        if base != TORCH_VERSION or self.command or self.index_url:
            return False
        return self.build == "auto" or (bool(local) and local.startswith(_LOCAL_VERSIONS[self.build]))

    def as_dict(self) -> dict[str, str]:
        return asdict(self)


# How the versions of a build's builds begin after the plus sign; Apple's have none, so they are never recognized.
_LOCAL_VERSIONS = {"cpu": "cpu", "cuda": "cu", "rocm": "rocm", "xpu": "xpu", "mps": "mps"}


@dataclass(frozen=True)
class TorchChoice:
    """The words for `pip install`, and the reason in words for the user."""

    words: tuple[str, ...]
    reason: str


def choose_torch(request: TorchRequest, machine: Machine) -> TorchChoice:
    """Apply the rules in order: TORCH_COMMAND, TORCH_INDEX_URL, --torch, then what the machine has.

    Raises `SetupError` for a command that is not pip's and for builds that do not exist for this system.
    """
    if request.command:
        return TorchChoice(_command_words(request.command), "TORCH_COMMAND")
    if request.index_url:
        return TorchChoice((PIN, "--index-url", request.index_url), f"TORCH_INDEX_URL {request.index_url}")
    if request.build != "auto":
        return _BUILDS[request.build](machine)
    return _choose_for(machine)


def _choose_for(machine: Machine) -> TorchChoice:
    if machine.has_local_wheel(PIN):
        return TorchChoice((PIN,), "pip has a build of it in a local folder")
    return choice_by_hardware(machine)


def choice_by_hardware(machine: Machine) -> TorchChoice:
    """Choose the build for what the machine has, or the CPU, and say why."""
    if machine.system == "Darwin":
        return _mps(machine)
    if (nvidia := machine.nvidia()) is not None:
        return _for_nvidia(machine, nvidia)
    adapters = machine.adapters()
    if machine.has_amd():
        architecture = machine.amd_architecture()
        if architecture is None or architecture in ROCM_ARCHITECTURES:
            return _rocm(machine)
        shown = f"gfx{architecture[0]}{architecture[1]}x"
        return _cpu(machine, f"AMD GPU of architecture {shown}, which PyTorch has no code for: {INSTEAD}")
    if any(adapter.is_arc for adapter in adapters):
        return _xpu(machine)
    return _cpu(machine, next((why for each in adapters if (why := _why_unused(each, machine))), "the CPU"))


def _why_unused(adapter: Adapter, machine: Machine) -> str:
    """Why PyTorch leaves a GPU unused, with what to do or to use instead; nothing for one of no known maker."""
    if adapter.maker == "NVIDIA":
        return f"{adapter}, whose driver does not answer: the CPU. Install NVIDIA's driver, then --reinstall-torch"
    if adapter.maker == "AMD" and machine.system == "Windows":
        if _RDNA_3_AND_4.search(adapter.name):
            return (
                f"{adapter}: the CPU, until --torch rocm --reinstall-torch installs AMD's PyTorch {ROCM_WINDOWS_TORCH}"
            )
        return f"{adapter}, older than RDNA 3, or in a CPU: {INSTEAD}"
    if adapter.maker == "AMD":
        return f"{adapter}, without AMD's compute device /dev/kfd: the CPU. Load the kernel's module amdgpu"
    return f"{adapter}, which is no Arc card: {INSTEAD}" if adapter.maker == "Intel" else ""


def _for_nvidia(machine: Machine, nvidia: Nvidia) -> TorchChoice:
    if nvidia.driver < CUDA_13_DRIVER:
        why = f"NVIDIA driver {nvidia.driver}, too old for CUDA 13 (driver {CUDA_13_DRIVER})"
        return _from_index(OLD_CUDA, f"{why}: CUDA 12.6")
    if nvidia.capability is not None and nvidia.capability < CUDA_13_CAPABILITY:
        shown = ".".join(map(str, nvidia.capability))
        return _from_index(OLD_CUDA, f"NVIDIA card of compute capability {shown}, too old for CUDA 13: CUDA 12.6")
    if machine.system == "Linux" and machine.architecture == "x86_64":
        return TorchChoice((PIN,), "NVIDIA card: CUDA 13.0")  # the default package for this system
    return _from_index(CUDA, "NVIDIA card: CUDA 13.0")


def _cuda(machine: Machine) -> TorchChoice:
    """Asked for by name: from NVIDIA's index even on Linux, so that a local CPU wheel cannot take its place."""
    choice = _for_nvidia(machine, machine.nvidia() or Nvidia(CUDA_13_DRIVER, None))
    return choice if "--index-url" in choice.words else _from_index(CUDA, choice.reason)


def _rocm(machine: Machine) -> TorchChoice:
    if machine.system == "Windows":
        return _rocm_for_windows(machine)
    if machine.system != "Linux":
        raise SetupError(f"PyTorch {TORCH_VERSION} has no ROCm build for {machine.system}: take --torch auto.")
    return _from_index(ROCM, "AMD card: ROCm")


def _rocm_for_windows(machine: Machine) -> TorchChoice:
    """AMD's own packages. Raises `SetupError` for a Python, or a GPU, that they are not for."""
    if machine.python != ROCM_WINDOWS_PYTHON:
        wanted, here = (".".join(map(str, version)) for version in (ROCM_WINDOWS_PYTHON, machine.python))
        raise SetupError(
            f"AMD's PyTorch for Windows is for Python {wanted}, this is {here}: install Python {wanted}, delete the "
            "folder .venv and start again, take --torch cpu, or set TORCH_COMMAND to another pip command."
        )
    cards = [adapter for adapter in machine.adapters() if adapter.maker == "AMD"]
    if cards and not any(_RDNA_3_AND_4.search(card.name) for card in cards):
        raise SetupError(
            f"AMD's PyTorch for Windows computes on RDNA 3 and 4 (Radeon RX 7000 and 9000), not on {cards[0]}. Take "
            f"--torch cpu: {INSTEAD}; or set TORCH_COMMAND to a pip command for that card."
        )
    return TorchChoice(tuple(ROCM_WINDOWS + name for name in ROCM_WINDOWS_FILES), "AMD card: AMD's ROCm for Windows")


def _xpu(machine: Machine) -> TorchChoice:
    if machine.system == "Darwin":
        raise SetupError("PyTorch has no XPU build for macOS: take --torch auto.")
    return _from_index("xpu", "Intel card: XPU")


def _mps(machine: Machine) -> TorchChoice:
    if machine.system != "Darwin":
        raise SetupError(f"MPS exists on macOS only, this is {machine.system}: take --torch auto.")
    return TorchChoice((PIN,), "macOS: MPS on Apple CPUs")


def _cpu(machine: Machine, reason: str = "the CPU") -> TorchChoice:
    """The CPU build. Its index comes on top of the usual one: "2.13.0+cpu" counts as newer than "2.13.0"."""
    if machine.system == "Darwin":
        return TorchChoice((PIN,), reason)
    return TorchChoice((PIN, "--extra-index-url", WHEELS + "cpu", "--retries", "1"), reason)


def _from_index(name: str, reason: str) -> TorchChoice:
    return TorchChoice((PIN, "--index-url", WHEELS + name), reason)


_BUILDS: dict[str, Callable[[Machine], TorchChoice]] = {
    "cuda": _cuda,
    "rocm": _rocm,
    "xpu": _xpu,
    "cpu": _cpu,
    "mps": _mps,
}


def _command_words(command: str) -> tuple[str, ...]:
    """The words after "pip install" of a TORCH_COMMAND such as "pip install torch==2.13.0 --index-url ..."."""
    words = shlex.split(command)
    if len(words) > 1 and words[1] == "-m":
        words = words[2:]
    if len(words) < 3 or words[0] not in ("pip", "pip3") or words[1] != "install":
        raise SetupError(f"TORCH_COMMAND must be a pip command such as 'pip install {PIN}', not {command!r}.")
    return tuple(words[2:])
