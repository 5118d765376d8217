"""A LoRA of rank 16 on Stable Diffusion 1's full size at 256 px, batch 1: peak memory and time of a step, over a plain
loop with diffusers in fp32 and bf16 with its own gradient checkpointing; and what SDXL at 1024 px takes by estimate.

Run `python -m benchmarks.training`, `--tiny` to try the script. A checkpoint with random weights is made on the fly.
Each variant runs in a process of its own, which says what it holds at its peak: resident memory that is its own, less
what the program has before a model is there; pages of the file that the system may drop do not count. Seconds are of
all threads, the median of the steps after the first.
"""

import argparse
import copy
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.full_size import ROOT, write_full_size_checkpoint, write_full_size_header
from benchmarks.report import print_table, write_result
from lib_training.base_model import load_base
from lib_training.config import config_of
from lib_training.memory_plan import GB, StepEstimator, plan_memory
from lib_training.stepping import Batch, Trainer
from lib_training.texts import Caption, CaptionEncoder
from lib_training.trained import lora_base
from modules.models.files.catalogue import CheckpointInfo
from modules.models.loading.meta_model import build_meta_model
from modules.system.devices import release_memory, tune_allocator

GOALS = {"memory": 0.4, "streamed": 0.2, "time": 1.1, "sdxl": 4.4}
STEPS = 3
ENOUGH_S = 40.0
"""A variant makes no further step after so long, but two in any case: the first one is not counted."""
RANK = 16
CPU = torch.device("cpu")
VARIANTS = ("diffusers fp32", "fp8", "streamed", "diffusers bf16", "fp8 bf16")


class _Lora(nn.Module):
    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        inputs, outputs = layer.weight.shape[1], layer.weight.shape[0]
        self.down = nn.Parameter(torch.randn(RANK, inputs) / inputs**0.5)
        self.up = nn.Parameter(torch.zeros(outputs, RANK))

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.linear(F.linear(x, self.down.to(x.dtype)), self.up.to(x.dtype))
        out: Tensor = self.layer(x)
        return out + hidden


class _Peak:
    """The largest own memory of this process while it is open, looked at every 5 ms."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> "_Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._stop.wait(0.005):
            self.bytes = max(self.bytes, own_bytes())


def own_bytes() -> int:
    """Resident memory that is not pages of files (Linux)."""
    fields = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines() if ":" in line
    )
    return int(fields["RssAnon"].split()[0]) * 1024


def diffusers_loop(path: Path, side: int, dtype: torch.dtype) -> Callable[[], float]:
    """A plain loop: frozen UNet in `dtype`, LoRA on the linear layers of its attention blocks, AdamW."""
    model = load_base(path, ROOT / "configs", None, CPU)
    unet = copy.deepcopy(model.unet).to(dtype).requires_grad_(False)
    width, marks = model.architecture.unet_sizes.context_width, lora_base(model).blocks
    del model
    gc.collect()
    for name, layer in list(unet.named_modules()):
        if isinstance(layer, nn.Linear) and any(mark in name for mark in marks):
            parent, _, own = name.rpartition(".")
            setattr(unet.get_submodule(parent), own, _Lora(layer))
    unet.enable_gradient_checkpointing()
    unet.train()
    parameters = [parameter for parameter in unet.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)
    x, context = torch.randn(1, 4, side, side, dtype=dtype), torch.randn(1, 77, width, dtype=dtype)

    def step() -> float:
        optimizer.zero_grad()
        loss = unet(x, torch.tensor([500]), encoder_hidden_states=context).sample.float().square().mean()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def our_loop(path: Path, side: int, stream: str, compute: torch.dtype) -> Callable[[], float]:
    """The trainer's own step on an 8-bit base, with every block computed again."""
    offload = path.parent / "offload"
    model = load_base(path, ROOT / "configs", "fp8_e4m3fn_row", CPU, stream, compute, offload_dir=offload)
    config = config_of(
        {
            "adapter": {"rank": RANK},
            "memory": {"checkpointing": "all", "split_feed_forward": 2},
            "training": {"warmup": 0},
        }
    )
    encoder = CaptionEncoder(model)
    caption = Caption("a toy", (8 * side, 8 * side))
    batch = Batch(torch.randn(1, 4, side, side), encoder.encode([caption]))
    from lib_training.run import leave_memory

    leave_memory(model.vae, *model.text_encoders.values())
    trainer = Trainer(model, config, encoder, (side, side))
    return lambda: trainer.train_step([batch], seed=1).loss


