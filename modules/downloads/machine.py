"""Means of this machine to compute with, asked without PyTorch: the server holds none."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

from modules.downloads.fitting import Machine
from modules.system.cores import cores_here

ASK_TIMEOUT_S = 10
UNKNOWN_GB = 8.0


@cache
def machine_here() -> Machine:
    """The GPU with the most memory, or the CPU; Apple's GPUs use the main memory."""
    main_gb = _main_gb()
    gpu_gb = max(_nvidia_gb(), _amd_gb())
    is_apple = platform.system() == "Darwin" and platform.machine() == "arm64"
    return Machine(gpu_gb or main_gb, bool(gpu_gb) or is_apple, cores_here().physical)


def _main_gb() -> float:
    if not hasattr(os, "sysconf"):  # Windows
        return UNKNOWN_GB
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


def _nvidia_gb() -> float:
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0.0
    words = [program, "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=ASK_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return 0.0  # a driver that does not answer computes nothing either
    return max(
        (int(line) * 1.048576e-3 for line in re.findall(r"^\s*(\d+)\s*$", done.stdout, re.MULTILINE)), default=0.0
    )


def _amd_gb(root: Path = Path("/sys/class/drm")) -> float:
    texts = [file.read_text(encoding="ascii").strip() for file in root.glob("card*/device/mem_info_vram_total")]
    return max((int(text) / 1e9 for text in texts if text.isdigit()), default=0.0)
