"""A rank-16 LoRA over all layers at Stable Diffusion 1's full size: time to apply it, to change its weight, and what a
step costs with it, on 8-bit weights; alongside it diffusers with PEFT. And how faithful a LoRA is on 8-bit weights.

Run `python -m benchmarks.lora [full-size] [fidelity] [five]`; a part that is not named keeps what the JSON has of it.
`five` is the time of a step with five LoRAs of rank 32 over one without, in each format, resident and streamed from
disk (`--px`: the image's side). The checkpoint and the LoRAs are made on the fly with random weights; images are
compared with the bundled model and its example LoRAs. `benchmarks/lora_peer.py` says how to have PEFT measured.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks import lora_peer
from benchmarks.fp8 import stepper
from benchmarks.full_size import load_through_program, write_full_size_checkpoint
from benchmarks.load import base_bytes, peak_bytes
from benchmarks.lora_fidelity import applier_of, fidelity, lora_of, retention
from benchmarks.report import print_table, read_result, write_result
from benchmarks.streaming import stream_layout
from modules.adapters.adapter_file import AdapterFile
from modules.adapters.applying import LoraMode, Use
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode
from modules.system.devices import native_bf16_cpu, release_memory

PARTS = ("full-size", "fidelity", "five")
RANK = 16
STORAGE = "fp8_e4m3fn_row"
PAIRS = 2
TURNS = 5  # of a step with and without the LoRA: a few per cent are to be seen
DELTA = 0.003  # of the weights' size
FIVE, FIVE_RANK, FIVE_TURNS = 5, 32, 2
FIVE_STORAGES = ("none", "fp8_e4m3fn_row", "int8_row", "gguf_q8_0", "code4")
LATENT_PX = 8


def write_lora(model: LoadedModel, path: Path, rank: int = RANK) -> None:
    """Random factors for every Linear and convolution, scaled to a delta of 0.3 % of the weights."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    prefixes = {"unet": "lora_unet", "text_encoder": "lora_te_text_model"}
    for part in model.components:
        if part.name not in prefixes:
            continue
        prefix = prefixes[part.name]
        for name, layer in part.module.named_modules():
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            shape = layer._parameters["weight"].shape  # type: ignore[union-attr]
            key = f"{prefix}_{name.replace('.', '_')}"
            ones = (1,) * (len(shape) - 2)
            up = torch.randn(shape[0], rank, *ones, generator=generator) * 0.02 * DELTA
            down = torch.randn(rank, *shape[1:], generator=generator) / rank**0.5
            tensors |= {f"{key}.lora_up.weight": up.half(), f"{key}.lora_down.weight": down.half()}
    save_file(tensors, path)


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes; on the CPU seconds of all its threads, which another program's load changes little."""
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time
    began = clock()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - began


class Table:
    """The rows as they are measured: what, the number, what it may be at most or must be at least."""

    def __init__(self) -> None:
        self.rows: list[tuple[object, ...]] = []
        self.result: dict[str, Any] = {}

    def add(self, what: str, value: float | str, at_most: float | None = None, at_least: float | None = None) -> None:
        """Note one number, or a text where there is none."""
        goal = f"<= {at_most}" if at_most is not None else f">= {at_least}" if at_least is not None else ""
        met = ""
        if goal and not isinstance(value, str):
            met = "yes" if (value <= at_most if at_most is not None else value >= (at_least or 0.0)) else "NO"
        self.rows.append((what, value if isinstance(value, str) else f"{value:.4f}", goal, met))
        self.result[what] = {"value": value, "goal": goal}


