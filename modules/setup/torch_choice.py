"""Which build of PyTorch to install: what the user asked for, else what fits the machine."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from modules.setup.hardware import Adapter, Machine, Nvidia
from modules.setup.process import SetupError

TORCH_VERSION = "2.13.0"
PIN = f"torch=={TORCH_VERSION}"
WHEELS = "https://download.pytorch.org/whl/"
AMD_WHEELS = "https://stable.repo.amd.com/rocm/whl-next/"
CUDA, OLD_CUDA, ROCM = "cu130", "cu126", "rocm7.2"  # what PyTorch 2.13 is published for
CUDA_13_DRIVER = 580  # CUDA 13 needs this driver ...
CUDA_13_CAPABILITY = (7, 5)  # ... and dropped Maxwell, Pascal and Volta cards
RDNA = (
    (r"RX 90[78]\d|R9700", "gfx1201", True),
    (r"RX 90[56]\d", "gfx1200", True),
    (r"RX 79\d\d|W7[89]\d\d", "gfx1100", True),
    (r"RX 7[78]\d\d|W77\d\d", "gfx1101", True),
    (r"RX 7[4-6]\d\d|W7[56]\d\d", "gfx1102", True),
    (r"80[456]0S", "gfx1151", True),  # Ryzen AI Max
    (r"RX 6[89]\d\d|W68\d\d", "gfx1030", False),
    (r"RX 67\d\d", "gfx1031", False),
    (r"RX 66\d\d|W66\d\d", "gfx1032", False),
    (r"RX 6[345]\d\d|W6[345]\d\d", "gfx1034", False),
    (r"RX 5[67]\d\d\b", "gfx1010", False),
    (r"RX 5[35]00", "gfx1012", False),
    (r"8[89]0M", "gfx1150", False),
    (r"7[468]0M", "gfx1103", False),
)
"""By the name of a GPU: the architecture that AMD's packages for Windows have code for, and whether they are installed
without being asked for: for RDNA 3 and 4, and for Ryzen AI Max, as AMD supports them."""
ROCM_ARCHITECTURES = ((9, 0), (9, 4), (9, 5), (10, 3), (11, 0), (11, 5), (12, 0))
"""Of AMD's GPUs, those that PyTorch's build for Linux has code for: gfx900 on, without RX 5000 (gfx1010)."""
INSTEAD = "the CPU (programs that use Vulkan, such as stable-diffusion.cpp, compute on it)"


@dataclass(frozen=True)
class Pin:
    """A build of PyTorch: `local`, which its versions have behind the plus sign, and the index that has it; "" is the
    usual one. `is_extra`: the index comes on top of the usual one."""

    local: str = ""
    index: str = ""
    is_extra: bool = False

    def words(self, requirement: str = PIN) -> tuple[str, ...]:
        """Return the words for `pip install`."""
        if self.is_extra:
            return (requirement, "--extra-index-url", self.index, "--retries", "1")
        return (requirement, "--index-url", self.index) if self.index else (requirement,)


_CPU = Pin("cpu", WHEELS + "cpu", is_extra=True)  # on top, because "2.13.0+cpu" counts as newer than "2.13.0"
_CUDA, _OLD_CUDA, _XPU = (Pin(name, WHEELS + name) for name in (CUDA, OLD_CUDA, "xpu"))
LOCK = {
    ("Linux", "cuda"): Pin(),
    ("Linux", "cuda, Arm"): _CUDA,
    ("Linux", "cuda, old"): _OLD_CUDA,
    ("Linux", "rocm"): Pin(ROCM, WHEELS + ROCM),
    ("Linux", "xpu"): _XPU,
    ("Linux", "cpu"): _CPU,
    ("Windows", "cuda"): _CUDA,
    ("Windows", "cuda, old"): _OLD_CUDA,
    ("Windows", "rocm"): Pin("rocm10.0.0", AMD_WHEELS),
    ("Windows", "xpu"): _XPU,
    ("Windows", "cpu"): _CPU,
    ("Darwin", "mps"): Pin(),
    ("Darwin", "cpu"): Pin(),
}
"""The build for each system and type of device, all of version `TORCH_VERSION`."""


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
    if machine.system == "Windows" and (known := _rdna(adapters)) is not None and known[2]:
        return _rocm(machine)
    if any(adapter.is_arc for adapter in adapters):
        return _xpu(machine)
    return _cpu(machine, next((why for each in adapters if (why := _why_unused(each, machine))), "the CPU"))


def _rdna(adapters: Sequence[Adapter]) -> tuple[Adapter, str, bool] | None:
    """Return the GPU for AMD's packages for Windows, its architecture, and whether it is used without being asked for:
    the first of `RDNA`, which are ordered from the newest; None where there is none."""
    found = (
        (adapter, architecture, is_automatic)
        for pattern, architecture, is_automatic in RDNA
        for adapter in adapters
        if adapter.maker == "AMD" and re.search(rf"\b(?:{pattern})", adapter.name)
    )
    return next(found, None)


def _why_unused(adapter: Adapter, machine: Machine) -> str:
    """Why PyTorch leaves a GPU unused, with what to do or to use instead; nothing for one of no known maker."""
    if adapter.maker == "NVIDIA":
        return f"{adapter}, whose driver does not answer: the CPU. Install NVIDIA's driver, then --reinstall-torch"
    if adapter.maker == "AMD" and machine.system == "Windows":
        if _rdna((adapter,)) is not None:
            return (
                f"{adapter}, which AMD builds PyTorch for and does not support: {INSTEAD}, until --torch rocm "
                "--reinstall-torch installs that build"
            )
        return f"{adapter}, which AMD has no PyTorch for: {INSTEAD}"
    if adapter.maker == "AMD":
        return f"{adapter}, without AMD's compute device /dev/kfd: the CPU. Load the kernel's module amdgpu"
    return f"{adapter}, which is no Arc GPU: {INSTEAD}" if adapter.maker == "Intel" else ""


def _for_nvidia(machine: Machine, nvidia: Nvidia) -> TorchChoice:
    if nvidia.driver < CUDA_13_DRIVER:
        why = f"NVIDIA driver {nvidia.driver}, too old for CUDA 13 (driver {CUDA_13_DRIVER})"
        return _locked(machine, "cuda, old", f"{why}: CUDA 12.6")
    if nvidia.capability is not None and nvidia.capability < CUDA_13_CAPABILITY:
        shown = ".".join(map(str, nvidia.capability))
        return _locked(
            machine, "cuda, old", f"NVIDIA card of compute capability {shown}, too old for CUDA 13: CUDA 12.6"
        )
    is_arm = machine.system == "Linux" and machine.architecture != "x86_64"
    return _locked(machine, "cuda, Arm" if is_arm else "cuda", "NVIDIA card: CUDA 13.0")


def _cuda(machine: Machine) -> TorchChoice:
    """Asked for by name: from NVIDIA's index even on Linux, so that a local CPU wheel cannot take its place."""
    choice = _for_nvidia(machine, machine.nvidia() or Nvidia(CUDA_13_DRIVER, None))
    return choice if "--index-url" in choice.words else TorchChoice(_CUDA.words(), choice.reason)


