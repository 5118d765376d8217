"""What a step takes on more cores than the measuring machine has: a calculation, no measurement.

Run `python -m benchmarks.roofline [--measure THREADS ...] [--keep FOLDER]`. Every operation of a full-size UNet (two
rows of a batch) is counted by its shapes: arithmetic of products, convolutions and attention, and the bytes that it
reads and writes. It takes as long as the slower of the two: arithmetic shared by the cores, at the speed that one core
reaches here on a product of 2048; bytes at the speed at which one core copies here, times the cores, at most what the
memory gives. That says which of both limits a step, not what an implementation reaches: caches, turbo and waiting for
the slowest thread are left out. AMX is taken as four times AVX512's speed, half of what its data sheets say.

With `--measure` steps of SD1 at 512 px are timed beside that, with so many threads: those of diffusers' UNet in fp32
and bf16, and with weights and products in int8, where numba is installed with attention in int8, too.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.full_size import CPU, FAMILIES, load_through_program, write_full_size_checkpoint
from benchmarks.report import print_table, write_result
from modules.memory.attention import ATTENTIONS, AttentionOptions
from modules.memory.kernels.support import attention_problem
from modules.models.autoencoders.kl import KlAutoencoder, build_kl
from modules.models.families.architecture import read_architecture
from modules.models.families.ldm.denoiser import build_unet
from modules.models.loading.precision import ComputeMode
from modules.processing.engine.attention import using_attention

CASES = (("sd1", 64), ("sdxl", 64), ("sdxl", 128))
"""Family and side of the latents."""
CORES = (1, 2, 4, 8, 16)
MEMORY_GB_S = {"desktop": 60.0, "server": 200.0}
AMX = 4.0
WAYS = ("fp32", "bf16", "int8", "int8 with AMX")
SIZE = 2048
ATTENTION = "attention"
INT8_ATTENTION = 0.4
"""Of the time of attention in float32 (docs/precision.md)."""
MEASURED: dict[str, tuple[str | None, torch.dtype, ComputeMode]] = {
    "int8": ("int8_row", torch.float32, ComputeMode.INT8_MATMUL),
    "int8, bf16": ("int8_row", torch.bfloat16, ComputeMode.INT8_MATMUL),
    "bf16": (None, torch.bfloat16, ComputeMode.PLAIN),
    "fp32": (None, torch.float32, ComputeMode.PLAIN),
}
"""What is timed: storage, compute dtype and mode."""
ROUNDS = 2


@dataclass(frozen=True)
class Operation:
    """`flop`: multiplications and additions. `elements`: read and written; `weights`: of these, parameters."""

    name: str
    flop: float
    elements: int
    weights: int


@dataclass(frozen=True)
class Speeds:
    """Of one core, in operations and bytes per second."""

    fp32: float
    bf16: float
    int8: float
    copy: float


class Counting(TorchDispatchMode):
    """Notes every operation that touches values."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[Operation] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        packet = func._overloadpacket
        given = [value for value in tree_leaves((args, kwargs or {})) if isinstance(value, Tensor)]
        made = [value for value in tree_leaves(out) if isinstance(value, Tensor)]
        views = {id(value.untyped_storage()) for value in given}
        if packet in flop_registry or not all(id(value.untyped_storage()) in views for value in made):
            flop = flop_registry[packet](*args, **(kwargs or {}), out_val=out) if packet in flop_registry else 0
            weights = sum(value.numel() for value in given if isinstance(value, torch.nn.Parameter))
            self.operations.append(
                Operation(packet.__name__, flop, sum(value.numel() for value in (*given, *made)), weights)
            )
        return out


class CountingAttention(TorchFunctionMode):
    """Notes attention as one operation, which no shape of a batch of products is."""

    def __init__(self, operations: list[Operation]) -> None:
        super().__init__()
        self._operations = operations

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        named = dict(zip(("query", "key", "value"), args, strict=False)) | (kwargs or {})
        query, key, value = (named[name] for name in ("query", "key", "value"))
        flop = 4.0 * query.numel() * key.shape[-2]
        self._operations.append(Operation(ATTENTION, flop, 2 * query.numel() + key.numel() + value.numel(), 0))
        return torch.empty_like(query)


@torch.no_grad()
def operations_of_decoding(family: str, side: int) -> list[Operation]:
    """Of the VAE's decoder for one image, on tensors that hold nothing."""
    with torch.device("meta"):
        autoencoder = read_architecture(FAMILIES[family][1]).autoencoder
        assert isinstance(autoencoder, KlAutoencoder)
        decoder: Any = build_kl(autoencoder.sizes).decoder
        counting = Counting()
        with counting, CountingAttention(counting.operations):
            decoder(torch.empty(1, autoencoder.channels, side, side))
    found: list[Operation] = counting.operations
    return found


@torch.no_grad()
def operations_of(family: str, side: int) -> list[Operation]:
    """Of a step with guidance, on tensors that hold nothing."""
    with torch.device("meta"):
        sizes = read_architecture(FAMILIES[family][1]).unet_sizes
        unet: Any = build_unet(sizes)
        x, context = torch.empty(2, sizes.in_channels, side, side), torch.empty(2, 77, sizes.context_width)
        vector = torch.empty(2, sizes.vector_width) if sizes.vector_width else None
        counting = Counting()
        with counting, CountingAttention(counting.operations):
            unet(x, torch.empty(2), encoder_hidden_states=context, class_labels=vector, return_dict=False)
    found: list[Operation] = counting.operations
    return found


