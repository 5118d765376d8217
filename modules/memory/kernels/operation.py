"""A registry of operations: each has backends, in order of preference, and PyTorch's own way where none of them runs.

A backend says what it needs before anything is imported; its `load` compiles it and compares it with PyTorch's way. The
first that fits and loads computes the operation on that device.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

import torch

from modules.system.devices import capability_of

log = logging.getLogger(__name__)

Work = TypeVar("Work")


@dataclass(frozen=True)
class Backend(Generic[Work]):
    """One way to compute an operation. `problem`: why it cannot run on a device, with what to do; None if it can. It
    imports nothing large. `load`: the work, compiled and checked on that device; raises where that fails."""

    name: str
    problem: Callable[[torch.device], str | None]
    load: Callable[[torch.device], Work]


@dataclass(frozen=True, eq=False)
class Operation(Generic[Work]):
    """An operation in words for people, and the backends that compute it."""

    name: str
    backends: tuple[Backend[Work], ...]

    def on(self, device: torch.device) -> Work | None:
        """Return what computes the operation on `device`; None: PyTorch's own way."""
        work: Work | None = _chosen(self, device)[0]
        return work

    def problem(self, device: torch.device) -> str | None:
        """Say why PyTorch computes the operation on `device`; None where a backend does. Compiles the backend."""
        work, problems = _chosen(self, device)
        return None if work is not None else "; ".join(problems)


@cache
def _chosen(operation: Operation[Any], device: torch.device) -> tuple[Any, tuple[str, ...]]:
    problems = list[str]()
    for backend in operation.backends:
        problem = backend.problem(device)
        if problem is None:
            try:
                return backend.load(device), ()
            except Exception as error:  # compilers raise errors of many types; a backend is only ever an option
                log.exception("%s by %s does not work on %s; PyTorch does it", operation.name, backend.name, device)
                problem = f"{backend.name} does not work here ({type(error).__name__}, see the log)"
        problems.append(problem)
    return None, tuple(problems)


CAPABILITY = (7, 5)
"""Of the oldest NVIDIA GPUs that Triton compiles for."""


def triton_problem(device: torch.device) -> str | None:
    """Say why Triton compiles nothing for `device`, with what to do; None where it does. Imports nothing."""
    if device.type != "cuda":
        return "kernels in Triton need an NVIDIA or AMD GPU"
    if torch.version.cuda is None and torch.version.hip is None:
        return "this PyTorch was built without CUDA"
    if find_spec("triton") is None:
        return "Triton is not installed (on Windows: pip install triton-windows)"
    if torch.version.hip is None and (capability := capability_of(device) or CAPABILITY) < CAPABILITY:
        return f"Triton needs a GPU of compute capability 7.5; this one has {capability[0]}.{capability[1]}"
    return None