def measure(variant: str, path: Path, side: int) -> dict[str, float]:
    """One variant in this process."""
    if not variant.startswith("diffusers"):
        tune_allocator()  # as the program does when it starts
    before = own_bytes()
    if variant.startswith("diffusers"):
        step = diffusers_loop(path, side, torch.bfloat16 if variant.endswith("bf16") else torch.float32)
    else:
        compute = torch.bfloat16 if variant.endswith("bf16") else torch.float32
        step = our_loop(path, side, "layers" if variant == "streamed" else "off", compute)
    gc.collect()
    release_memory(CPU)  # what loading has left in the heap is no variant's own
    times: list[float] = []
    with _Peak() as peak:
        while len(times) < STEPS and (len(times) < 2 or sum(times) < ENOUGH_S):
            began = time.process_time()
            step()
            times.append(time.process_time() - began)
    return {"bytes": peak.bytes - before, "seconds": statistics.median(times[1:])}


def in_child(variant: str, path: Path, side: int) -> dict[str, float]:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.training", "--child", variant, "--side", str(side), str(path)]
    found = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    result: dict[str, float] = json.loads(found.stdout.strip().splitlines()[-1])
    print(
        f"{variant}: {result['bytes'] / GB:.2f} GB, {result['seconds']:.1f} s of CPU a step",
        file=sys.stderr,
        flush=True,
    )
    return result


def sdxl_plan(folder: Path) -> dict[str, Any]:
    """What the planner chooses for 4.4 GB, from a header alone."""
    path = folder / "sdxl.safetensors"
    write_full_size_header(path, "sdxl")
    info = CheckpointInfo(path, path.name, path.stat().st_size, 1)
    config = config_of({"adapter": {"rank": RANK}, "memory": {"budget_gb": GOALS["sdxl"]}})
    estimator = StepEstimator(build_meta_model(info, ROOT / "configs"), config, torch.device("cuda"), torch.bfloat16)
    plan = plan_memory(estimator, config, "bf16")
    return {"way": plan.estimate.way.words, "gb": plan.estimate.total / GB}


def main() -> None:
    """Measure, print, write `results/training.json`."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("path", nargs="?", type=Path, help="the checkpoint, for one variant")
    parser.add_argument("--child", choices=VARIANTS)
    parser.add_argument("--side", type=int, default=32, help="of the latent")
    parser.add_argument("--tiny", action="store_true", help="the bundled model at 64 px, and no results written")
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(measure(arguments.child, arguments.path, arguments.side)))
        return
    result: dict[str, Any] = {}
    rows: list[tuple[str, str, object, str]] = []

    def row(what: str, value: float, goal: float | None = None) -> None:
        met = "" if goal is None else "yes" if value <= goal else "NO"
        rows.append((what, f"{value:.3f}", goal or "", met))
        result[what] = {"value": value, "goal": goal}

    with tempfile.TemporaryDirectory() as folder:
        path, side = Path(folder) / "full.safetensors", arguments.side
        if arguments.tiny:
            from recipes.loras.example import SHIPPED

            path, side = SHIPPED, 8
        else:
            write_full_size_checkpoint(path)
        measured = {variant: in_child(variant, path, side) for variant in VARIANTS}
        result["measured"] = measured
        plain = measured["diffusers fp32"]
        for variant in VARIANTS[1:]:
            goal = GOALS["memory"] if variant == "fp8" else GOALS["streamed"] if variant == "streamed" else None
            row(f"memory of a step, {variant} / diffusers fp32", measured[variant]["bytes"] / plain["bytes"], goal)
            time_goal = GOALS["time"] if variant == "fp8" else None
            row(
                f"time of a step, {variant} / diffusers fp32",
                measured[variant]["seconds"] / plain["seconds"],
                time_goal,
            )
        bf16 = measured["diffusers bf16"]
        row("memory, fp8 bf16 / diffusers bf16", measured["fp8 bf16"]["bytes"] / bf16["bytes"])
        row("time, fp8 bf16 / diffusers bf16", measured["fp8 bf16"]["seconds"] / bf16["seconds"])
        if not arguments.tiny:
            result["sdxl"] = plan = sdxl_plan(Path(folder))
            row(f"SDXL at 1024 px by estimate, GB ({plan['way']})", plan["gb"], GOALS["sdxl"])
    print_table(("what", "measured", "at most", "met"), rows)
    if not arguments.tiny:
        write_result("training", result)


if __name__ == "__main__":
    main()