def measure_fidelity(table: Table) -> None:
    """Images with the example LoRAs in mode exact, alongside the same delta in fp32."""
    for storage in (STORAGE, "fp8_e4m3fn"):
        found = fidelity(storage)
        what = f"image apart from the delta in fp32, {storage}, bf16 / bf16's own noise"
        table.add(what, found.ratio, 1.0)
        table.add(f"its standard error, {storage}", found.error)
        table.add(f"the same, computing in fp32, relative, {storage}", found.in_fp32, 0.001)
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for factors in (True, False):
            kind = "a kind that factors" if factors else "another kind"
            kept = retention(STORAGE, dtype, DELTA, factors)
            table.add(f"retention of a delta of 0.3 %, exact, {str(dtype)[6:]}, {kind}", kept, at_least=0.99)


def measure_ours(table: Table, path: Path, lora: Path, dtype: torch.dtype, device: torch.device) -> None:
    """Our modes at full size."""
    model = load_through_program(path, STORAGE, dtype, device)
    write_lora(model, lora)
    applier = applier_of(model, device)
    step = stepper(model.unet, dtype, device)
    step()
    without = statistics.median(seconds(step) for _ in range(PAIRS))
    files: dict[str, AdapterFile] = {}

    def first(mode: LoraMode) -> float:
        files.clear()

        def work() -> None:
            files.update(lora_of(lora))
            applier.apply([Use("x", "x")], files, mode)

        return seconds(work)

    def change(strength: float) -> float:
        return seconds(lambda: applier.apply([Use("x", "x", strength, strength)], files, LoraMode.EXACT))

    table.add("first use, exact / time of a step", first(LoraMode.EXACT) / without, 1.0)
    table.add("another weight, exact, seconds", statistics.median(change(s) for s in (0.5, 0.25, 0.5)), 0.05)
    ratios = []
    for _ in range(TURNS):
        with_lora = seconds(step)
        applier.remove()
        ratios.append(with_lora / seconds(step))
        change(0.5)
    table.add("step with the LoRA, exact / without", statistics.median(ratios), 1.08)
    applier.remove()
    files.clear()
    gc.collect()
    files.update(lora_of(lora))
    release_memory(device)
    base = base_bytes()
    applier.apply([Use("x", "x")], files, LoraMode.MERGE)
    peak, kept = peak_bytes() - base, base_bytes() - base
    table.add("extra memory after merging from full precision / model", kept / model.stored_bytes, 0.02)
    table.add("peak while it merges / model", peak / model.stored_bytes)
    applier.remove()
    table.add("first use, merged from full precision / time of a step", first(LoraMode.MERGE) / without, 4.0)
    assert applier.retention is not None
    table.add("retention of a delta of 0.3 %, merged from full precision", applier.retention.retention, at_least=0.99)
    applier.remove()
    for mode in (LoraMode.INTO_STORED, LoraMode.STOCHASTIC):
        first(mode)
        assert applier.retention is not None
        table.add(f"retention of a delta of 0.3 %, {mode.value}", applier.retention.retention)
        table.add(f"noise next to it, {mode.value}", applier.retention.noise)
        applier.remove()


