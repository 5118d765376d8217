"""What GPUs people have can do, one row each: facts of their makers, for the plan, the doctor and the installer."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from modules.setup.hardware import Nvidia
from tests.fake_gpu.card import CardFacts
from tests.setup.fakes import FakeMachine

FP16, BF16, FP32 = torch.float16, torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Row:
    """A GPU, and what the program does with it.

    `memory_gb` of the GPU, or of the machine for Apple's; `wide`: the dtype of families whose activations leave fp16;
    `build`: the end of the index that PyTorch comes from, "" for the usual one; `autocast` and `fp8_matmul`: whether
    they are used and allowed; `refuses_fp8`: what PyTorch says where it has no fp8 products for that GPU.
    """

    name: str
    device_type: str
    memory_gb: float
    capability: tuple[int, int] | None
    wide: torch.dtype
    build: str
    half: tuple[torch.dtype, ...] = (FP16, BF16)
    autocast: bool = True
    fp8_matmul: bool = False
    refuses_fp8: str = ""
    system: str = "Linux"

    @property
    def facts(self) -> CardFacts:
        """For the GPU that is made up."""
        return CardFacts(self.name, self.capability, self.half, self.refuses_fp8)

    @property
    def machine(self) -> FakeMachine:
        """For the installer: with a driver of today."""
        if self.device_type == "mps":
            return FakeMachine(system="Darwin", architecture="arm64")
        if self.device_type == "xpu":
            return FakeMachine(arc=True)
        if "Radeon" in self.name or "Instinct" in self.name:
            return FakeMachine(amd=True)
        driver = 580
        return FakeMachine(system=self.system, card=Nvidia(driver, self.capability))


def nvidia(name: str, memory_gb: float, capability: tuple[int, int]) -> Row:
    """A row of NVIDIA's, as its compute capability says."""
    return Row(
        name,
        "cuda",
        memory_gb,
        capability,
        wide=BF16 if capability >= (8, 0) else FP32,
        build="" if capability >= (7, 5) else "cu126",
        half=(FP16, BF16),
        autocast="GTX 16" not in name,
        fp8_matmul=capability >= (8, 9),
    )


def amd(name: str, memory_gb: float, capability: tuple[int, int]) -> Row:
    """A row of AMD's: to PyTorch a CUDA device with the number of its architecture (gfx1030 is 10.3). That number says
    nothing about fp8: RDNA 2 and 3 are above 8.9 and have no such units, RDNA 4 (gfx1200 on) has them."""
    has_fp8 = capability >= (12, 0)
    refuses = "" if has_fp8 else "torch._scaled_mm is only supported on devices with fp8 units (gfx12xx among RDNA)"
    return Row(name, "cuda", memory_gb, capability, BF16, "rocm7.2", fp8_matmul=has_fp8, refuses_fp8=refuses)


ROWS = (
    nvidia("NVIDIA GeForce GTX 1060 6GB", 6, (6, 1)),
    nvidia("NVIDIA GeForce GTX 1080 Ti", 11, (6, 1)),
    nvidia("NVIDIA GeForce GTX 1650", 4, (7, 5)),
    nvidia("NVIDIA GeForce GTX 1660 SUPER", 6, (7, 5)),
    nvidia("Tesla V100-SXM2-16GB", 16, (7, 0)),
    nvidia("NVIDIA GeForce RTX 2060", 6, (7, 5)),
    nvidia("NVIDIA GeForce RTX 2080 Ti", 11, (7, 5)),
    nvidia("NVIDIA GeForce RTX 3060", 12, (8, 6)),
    nvidia("NVIDIA GeForce RTX 3090", 24, (8, 6)),
    nvidia("NVIDIA GeForce RTX 4060", 8, (8, 9)),
    nvidia("NVIDIA GeForce RTX 4090", 24, (8, 9)),
    nvidia("NVIDIA GeForce RTX 5070", 12, (12, 0)),
    nvidia("NVIDIA GeForce RTX 5090", 32, (12, 0)),
    nvidia("NVIDIA A100-SXM4-40GB", 40, (8, 0)),
    nvidia("NVIDIA H100 80GB HBM3", 80, (9, 0)),
    amd("AMD Radeon RX 6800 XT", 16, (10, 3)),
    amd("AMD Radeon RX 7900 XTX", 24, (11, 0)),
    amd("AMD Radeon RX 9070 XT", 16, (12, 0)),
    Row("Intel(R) Arc(TM) A770 Graphics", "xpu", 16, None, BF16, "xpu", autocast=False),
    Row("Intel(R) Arc(TM) B580 Graphics", "xpu", 12, None, BF16, "xpu", autocast=False),
    *(
        Row(f"Apple {chip}", "mps", memory_gb, None, BF16, "", autocast=False, system="Darwin")
        for chip, memory_gb in (("M1", 8), ("M2", 16), ("M3", 24), ("M4", 16))
    ),
)
