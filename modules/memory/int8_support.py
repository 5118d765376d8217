"""Whether a device multiplies int8 matrices exactly, and faster than the compute dtype: found out by doing it, once.

Every build of PyTorch has `torch._int_mm`. On CPUs with VNNI, AMX or Arm's i8mm it takes a third to a tenth of the time
of a float32 product; on others it is a plain loop, many times slower. What was measured is remembered in a file, by CPU
(or GPU) and PyTorch, so that an image does not depend on how busy the machine was at this start.
"""

from __future__ import annotations

import json
import logging
import platform
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from modules.errors import first_line
from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file
from modules.system.devices import describe, synchronize

log = logging.getLogger(__name__)

SIZES = {"cpu": (1024, 640, 640), "cuda": (4096, 1280, 1280)}
"""Rows, inputs and outputs of the product that is timed, by type of device."""
CHECKED_ROWS = 32
ROUNDS = 5
PAYS_BELOW = 0.8
"""Time of the int8 product alone over the compute dtype's: rounding inputs and scaling sums cost some too."""
WORKS_BELOW = 1.5
"""Where it is asked for: a plain loop takes far more."""


@dataclass(frozen=True)
class Int8Support:
    """`ratio`: time of an int8 product over that in the compute dtype; None where it is wrong or does not run, and
    `problem` says so. `layers`: time of a whole layer over one that is decoded, where that was measured."""

    ratio: float | None
    problem: str = ""
    layers: float | None = None

    @property
    def pays(self) -> bool:
        """Whether layers should multiply in int8."""
        return self.ratio is not None and (self.ratio if self.layers is None else self.layers) < PAYS_BELOW

    @property
    def works(self) -> bool:
        """Whether they may, where it is asked for."""
        return self.ratio is not None and self.ratio < WORKS_BELOW

    @property
    def reason(self) -> str:
        """How long it takes or why it does not work, for people."""
        if self.ratio is None:
            return self.problem
        return f"an int8 product takes {self.ratio:.2f} of the time of one in the compute dtype"


def int8_support(device: torch.device, dtype: torch.dtype, remembered: Path | None = None) -> Int8Support:
    """Return what `device` supports, compared with a product in `dtype`. `remembered` is the file of earlier answers
    (None: none)."""
    key = f"{name_of(device)}, PyTorch {torch.__version__}, {str(dtype).removeprefix('torch.')}"
    known = read_answers(remembered).get(key)
    if isinstance(known, dict) and isinstance(known.get("ratio"), int | float | None):
        return Int8Support(known["ratio"], str(known.get("problem", "")))
    found = measure(device, dtype)
    log.info("int8 products on %s: %s", key, found.reason)
    remember_answer(remembered, key, {"ratio": found.ratio, "problem": found.problem}, "What int8 products take")
    return found


@torch.inference_mode()
def measure(device: torch.device, dtype: torch.dtype) -> Int8Support:
    """Multiply matrices of extreme numbers, compare with exact sums, and take the times."""
    if device.type not in SIZES:
        return Int8Support(None, f"PyTorch has no int8 product on {device.type}")
    rows, inputs, outputs = SIZES[device.type]
    generator = torch.Generator().manual_seed(0)
    left = torch.randint(-127, 128, (rows, inputs), generator=generator, dtype=torch.int8)
    right = torch.randint(-127, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
    left[:2], right[:2] = torch.tensor([[127], [-127]]), torch.tensor([[127], [-127]])  # what 16-bit sums cannot hold
    expected = (left[:CHECKED_ROWS].double() @ right.t().double()).to(torch.int32)
    left, right = left.to(device), right.to(device)
    try:
        sums = torch._int_mm(left[:CHECKED_ROWS], right.t())
        if not torch.equal(sums.cpu(), expected):
            return Int8Support(None, "this build of PyTorch multiplies int8 matrices wrongly here")
        return Int8Support(_ratio(left, right, dtype))
    except (RuntimeError, NotImplementedError, TypeError) as error:  # how builds without the kernel say so
        return Int8Support(None, f"int8 products do not work here: {first_line(error)}")


def _ratio(left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype) -> float:
    """The shortest times, taken in turns: what else the machine does only ever adds to them."""
    wide, weight = left.to(dtype), right.to(dtype)

    def seconds(work: Any) -> float:
        began = time.perf_counter()
        work()
        synchronize(left.device)
        return time.perf_counter() - began

    narrow, plain = [], []
    for _ in range(ROUNDS):
        narrow.append(seconds(lambda: torch._int_mm(left, right.t())))
        plain.append(seconds(lambda: F.linear(wide, weight)))
    return round(min(narrow[1:]) / max(min(plain[1:]), 1e-9), 3)


def name_of(device: torch.device) -> str:
    """Name a device for what is remembered of it: a CPU with its instructions."""
    if device.type != "cpu":
        return describe(device)
    return f"{cpu_name()}, {torch.backends.cpu.get_cpu_capability()}"


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name that the system gives the CPU."""
    try:
        lines = info.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # other systems than Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "CPU part"))]
    return names[0] if names else platform.processor() or platform.machine()


def read_answers(path: Path | None) -> dict[str, Any]:
    """Read earlier measurements, by machine; empty without a file."""
    try:
        found = read_json_file(path) if path is not None else {}
    except (OSError, ValueError):  # not there yet, or cut off: it is measured again
        return {}
    return found if isinstance(found, dict) else {}


def remember_answer(path: Path | None, key: str, answer: Mapping[str, Any], what: str) -> None:
    """Add an answer to the file of `read_answers`, or change it. `what` is it about, for the log where the file cannot
    be written: then it is measured again at the next start."""
    if path is None:
        return
    try:
        write_atomic(path, json.dumps({**read_answers(path), key: answer}, indent=1).encode())
    except OSError as error:
        log.warning("%s could not be remembered: %s", what, error)