def best_seconds(work: Callable[[], Any], rounds: int = 6) -> float:
    """CPU time of one thread."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return min(found)


def speeds_here() -> Speeds:
    """Of one core of this machine."""
    torch.set_num_threads(1)
    flop = 2.0 * SIZE**3
    wide = torch.randn(SIZE, SIZE)
    half, whole = wide.bfloat16(), torch.randint(-127, 128, (SIZE, SIZE), dtype=torch.int8)
    source, target = torch.randn(1 << 26), torch.empty(1 << 26)
    return Speeds(
        flop / best_seconds(lambda: wide @ wide.t()),
        flop / best_seconds(lambda: half @ half.t()),
        flop / best_seconds(lambda: torch._int_mm(whole, whole.t())),
        2 * source.nbytes / best_seconds(lambda: target.copy_(source)),
    )


def seconds(operations: Sequence[Operation], way: str, cores: int, memory: float, here: Speeds) -> tuple[float, float]:
    """Of a step, and how much of it waits for the memory."""
    quick = {"fp32": here.fp32, "bf16": here.bf16, "int8": here.int8, "int8 with AMX": AMX * here.int8}[way]
    is_int8 = way.startswith("int8")
    bandwidth = min(cores * here.copy, memory)
    total = waiting = 0.0
    for operation in operations:
        speed = quick
        if operation.name == ATTENTION:
            speed = here.fp32 / INT8_ATTENTION * (AMX if "AMX" in way else 1) if is_int8 else here.fp32
        bytes_each = 2 if way == "bf16" else 4
        moved = (operation.elements - operation.weights) * bytes_each
        moved += operation.weights * (1 if is_int8 else bytes_each)
        arithmetic, memory_s = operation.flop / (speed * cores), moved / bandwidth
        total += max(arithmetic, memory_s)
        waiting += memory_s if memory_s > arithmetic else 0.0
    return total, waiting / total


@torch.inference_mode()
def measure_steps(path: Path, threads: Sequence[int], save: Callable[[dict[str, Any]], None]) -> None:
    """Wall seconds of the quickest step of SD1 at 512 px with guidance, by way and number of threads, most first;
    `save` gets what was found after each of them. `path`: a checkpoint of full size."""
    generator = torch.Generator().manual_seed(0)
    x, text = (torch.randn(2, *shape, generator=generator) for shape in ((4, 64, 64), (77, 768)))
    problem = attention_problem()
    found: dict[str, Any] = {"attention of int8": "int8" if problem is None else problem, "seconds": {}}
    attention = ATTENTIONS.get("int8")(AttentionOptions())
    unets = {
        way: load_through_program(path, storage, dtype, CPU, mode=mode).unet
        for way, (storage, dtype, mode) in MEASURED.items()
    }
    for count in sorted(threads, reverse=True):
        torch.set_num_threads(count)
        for way, unet in unets.items():
            dtype = MEASURED[way][1]
            given = x.to(dtype), torch.full((2,), 500), text.to(dtype)
            times = []
            with using_attention([unet], attention if way.startswith("int8") and problem is None else None):
                for _ in range(ROUNDS + 1):
                    began = time.perf_counter()
                    unet(*given, return_dict=False)
                    times.append(time.perf_counter() - began)
            found["seconds"].setdefault(way, {})[str(count)] = round(min(times[1:]), 3)
            print(f"{way}, {count} threads: {min(times[1:]):.2f} s", flush=True)
            save(found)


def main() -> None:
    """Count, calculate, print, write; measure where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs="+", type=int, default=[], metavar="THREADS", help="time steps, too")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where the full-size checkpoint is kept")
    arguments = parser.parse_args()
    here = speeds_here()
    result: dict[str, Any] = {"one core": {name: round(value / 1e9, 1) for name, value in vars(here).items()}}
    rows = []
    counted = {f"{family}, {8 * side} px": operations_of(family, side) for family, side in CASES}
    counted["sd1, decoding 512 px"] = operations_of_decoding("sd1", 64)
    for case, operations in counted.items():
        tera = sum(one.flop for one in operations) / 1e12
        attention = sum(one.flop for one in operations if one.name == ATTENTION) / 1e12
        result[case] = {"tera operations": round(tera, 3), "of these attention": round(attention, 3), "seconds": {}}
        for memory, gb_s in MEMORY_GB_S.items():
            for way in WAYS:
                found = [seconds(operations, way, cores, gb_s * 1e9, here) for cores in CORES]
                result[case]["seconds"][f"{way}, {memory}"] = {
                    str(cores): round(total, 2) for cores, (total, _) in zip(CORES, found, strict=True)
                }
                rows.append(
                    (case, way, f"{memory}, {gb_s:g} GB/s", *(f"{one:.2f} ({part:.0%})" for one, part in found))
                )
    print_table(("step", "products", "memory", *(f"{cores} cores" for cores in CORES)), rows)
    write_result("roofline", result)
    if not arguments.measure:
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = (arguments.keep or Path(scratch)) / "full.safetensors"
        if not path.exists():
            write_full_size_checkpoint(path)

        def save(found: dict[str, Any]) -> None:
            write_result("roofline", {**result, "measured, sd1, 512 px": found})

        measure_steps(path, arguments.measure, save)


if __name__ == "__main__":
    main()
