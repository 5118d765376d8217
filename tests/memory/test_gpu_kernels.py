"""Kernels in Triton, run by its interpreter on the CPU, and the registry that chooses them.

The interpreter cuts float32 to bfloat16 where a GPU rounds, so that scales are tried with the other dtypes here; on a
GPU `WeightDecoder` compares every code in every dtype before the kernel is used.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from modules.memory.kernels.decoding import DECODING
from modules.memory.kernels.gpu_products import INT8_PRODUCT, ROUNDING
from modules.memory.kernels.operation import Backend, Operation, triton_problem

ROOT = Path(__file__).parents[2]
CPU = torch.device("cpu")

INTERPRETED = """
import json, torch
from modules.memory.formats.decoding import decode_narrow
from modules.memory.formats.format import by_row
from modules.memory.int8_matmul import SMALLEST_PEAK, quantized, row_peaks
from modules.memory.kernels import triton_decoding, triton_product
from modules.memory.kernels.decoding import CODES

generator, wrong = torch.Generator().manual_seed(0), []
SHAPES = [(40, 24), (24, 3, 3, 3), (3, 24, 1, 1), (7,), (17, 16, 3, 3), (5, 2500), (9, 1040)]

def codes(shape, dtype):
    positive = torch.randint(0, CODES[dtype], shape, generator=generator)
    return (positive + 0x80 * torch.randint(0, 2, shape, generator=generator)).to(torch.uint8).view(dtype)

for stored in CODES:
    for scaled in (False, True):
        for dtype in (torch.float16, torch.float32) if scaled else (torch.float16, torch.float32, torch.bfloat16):
            sources, offset = [], 0
            for shape in SHAPES:
                data = codes(shape, stored)
                if shape[0] == 17:
                    data = data.contiguous(memory_format=torch.channels_last)
                scale = torch.rand(shape[0], generator=generator) + 0.1 if scaled else None
                sources.append((data, scale, offset))
                offset += -(-data.numel() // 128) * 128
            memory = torch.empty(offset, dtype=dtype)
            triton_decoding.block_decoder(sources)(memory)
            for data, scale, at in sources:
                factor = None if scale is None else by_row(scale, data.ndim)
                expected = decode_narrow(data.contiguous(), factor, torch.empty(data.shape, dtype=dtype))
                alone = torch.empty_like(data, dtype=dtype)
                triton_decoding.decode_weight(data, scale, alone)
                together = memory.as_strided(data.shape, data.stride(), at)
                found = torch.equal(alone, expected) and torch.equal(together, expected)
                if not (found and triton_decoding.fits(data, scale)):
                    wrong.append(f"{stored} {'scaled' if scaled else 'plain'} to {dtype}: {tuple(data.shape)}")

for dtype in (torch.float16, torch.float32, torch.bfloat16):
    rows = (torch.randn(13, 72, generator=generator) * torch.randn(13, 1, generator=generator).exp()).to(dtype)
    rows[3] = 0
    data, factors = torch.empty(13, 72, dtype=torch.int8), torch.empty(13, 1)
    triton_product.round_rows(rows, data, factors, 127.0, SMALLEST_PEAK)
    peaks = row_peaks(rows)
    if not (torch.equal(data.float(), quantized(rows, peaks)) and torch.equal(factors, peaks * (1 / 127.0))):
        wrong.append(f"rounding {dtype}")

left, weight = (torch.randint(-127, 128, (size, 72), generator=generator, dtype=torch.int8) for size in (37, 50))
scale, bias = torch.rand(50, generator=generator), torch.randn(50, generator=generator)
for factors in (torch.rand(37, 1, generator=generator), None):
    for added in (bias, None):
        out = torch.empty(37, 50)
        triton_product.int8_product(left, weight, factors, scale, added, out, (32, 32, 32, 4, 2))
        true = (left.double() @ weight.double().t()) * (1.0 if factors is None else factors.double()) * scale
        true = true if added is None else true + added
        if not torch.allclose(out.double(), true, rtol=1e-5, atol=1e-2):
            wrong.append(f"int8 product, factors {factors is not None}, bias {added is not None}")
print(json.dumps(wrong))
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton (pip install triton)")
def test_kernels_compute_what_pytorch_does_bit_for_bit() -> None:
    """In a process of its own: Triton asks for its interpreter when kernels are made."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", INTERPRETED], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_without_a_gpu_pytorch_computes_and_says_why() -> None:
    for operation in (DECODING, ROUNDING, INT8_PRODUCT):
        assert operation.on(CPU) is None
        assert operation.problem(CPU) == "kernels in Triton need an NVIDIA or AMD GPU"
    assert triton_problem(torch.device("meta")) is not None


def test_the_first_backend_that_fits_and_loads_computes(caplog: pytest.LogCaptureFixture) -> None:
    asked = list[str]()

    def backend(name: str, problem: str | None = None, error: Exception | None = None) -> Backend[str]:
        def load(device: torch.device) -> str:
            asked.append(name)
            if error is not None:
                raise error
            return name

        return Backend(name, lambda device: problem, load)

    chosen = Operation("a sum", (backend("old", "too old"), backend("broken", error=OSError("x")), backend("good")))
    assert chosen.on(CPU) == "good" and chosen.on(CPU) == "good" and chosen.problem(CPU) is None
    assert asked == ["broken", "good"], "each is loaded once"
    assert "a sum by broken does not work on cpu; PyTorch does it" in caplog.text
    nothing = Operation("a sum", (backend("old", "too old"), backend("broken", error=OSError("x"))))
    assert nothing.on(CPU) is None
    assert nothing.problem(CPU) == "too old; broken does not work here (OSError, see the log)"
