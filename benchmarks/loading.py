"""Loading full-size SD1 and SDXL checkpoints: memory, time, detection, and switching between models.

Run `python -m benchmarks.loading [sd1] [sdxl]`. Files with random fp16 weights are made on the fly (2.1 and 6.9 GB of
disk) and removed. Each load runs in a process of its own, with a warm page cache; times are ratios to reading the file
once, measured in the same run.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.full_size import SD1_YAML, SDXL_YAML, load_through_program, write_full_size_checkpoint
from benchmarks.load import base_bytes, peak_bytes
from benchmarks.report import print_table, write_result

ROOT = Path(__file__).parent.parent
GOALS = {
    "peak / bytes in memory": 1.15,
    "time / reading the file, fp16": 3.0,
    "time / reading the file, fp8": 4.0,
    "time / diffusers": 0.5,
    "detection, ms": 50.0,
}
WAYS = ("fp16", "fp8_e4m3fn", "fp8_e4m3fn_row")
CHUNK_BYTES = 16 << 20


def read_seconds(path: Path) -> float:
    """Reading the file once, as `cat FILE > /dev/null` does."""
    buffer = bytearray(CHUNK_BYTES)
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - began


def load_ours(path: Path, way: str) -> dict[str, float]:
    """Peak above the base, bytes, seconds; the imports are not counted."""
    import torch

    storage = None if way == "fp16" else way
    read = read_seconds(path)
    base = base_bytes()
    began = time.perf_counter()
    model = load_through_program(path, storage, torch.float16)
    seconds = time.perf_counter() - began
    peak = peak_bytes() - base
    return {"peak": peak, "bytes": model.stored_bytes, "seconds": seconds, "read": read}


def load_diffusers(path: Path, way: str) -> dict[str, float]:
    """The same with diffusers' single-file loaders, of UNet and VAE alone: its text encoders ask a hub."""
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel

    yaml = SDXL_YAML if path.stem == "sdxl" else SD1_YAML
    options = {"original_config": str(yaml), "local_files_only": True, "torch_dtype": torch.float16}
    read = read_seconds(path)
    base = base_bytes()
    began = time.perf_counter()
    modules = [cls.from_single_file(str(path), **options) for cls in (UNet2DConditionModel, AutoencoderKL)]
    weights = [p for module in modules for p in module.parameters()]
    for weight in weights:
        weight.detach().flatten()[::1024].sum()  # mapped weights are read at first use: touch every page
    seconds = time.perf_counter() - began
    loaded = sum(weight.numel() * weight.element_size() for weight in weights)
    return {"peak": peak_bytes() - base, "bytes": loaded, "seconds": seconds, "read": read}


def detect(path: Path, way: str) -> dict[str, float]:
    """Milliseconds to open the file and name its family, the median of nine."""
    from modules.models.loading import detect_family
    from modules.models.open_clip_layout import open_checkpoint

    times = []
    for _ in range(9):
        began = time.perf_counter()
        with open_checkpoint(path) as file:
            detect_family(file)
        times.append((time.perf_counter() - began) * 1000)
    return {"ms": sorted(times)[4]}


RUNS = {"ours": load_ours, "diffusers": load_diffusers, "detect": detect}


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
    results: dict[str, dict[str, dict[str, float]]] = {}
    for family in sys.argv[1:] or ["sd1", "sdxl"]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"{family}.safetensors"
            write_full_size_checkpoint(path, family)
            found = {way: measure("ours", path, way) for way in WAYS}
            found["diffusers fp16"] = measure("diffusers", path, "fp16")
            found["detection"] = measure("detect", path, "")
            results[family] = found
    rows = []
    for family, found in results.items():
        peer = found["diffusers fp16"]
        for way, r in found.items():
            if way == "detection" or not r:
                continue
            beside = f"{r['seconds'] / r['read'] / (peer['seconds'] / peer['read']):.2f}" if peer else "not measured"
            rows.append(
                (
                    *(
                        family,
                        way,
                        f"{r['peak'] / 1e9:.2f}",
                        f"{r['bytes'] / 1e9:.2f}",
                        f"{r['peak'] / r['bytes']:.3f}",
                    ),
                    *(f"{r['seconds'] / r['read']:.2f}", beside),
                )
            )
        rows.append((family, "detection", "", "", "", f"{found['detection']['ms']:.1f} ms", ""))
    titles = ["file", "loaded as", "peak, GB", "in memory, GB", "ratio", "time / reading it", "time / diffusers"]
    print_table(titles, rows)
    write_result("loading", {"results": results, "goals": GOALS})


if __name__ == "__main__":
    main()
