"""Loading full-size SD1 and SDXL checkpoints: memory, time, detection, and switching between models.

Run `python -m benchmarks.loading [sd1] [sdxl]`. Files with random fp16 weights are made on the fly (2.1, 2.6 and 6.9 GB
of disk) and removed. Each load runs in a process of its own, with a warm page cache, and once with a cold one; times
are ratios to reading the file once, and to diffusers' pipeline in the same precision, measured in the same run; every
page of a mapped weight is used before the time is taken. At last one process changes thirty times between three
families, in 8 bits.

`python -m benchmarks.loading kernel` loads SD1 alone, its rows encoded by PyTorch and by the compiled kernel in turns,
and writes the CPU time of all threads too (`results/loading-kernel.json`).
"""

import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks.full_size import (
    SD2_YAML,
    load_through_program,
    use_every_page,
    write_full_size_checkpoint,
)
from benchmarks.load import base_bytes, peak_bytes
from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
GOALS = {
    "peak / bytes in memory": 1.15,
    "time / reading the file, fp16": 3.0,
    "time / reading the file, fp8": 4.0,
    "time / diffusers": 0.5,
    "detection, ms": 50.0,
    "memory after 30 switches / after 3": 1.05,
}
KERNEL_GOAL = 2.0
"""Of a load with the compiled kernel, over reading the file."""
KERNEL_WAYS, KERNEL_ROUNDS = ("fp8_e4m3fn_row", "int8_row"), 3
WAYS = ("fp16", "fp8_e4m3fn", "fp8_e4m3fn_row")
COLD = "fp8_e4m3fn_row"
SWITCHES, FIRST_SWITCHES = 30, 3


def read_seconds(path: Path) -> float:
    """Reading the file once."""
    began = time.perf_counter()
    subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def load_ours(path: Path, way: str) -> dict[str, float]:
    """Peak above the base, bytes, seconds; the imports are not counted. The heap is set as the program sets it."""
    from modules.system.devices import freeze_gc, tune_allocator

    tune_allocator()
    import torch

    storage = None if way == "fp16" else way
    read = read_seconds(path)
    freeze_gc()
    base = base_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    model = load_through_program(path, storage, torch.float16)
    use_every_page(model.modules)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    peak = peak_bytes() - base
    return {"peak": peak, "bytes": model.stored_bytes, "seconds": seconds, "cpu": cpu, "read": read}