def _rocm(machine: Machine) -> TorchChoice:
    """Raises `SetupError` for a system, or a GPU on Windows, that there is no build for."""
    if machine.system not in ("Linux", "Windows"):
        raise SetupError(f"PyTorch {TORCH_VERSION} has no ROCm build for {machine.system}: take --torch auto.")
    if machine.system == "Linux":
        return _locked(machine, "rocm", "AMD card: ROCm")
    pin, known = LOCK["Windows", "rocm"], _rdna(machine.adapters())
    cards = [adapter for adapter in machine.adapters() if adapter.maker == "AMD"]
    if known is None and cards:
        raise SetupError(
            f"AMD's PyTorch for Windows has no code for {cards[0]}. Take --torch cpu: {INSTEAD}; or set TORCH_COMMAND "
            "to a pip command for that card."
        )
    card, extra = (known[0], known[1]) if known is not None else ("AMD card", "all")
    return TorchChoice(
        pin.words(f"torch[device-{extra}]=={TORCH_VERSION}+{pin.local}"), f"{card}: AMD's ROCm for Windows"
    )


def _xpu(machine: Machine) -> TorchChoice:
    if machine.system == "Darwin":
        raise SetupError("PyTorch has no XPU build for macOS: take --torch auto.")
    return _locked(machine, "xpu", "Intel card: XPU")


def _mps(machine: Machine) -> TorchChoice:
    if machine.system != "Darwin":
        raise SetupError(f"MPS exists on macOS only, this is {machine.system}: take --torch auto.")
    return _locked(machine, "mps", "macOS: MPS on Apple CPUs")


def _cpu(machine: Machine, reason: str = "the CPU") -> TorchChoice:
    return _locked(machine, "cpu", reason)


def _locked(machine: Machine, device: str, reason: str) -> TorchChoice:
    """Take what `LOCK` has; systems that it does not know are taken for Linux."""
    pin = LOCK.get((machine.system, device)) or LOCK["Linux", device]
    return TorchChoice(pin.words(), reason)


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
