"""Peak memory while a full-size SD1 checkpoint is loaded, over the bytes of the weights that are then in memory.

Run `python -m benchmarks.load`; each load runs in a process of its own, diffusers' alongside ours. Needs about 2.2 GB
of disk for the checkpoint, which is written with random weights and removed.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.full_size import SD1_YAML, use_every_page, write_full_size_checkpoint
from benchmarks.report import print_table, write_result

GOAL = 1.15
ROOT = Path(__file__).parent.parent
LOADERS = ("ours fp16", "ours fp32", "diffusers fp16", "diffusers fp32")


def base_bytes() -> int:
    """Resident memory now; the kernel's record of the peak starts again from here (Linux)."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return _status_bytes("VmRSS")


def peak_bytes() -> int:
    """The largest resident memory since `base_bytes`."""
    return _status_bytes("VmHWM")


def _status_bytes(field: str) -> int:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def load_ours(path: Path, dtype_name: str) -> tuple[int, int]:
    """Peak above the base and bytes of the weights."""
    import torch

    from modules.models.files.catalogue import CheckpointCatalogue, HashCache
    from modules.models.loading.load_model import load_model
    from modules.models.loading.precision import PrecisionPlan

    info = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json")).entries[0]
    base = base_bytes()
    dtype = getattr(torch, dtype_name)
    plan = PrecisionPlan(device=torch.device("cpu"), compute_dtype=dtype, vae_dtype=dtype)
    model = load_model(info, ROOT / "configs", lambda _: plan)
    use_every_page(model.modules)
    return peak_bytes() - base, model.stored_bytes


def load_diffusers(path: Path, dtype_name: str) -> tuple[int, int]:
    """The same with diffusers' own single-file loaders for UNet and VAE (its text encoder asks a hub)."""
    import torch
    from diffusers import AutoencoderKL, UNet2DConditionModel

    base = base_bytes()
    dtype = getattr(torch, dtype_name)
    options = {"original_config": str(SD1_YAML), "local_files_only": True, "torch_dtype": dtype}
    modules = [cls.from_single_file(str(path), **options) for cls in (UNet2DConditionModel, AutoencoderKL)]
    weights = [p for module in modules for p in module.parameters()]
    use_every_page(modules)
    loaded = sum(weight.numel() * weight.element_size() for weight in weights)
    return peak_bytes() - base, loaded


def measure(loader: str, path: Path) -> dict[str, float]:
    """Run one loader in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.load", loader, str(path)]
    reply = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    peak, loaded = json.loads(reply.splitlines()[-1])
    return {"peak_bytes": peak, "weights_bytes": loaded, "ratio": peak / loaded}


def main() -> None:
    """Write the checkpoint, measure every loader, print, write."""
    if len(sys.argv) == 3:
        who, _, short = sys.argv[1].partition(" ")
        dtype_name = {"fp16": "float16", "fp32": "float32"}[short]
        run = load_ours if who == "ours" else load_diffusers
        print(json.dumps(run(Path(sys.argv[2]), dtype_name)))
        return
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "full.safetensors"
        weights = write_full_size_checkpoint(path)
        results = {loader: measure(loader, path) for loader in LOADERS}
    rows = [
        (name, f"{r['peak_bytes'] / 1e9:.2f}", f"{r['weights_bytes'] / 1e9:.2f}", f"{r['ratio']:.3f}")
        for name, r in results.items()
    ]
    print_table(["loader", "peak above base, GB", "weights, GB", "ratio"], rows)
    met = all(results[name]["ratio"] <= GOAL for name in LOADERS if name.startswith("ours"))
    write_result("load", {"weights": weights, "results": results, "goal": GOAL, "met": met})


if __name__ == "__main__":
    main()