def measure_five(
    table: Table,
    path: Path,
    folder: Path,
    storages: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    side_px: int,
    mode: ComputeMode | None,
) -> Iterator[None]:
    """Steps with and without five LoRAs in turn, in each format, resident and streamed; a row at a time."""
    lora = folder / "five.safetensors"
    for storage in storages:
        for streaming in (None, stream_layout(folder / path.name)):
            model = load_through_program(
                path, None if storage == "none" else storage, dtype, device, streaming, mode=mode
            )
            if not lora.is_file():
                write_lora(model, lora, FIVE_RANK)
            applier, step = applier_of(model, device), stepper(model.unet, dtype, device, side_px // LATENT_PX)
            files = {f"{number}": lora_of(lora)["x"] for number in range(FIVE)}
            uses = [Use(name, name, 1.0, 0.2 * (1 + number)) for number, name in enumerate(files)]
            step()
            ratios = []
            for _ in range(FIVE_TURNS):
                applier.apply(uses, files, LoraMode.EXACT)
                step()  # what is kept between steps is made here
                with_five = seconds(step)
                applier.remove()
                ratios.append(with_five / seconds(step))
            way = "resident" if streaming is None else "streamed from disk"
            computing = f"{mode.value if mode else 'decoded'} in {str(dtype)[6:]}"
            stored = "not in 8 bits" if storage == "none" else storage
            what = f"step with five LoRAs of rank {FIVE_RANK} at {side_px} px, {stored}, {computing}, {way}"
            table.add(what, statistics.median(ratios), 1.10)
            print(what, [f"{ratio:.3f}" for ratio in ratios], flush=True)
            yield
            if model.streaming is not None:
                model.streaming.close()
            del model, applier, step, files
            gc.collect()


def measure_peer(table: Table, path: Path, lora: Path, dtype: torch.dtype, device: torch.device) -> None:
    """diffusers and PEFT at full size, where PEFT is there."""
    if not lora_peer.is_there():
        table.add("diffusers + PEFT on a layerwise-cast UNet", "not measured")
        return
    unet = load_through_program(path, None, dtype, device).unet
    for what, value in lora_peer.measure(unet, lora, dtype, stepper(unet, dtype, device), seconds, PAIRS).items():
        table.add(f"diffusers + PEFT: {what}", value)


def run_five(name: str, options: argparse.Namespace, dtype: torch.dtype, device: torch.device) -> None:
    """Part five has a JSON of its own, which says where and in which dtype it was measured."""
    table = Table()
    table.result |= read_result(name) | {"note": options.note}
    mode = ComputeMode.INT8_MATMUL if options.int8_matmul else None
    with tempfile.TemporaryDirectory() as folder:
        path = options.file or Path(folder) / "full.safetensors"
        if options.file is None:
            write_full_size_checkpoint(path)
        for _ in measure_five(table, path, Path(folder), options.formats, dtype, device, options.px, mode):
            write_result(name, table.result)
    print_table(("what", "measured", "goal", "met"), table.rows)


@torch.inference_mode()
def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description="A LoRA at full size, and how faithful it is on 8-bit weights.")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; default: all")
    parser.add_argument("--px", type=int, default=512, help="side of the image of part five")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="that part five computes in")
    parser.add_argument("--int8-matmul", action="store_true", help="part five multiplies in int8")
    parser.add_argument("--formats", nargs="*", default=FIVE_STORAGES, help="of part five; none: as the file has them")
    parser.add_argument("--file", type=Path, help="part five takes this SD1 checkpoint instead of a random one")
    parser.add_argument("--note", default="", help="kept in the JSON: what else ran during part five")
    options = parser.parse_args()
    parts = options.parts or PARTS
    if unknown := set(parts) - set(PARTS):
        parser.error(f"unknown part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.bfloat16 if native_bf16_cpu() else torch.float32
    name = "lora" if device.type == "cpu" else f"lora-{torch.cuda.get_device_name().replace(' ', '-').lower()}"
    if "five" in parts:
        run_five(f"{name}-five", options, getattr(torch, options.dtype) if options.dtype else dtype, device)
    if not {"full-size", "fidelity"} & set(parts):
        return
    table = Table()
    if set(parts) != set(PARTS):
        table.result.update(read_result(name))
    table.result["compute_dtype"] = str(dtype)
    if "full-size" in parts:
        with tempfile.TemporaryDirectory() as folder:
            path, lora = Path(folder) / "full.safetensors", Path(folder) / "lora.safetensors"
            write_full_size_checkpoint(path)
            measure_ours(table, path, lora, dtype, device)
            gc.collect()
            measure_peer(table, path, lora, dtype, device)
        write_result(name, table.result)  # full size takes long: keep it, whatever comes
    if "fidelity" in parts:
        measure_fidelity(table)
    print_table(("what", "measured", "goal", "met"), table.rows)
    write_result(name, table.result)


if __name__ == "__main__":
    main()
