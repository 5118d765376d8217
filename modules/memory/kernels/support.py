"""Whether kernels can be compiled here: by numba, whose wheel brings its own compiler (LLVM).

The launcher installs numba on CPUs with AVX512 (requirements-kernels.txt). Without it PyTorch computes everything. A
kernel is compiled at its first use, in seconds, and read from a folder of the cache afterwards.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F

from modules.memory.int8_support import cpu_name, read_answers, remember_answer

log = logging.getLogger(__name__)

CACHE_VARIABLE = "NUMBA_CACHE_DIR"
ATTENTION_NEEDS = ("avx512f", "avx512bw", "avx512vnni")
"""Features of the CPU, by LLVM's names: products of 8-bit integers in vectors of 64 bytes."""
TIMED = (4096, 64)
"""Tokens and dimensions of the head whose attention is timed and checked: as in an image of 512 px, where attention
takes a third of a step."""
ROUNDS = 3
PAYS_BELOW = 0.8
MAX_ERROR = 0.03
"""Relative, of the output for made-up inputs; about 0.01 is what rounding to 8 bits costs."""


@dataclass(frozen=True)
class KernelSupport:
    """`ratio`: time of the int8 attention kernel over PyTorch's attention in float32; None where there is no kernel,
    and `problem` says why."""

    ratio: float | None
    problem: str = ""

    @property
    def pays(self) -> bool:
        """Whether attention should be computed by it."""
        return self.ratio is not None and self.ratio < PAYS_BELOW


def keep_kernels_in(folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
    """Where compiled kernels are kept, unless the environment says so already. To be called before the first use."""
    environment.setdefault(CACHE_VARIABLE, str(folder))


def numba_problem() -> str | None:
    """Why nothing can be compiled by numba, with what to do; None where it can. Imports nothing."""
    return (
        None
        if find_spec("numba") is not None
        else "numba is not installed (.venv: pip install -r requirements-kernels.txt)"
    )


@cache
def attention_problem() -> str | None:
    """Why attention cannot be computed in int8 here; None if it can. Imports numba where it is installed."""
    if (problem := numba_problem()) is not None:
        return problem
    try:
        features = import_module("llvmlite.binding").get_host_cpu_features()
        import_module("numba")
    except (ImportError, OSError, RuntimeError) as error:  # a numba that does not fit this Python or numpy
        return f"numba does not work here ({error}); install a newer one, or remove it"
    missing = [name for name in ATTENTION_NEEDS if not features.get(name)]
    return f"this CPU has no {', '.join(missing)}" if missing else None


def attention_support(remembered: Path | None = None) -> KernelSupport:
    """Whether int8 attention pays on this CPU. `remembered` is the file of earlier answers (None: none)."""
    if (problem := attention_problem()) is not None:  # not remembered: numba may be installed later
        return KernelSupport(None, problem)
    key = f"{cpu_name()}, PyTorch {torch.__version__}, numba {version('numba')}"
    known = read_answers(remembered).get(key)
    if isinstance(known, dict) and isinstance(known.get("ratio"), int | float | None):
        return KernelSupport(known["ratio"], str(known.get("problem", "")))
    found = measure_attention()
    log.info("Attention in int8 on %s: %s", key, found.problem or f"{found.ratio} of the time of PyTorch's")
    remember_answer(remembered, key, {"ratio": found.ratio, "problem": found.problem}, "What int8 attention takes")
    return found


@torch.inference_mode()
def measure_attention() -> KernelSupport:
    """Compare the kernel with PyTorch's attention, and take the shortest times of both, in turns. The first use
    compiles it."""
    from modules.memory.kernels.attention import int8_attention

    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, torch.get_num_threads(), *TIMED, generator=generator) for _ in range(3))
    try:
        made = int8_attention(query, key, value)
    except Exception as error:  # the compiler raises errors of many types; the kernel is only ever an option
        log.exception("The attention kernel could not be compiled")
        return KernelSupport(None, f"the kernel cannot be compiled ({type(error).__name__})")
    true = F.scaled_dot_product_attention(query, key, value)
    lost = float((made - true).norm() / true.norm())
    if not lost < MAX_ERROR:
        return KernelSupport(None, f"the compiled kernel computes wrongly here (relative error {lost:.3f})")

    def seconds(work: Callable[..., Any]) -> float:
        began = time.perf_counter()
        work(query, key, value)
        return time.perf_counter() - began

    ours, plain = [], []
    for _ in range(ROUNDS):
        ours.append(seconds(int8_attention))
        plain.append(seconds(F.scaled_dot_product_attention))
    return KernelSupport(round(min(ours) / max(min(plain), 1e-9), 3))
