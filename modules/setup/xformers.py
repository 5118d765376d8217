"""xformers for --xformers: its wheel where one fits the PyTorch that is installed, and the reason where none does."""

from modules.setup.hardware import Machine
from modules.setup.pip import Pip
from modules.setup.process import Run, Say, SetupError
from modules.setup.torch_choice import CUDA, WHEELS

XFORMERS_PIN = "xformers==0.0.35"  # the newest of November 2026; it asks for PyTorch 2.10 or newer
WITHOUT = "without it PyTorch's own attention is used, which is as fast on most cards"
TRY = """
import torch
from xformers.ops import memory_efficient_attention as attend
rows = torch.zeros(1, 16, 1, 64, dtype=torch.float16, device="cuda")
attend(rows, rows, rows)
"""


def cuda_build(torch_version: str, machine: Machine) -> str:
    """The CUDA build of an installed PyTorch, such as "cu130"; "" where it is none that xformers is made for."""
    if machine.architecture.lower() not in ("x86_64", "amd64") or machine.system not in ("Linux", "Windows"):
        return ""
    _, _, local = torch_version.partition("+")
    if local.startswith("cu"):
        return local
    # The package index's own build for Linux names no CUDA, and is for the newest one.
    return CUDA if not local and machine.system == "Linux" and machine.nvidia() is not None else ""


def install_xformers(torch_version: str, machine: Machine, pip: Pip, run: Run, tell: Say) -> None:
    """Install the wheel and try it once. Whatever speaks against it is said, and the start goes on without it."""
    build = cuda_build(torch_version, machine)
    if not build:
        tell(
            f"--xformers: no wheel fits PyTorch {torch_version} on this {machine.system}; xformers is made for NVIDIA "
            f"cards on Linux and Windows ({WITHOUT})"
        )
        return
    tell(f"installing {XFORMERS_PIN} for {build}")
    try:
        pip.install(f"installing {XFORMERS_PIN}", ("--no-deps", XFORMERS_PIN, "--index-url", WHEELS + build))
    except SetupError as error:
        tell(f"--xformers: {error} The start goes on; {WITHOUT}. --reinstall-xformers tries again.")
        return
    tried = run([str(pip.python), "-c", TRY])
    if not tried.ok:
        said = (tried.output.strip().splitlines() or ["it ended without a word"])[-1]
        pip.uninstall("xformers")
        tell(f"--xformers: its wheel does not work with PyTorch {torch_version} ({said}) and was removed; {WITHOUT}")