def forget(path: Path) -> None:
    """Have the system drop the file from its page cache (Linux)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def load_cold(path: Path, way: str) -> dict[str, float]:
    """As `load_ours`, but nothing of the file is in the page cache, neither for reading it nor for loading."""
    from modules.system.devices import freeze_gc, tune_allocator

    tune_allocator()
    import torch

    forget(path)
    read = read_seconds(path)
    forget(path)
    freeze_gc()
    base = base_bytes()
    began, cpu_began = time.perf_counter(), time.process_time()
    model = load_through_program(path, way, torch.float16)
    use_every_page(model.modules)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_began
    return {"peak": peak_bytes() - base, "bytes": model.stored_bytes, "seconds": seconds, "cpu": cpu, "read": read}


def load_by_pytorch(path: Path, way: str, load: Callable[[Path, str], dict[str, float]]) -> dict[str, float]:
    """The same where no kernel encodes rows."""
    from modules.memory.kernels import row_support

    row_support.PAYS_FROM = 1 << 62
    return load(path, way)


def switch(path: Path, way: str) -> dict[str, float]:
    """Resident memory after some and after all changes between the checkpoints of a folder, and seconds a change."""
    from modules.system.devices import freeze_gc, tune_allocator

    tune_allocator()
    import torch

    from modules.models.files.catalogue import CheckpointCatalogue, HashCache
    from modules.processing.engine.engine import Engine, EngineOptions
    from modules.processing.engine.precision import Machine, PrecisionOptions

    machine = Machine(torch.device("cpu"), torch.float16, torch.float32)
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
    options = PrecisionOptions(fp8_storage="Enable", fp8_format=way)
    freeze_gc()
    resident = []
    began = time.perf_counter()
    for number in range(SWITCHES):
        engine.model(catalogue.entries[number % len(catalogue.entries)].name, options)
        gc.collect()
        resident.append(base_bytes())
    seconds = (time.perf_counter() - began) / SWITCHES
    after = resident[FIRST_SWITCHES - 1 :: FIRST_SWITCHES]  # each time the same model is in memory
    engine.close()
    return {"first": after[0], "last": after[-1], "seconds": seconds, "files": len(catalogue.entries)}


def load_diffusers(path: Path, way: str) -> dict[str, float]:
    """The same with the pipeline that diffusers makes of a single file. In 8 bits its layerwise casting stores UNet and
    text encoders."""
    import torch
    from diffusers.hooks import apply_layerwise_casting

    from benchmarks.pipeline_peer import PIPELINES, write_pipeline_folder
    from modules.system.devices import freeze_gc

    pipeline, names = PIPELINES[path.stem]
    options = {"local_files_only": True, "torch_dtype": torch.float16}
    with tempfile.TemporaryDirectory() as folder:
        write_pipeline_folder(Path(folder), path.stem)
        read = read_seconds(path)
        freeze_gc()
        base = base_bytes()
        began = time.perf_counter()
        made = pipeline.from_single_file(str(path), config=folder, **options)
    modules = [getattr(made, name) for name in names]
    if way != "fp16":
        for module in modules[:-1]:  # not the VAE
            apply_layerwise_casting(module, storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float16)
    use_every_page(modules)
    seconds = time.perf_counter() - began
    loaded = sum(weight.numel() * weight.element_size() for module in modules for weight in module.parameters())
    return {"peak": peak_bytes() - base, "bytes": loaded, "seconds": seconds, "read": read}


def detect(path: Path, way: str) -> dict[str, float]:
    """Milliseconds to open the file and name its family, the median of nine."""
    from modules.models.families.registry import detect_family
    from modules.models.opening.checkpoint import open_checkpoint

    times = []
    for _ in range(9):
        began = time.perf_counter()
        with open_checkpoint(path) as file:
            detect_family(file)
        times.append((time.perf_counter() - began) * 1000)
    return {"ms": sorted(times)[4]}


RUNS: dict[str, Callable[[Path, str], dict[str, float]]] = {
    "ours": load_ours,
    "cold": load_cold,
    "ours by PyTorch": partial(load_by_pytorch, load=load_ours),
    "cold by PyTorch": partial(load_by_pytorch, load=load_cold),
    "diffusers": load_diffusers,
    "detect": detect,
    "switch": switch,
}


def measure(what: str, path: Path, way: str) -> dict[str, float]:
    """One run in a fresh process; empty where the peer cannot load the file."""
    command = [sys.executable, "-m", "benchmarks.loading", "--run", what, str(path), way]
    reply = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if reply.returncode:
        print(f"{what} {way}: not measured: {reply.stderr.strip().splitlines()[-1][:200]}")
        return {}
    result: dict[str, float] = json.loads(reply.stdout.splitlines()[-1])
    return result


def main() -> None:
    """Write the files, measure, print, write."""
    if sys.argv[1:2] == ["--run"]:
        what, name, way = sys.argv[2:]
        print(json.dumps(RUNS[what](Path(name), way)))
        return
    if sys.argv[1:] == ["kernel"]:
        compare_encoders()
        return
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for family in sys.argv[1:] or ["sd1", "sdxl"]:
            path = Path(folder) / f"{family}.safetensors"
            write_full_size_checkpoint(path, family)
            found = {way: measure("ours", path, way) for way in WAYS}
            found["diffusers fp16"] = measure("diffusers", path, "fp16")
            found["diffusers fp8_e4m3fn"] = measure("diffusers", path, "fp8_e4m3fn")
            found[f"{COLD}, cold"] = measure("cold", path, COLD)
            found["detection"] = measure("detect", path, "")
            results[family] = found
        third = path.with_name("sd2.safetensors")
        write_full_size_checkpoint(third, "sd2")
        shutil.copyfile(SD2_YAML, third.with_suffix(".yaml"))  # else the model is run to tell its prediction type
        switches = measure("switch", path, COLD)
    rows = [row for family, found in results.items() for row in rows_of(family, found)]
    if switches:
        growth = f"{switches['last'] / switches['first']:.3f}"
        shown = (f"{switches['first'] / 1e9:.2f}", f"{switches['last'] / 1e9:.2f}", growth)
        files = f"{switches['files']:.0f} files"
        rows.append((files, f"{SWITCHES} switches", *shown, f"{switches['seconds']:.1f} s", ""))
    titles = ["file", "loaded as", "peak, GB", "in memory, GB", "ratio", "time / reading it", "time / diffusers"]
    print_table(titles, rows)
    write_result("loading", {"results": results, "switches": switches, "goals": GOALS})


def compare_encoders() -> None:
    """Load SD1 with rows encoded by PyTorch and by the kernel, in turns; the quickest of each counts, and of `cat`."""
    from modules.memory.kernels.row_support import llvm_problem

    if (problem := llvm_problem()) is not None:
        sys.exit(f"There is no kernel to compare with: {problem}.")
    found: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sd1.safetensors"
        write_full_size_checkpoint(path, "sd1")
        for cache, rounds in (("ours", KERNEL_ROUNDS), ("cold", 1)):
            for _ in range(rounds):
                for way in KERNEL_WAYS:
                    for by in (" by PyTorch", ""):
                        found.setdefault(f"{way}, {cache}{by}", []).append(measure(cache + by, path, way))
    rows = []
    for name, loads in found.items():
        least = {key: min(load[key] for load in loads) for key in ("seconds", "cpu", "read")}
        peak = max(load["peak"] / load["bytes"] for load in loads)
        numbers = (f"{least['seconds']:.2f}", f"{least['cpu']:.2f}", f"{least['seconds'] / least['read']:.2f}")
        rows.append((name, *numbers, f"{peak:.3f}"))
    print_table(["loaded as", "seconds", "CPU time", "over reading it", "peak / bytes"], rows)
    write_result("loading-kernel", {"loads": found, "goal": KERNEL_GOAL})


def rows_of(family: str, found: dict[str, dict[str, float]]) -> list[tuple[str, ...]]:
    """The lines of one file, without those that could not be measured."""
    rows: list[tuple[str, ...]] = []
    for way, r in found.items():
        if not r:
            continue
        if way == "detection":
            rows.append((family, way, "", "", "", f"{r['ms']:.1f} ms", ""))
            continue
        pace = r["seconds"] / r["read"]
        peer = found[f"diffusers {'fp16' if way.endswith('fp16') else 'fp8_e4m3fn'}"]
        is_comparable = bool(peer) and "cold" not in way
        beside = f"{pace / (peer['seconds'] / peer['read']):.2f}" if is_comparable else ""
        sizes = (f"{r['peak'] / 1e9:.2f}", f"{r['bytes'] / 1e9:.2f}", f"{r['peak'] / r['bytes']:.3f}")
        rows.append((family, way, *sizes, f"{pace:.2f}", beside))
    return rows


if __name__ == "__main__":
    main()
