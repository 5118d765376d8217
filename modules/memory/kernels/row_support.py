"""Whether rows are encoded to 8 bits by the compiled kernel of `modules.memory.kernels.row_encoding`.

It needs llvmlite, which numba brings, and takes a third of PyTorch's time on one core. Its start takes 0.04 s and
70 MB, of which 64 are pages of the library's file; so a process starts it only when it has encoded so much with PyTorch
that it would have paid.
"""

from __future__ import annotations

import platform
import threading
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from modules.memory.kernels.operation import Backend, Operation

RowEncoder = Callable[[Tensor, Tensor, Tensor], bool]
"""See `modules.memory.kernels.row_encoding.encode_rows_into`."""

PAYS_FROM = 1 << 26
"""Weights that a process encodes with PyTorch first. The kernel would have saved 0.7 ns for each of them in e4m3, 0.35
in int8: about what its start takes."""
MOST_THREADS = 2
"""The kernel runs on one core; where PyTorch may use more than these, it is as quick. Loading has a thread a core."""
CPU = torch.device("cpu")
NEEDS = ("f16c", "fma")
"""Of an x86 CPU, by LLVM's names; without, LLVM would call functions that the process may not have."""


class Count:
    """How many numbers this process has had such work done for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = 0

    def add(self, numbers: int) -> int:
        """How many there were before."""
        with self._lock:
            before, self._numbers = self._numbers, self._numbers + numbers
            return before


_COUNT = Count()
_STARTING = threading.Lock()


def row_encoder(device: torch.device, source: torch.dtype, target: torch.dtype, weights: int) -> RowEncoder | None:
    """Return what encodes so many weights of dtype `source` as rows of `target`; None if PyTorch should. Nothing is
    imported before `PAYS_FROM` weights have been asked for."""
    if device.type != "cpu" or torch.get_num_threads() > MOST_THREADS or _COUNT.add(weights) < PAYS_FROM:
        return None
    with _STARTING:  # LLVM is started once
        return _encoding(source, target).on(device)


@cache
def llvm_problem(device: torch.device = CPU) -> str | None:
    """Return why LLVM compiles nothing for `device`; None where it does. Imports llvmlite where it is installed."""
    if device.type != "cpu":
        return "kernels compiled by LLVM are for CPUs"
    if find_spec("llvmlite") is None:
        return "numba is not installed (.venv: pip install -r requirements-kernels.txt)"
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64", "aarch64", "arm64"):
        return f"there is no kernel for {machine}"
    try:
        features = import_module("llvmlite.binding").get_host_cpu_features()
    except (ImportError, OSError, RuntimeError) as error:
        return f"llvmlite does not work here ({error}); install a newer numba, or remove it"
    missing = [name for name in NEEDS if not features.get(name)] if machine in ("x86_64", "amd64") else []
    return f"this CPU has no {', '.join(missing)}" if missing else None


@cache
def _encoding(source: torch.dtype, target: torch.dtype) -> Operation[RowEncoder | None]:
    """Return the operation for a pair of dtypes: each is compiled by itself."""

    def load(_: torch.device) -> RowEncoder | None:
        from modules.memory.kernels.row_encoding import row_encoder_of

        return row_encoder_of(source, target)

    return Operation(f"encoding rows of {source} as {target}", (Backend("LLVM", llvm_problem, load),))


def what_encodes_rows(device: torch.device = CPU) -> str:
    """Return for people: the kernel, which is compiled to know that it can be, or PyTorch and why. Imports llvmlite."""
    problem = _encoding(torch.float16, torch.int8).problem(device)
    if problem is not None:
        return f"encoded by PyTorch, because {problem}"
    only = " and only while loading, as more than two threads compute" if torch.get_num_threads() > MOST_THREADS else ""
    return f"encoded by a compiled kernel, after the first {PAYS_FROM / 1e6:.0f} million weights{only}"
