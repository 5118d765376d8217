"""How near the numbers of passing tests come to their bounds: `pytest --bounds FILE` writes each that comes near.

A bound that holds on one CPU by two per cent fails on another. Other CPUs are had with `ATEN_CPU_CAPABILITY=avx2` or
`default`, `ONEDNN_MAX_CPU_ISA=AVX2` and `OMP_NUM_THREADS`; run in one process (`-n 0`) and with a
`PYTHONPYCACHEPREFIX` of its own, because assertions are compiled in another way:

    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 PYTHONPYCACHEPREFIX=/tmp/bounds \\
        python -m pytest tests/sampling -n 0 --bounds near.txt -o enable_assertion_pass_hook=true
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

NEAR = 1 / 3
"""Of its bound: what comes nearer is written."""
_NUMBER = r"(-?\d+(?:\.\d*)?(?:e[+-]?\d+)?)"
_COMPARED = re.compile(rf"(?<![\w.]){_NUMBER} (<=?|>=?) {_NUMBER}(?![\w.])")
_APPROXIMATE = re.compile(rf"(?<![\w.]){_NUMBER} == {_NUMBER} ± {_NUMBER}")


class Bounds:
    """A plugin that reads the explanations of passing assertions and the tensors that are compared."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.test = ""
        self.undo = pytest.MonkeyPatch()
        for owner, name in ((torch.testing, "assert_close"), (torch, "allclose")):
            self.undo.setattr(owner, name, self._measured(getattr(owner, name)))

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.test = item.nodeid

    def pytest_assertion_pass(self, lineno: int, orig: str, expl: str) -> None:
        first = expl.partition("\n")[0]
        for one, sign, other in _COMPARED.findall(first):
            smaller, larger = sorted((abs(float(one)), abs(float(other))))
            if 0.9 < smaller < larger <= 1:  # a cosine: what counts is what is missing from one
                smaller, larger = 1 - larger, 1 - smaller
            # Only measured fractions: a count that equals its bound is no rounding.
            if larger and not (one + other).replace("-", "").isdigit() and (smaller < 0.1 or sign[0] == ">"):
                self._write(smaller / larger, f"line {lineno}: {first}")
        for found, wanted, most in _APPROXIMATE.findall(first):
            if float(most):
                self._write(abs(float(found) - float(wanted)) / float(most), f"line {lineno}: {first}")

    def _measured(self, compare: Callable[..., Any]) -> Callable[..., Any]:
        def comparing(found: Any, wanted: Any, *rest: Any, **options: Any) -> Any:
            result = compare(found, wanted, *rest, **options)
            if isinstance(found, torch.Tensor) and isinstance(wanted, torch.Tensor) and result is not False:
                rtol, atol = options.get("rtol"), options.get("atol")
                rtol, atol = (1.3e-6 if rtol is None else rtol), (1e-5 if atol is None else atol)
                least = atol + rtol * wanted.detach().double().abs()
                apart = (found.detach().double() - wanted.detach().double()).abs()
                ratio = (apart / least).nan_to_num(0.0)
                if ratio.numel():
                    self._write(float(ratio.max()), f"{compare.__name__} rtol {rtol} atol {atol}")
            return result

        return comparing

    def _write(self, ratio: float, said: str) -> None:
        if NEAR < ratio <= 1:
            with self.file.open("a") as file:
                file.write(f"{ratio:.2f} {self.test}: {said}\n")

    def pytest_unconfigure(self) -> None:
        self.undo.undo()
