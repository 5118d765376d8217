"""A rank-16 LoRA over all layers at Stable Diffusion 1's full size: time to apply it, to change its weight, and what a
step costs with it, on 8-bit weights.

Run `python -m benchmarks.lora`. The checkpoint and the LoRA are made on the fly with random weights.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.fp8 import load, stepper
from benchmarks.full_size import write_full_size_checkpoint
from benchmarks.load import base_bytes, peak_bytes
from benchmarks.report import print_table, write_result
from modules.models.loaded import LoadedModel
from modules.models.master import FileMaster
from modules.networks.applying import LoraMode, NetworkApplier, Use
from modules.networks.network_file import read_network
from modules.networks.targets import TargetTable

RANK = 16
STORAGE = "fp8_e4m3fn_row"
PAIRS = 3
DELTA = 0.003  # of the weights' size


def write_lora(model: LoadedModel, path: Path) -> None:
    """Random factors for every Linear and convolution, scaled to a delta of 0.3 % of the weights."""
    generator = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    for prefix, network in (("lora_unet", model.unet), ("lora_te_text_model", model.text_encoder)):
        for name, layer in network.named_modules():
            if not isinstance(layer, nn.Linear | nn.Conv2d):
                continue
            shape = layer._parameters["weight"].shape  # type: ignore[union-attr]
            key = f"{prefix}_{name.replace('.', '_')}"
            ones = (1,) * (len(shape) - 2)
            up = torch.randn(shape[0], RANK, *ones, generator=generator) * 0.02 * DELTA
            down = torch.randn(RANK, *shape[1:], generator=generator) / RANK**0.5
            tensors |= {f"{key}.lora_up.weight": up.half(), f"{key}.lora_down.weight": down.half()}
    save_file(tensors, path)


def seconds(work: Callable[[], Any]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@torch.inference_mode()
def main() -> None:
    """Measure, print, write."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    result: dict[str, Any] = {}
    rows: list[tuple[object, ...]] = []

    def row(what: str, value: float, goal: float | None) -> None:
        result[what] = {"value": value, "goal": goal}
        rows.append((what, f"{value:.4f}", goal or "", "" if goal is None else "yes" if value <= goal else "NO"))

    with tempfile.TemporaryDirectory() as folder:
        path, lora = Path(folder) / "full.safetensors", Path(folder) / "lora.safetensors"
        write_full_size_checkpoint(path)
        model = load(path, STORAGE, dtype, device)
        write_lora(model, lora)
        parts = {part.name: (part.module, part.keymap.to_original) for part in model.components if part.name != "vae"}
        applier = NetworkApplier(TargetTable(parts), FileMaster(model), device)
        files = {"x": read_network(lora)}
        step = stepper(model.unet, dtype, device)
        step()
        without = statistics.median(seconds(step) for _ in range(PAIRS))

        def apply(strength: float, mode: LoraMode) -> float:
            return seconds(lambda: applier.apply([Use("x", "x", strength, strength)], files, mode))

        row("first use, exact / time of a step", apply(1.0, LoraMode.EXACT) / without, 1.0)
        row("another weight, exact, seconds", apply(0.5, LoraMode.EXACT), 0.05)
        with_lora = [
            (seconds(step), apply(0.0, LoraMode.EXACT), seconds(step), apply(0.5, LoraMode.EXACT)) for _ in range(PAIRS)
        ]
        row("step with the LoRA, exact / without", statistics.median(a / b for a, _, b, _ in with_lora), 1.08)
        applier.remove()
        base = base_bytes()
        row("first use, merged from full precision / time of a step", apply(1.0, LoraMode.MERGE) / without, 4.0)
        extra = (peak_bytes() - base) / model.stored_bytes
        row("extra memory of merging from full precision / model", extra, None)
        survived = applier.survival
        assert survived is not None
        result["retention, merged from full precision"] = survived.retention
        applier.remove()
        apply(1.0, LoraMode.INTO_STORED)
        survived_into = applier.survival
        assert survived_into is not None
        result["retention, merged into fp8"] = survived_into.retention
        rows.append(
            ("retention of a delta of 0.3 %, merged from full precision", f"{survived.retention:.4f}", ">= 0.99", "")
        )
        rows.append(("retention of a delta of 0.3 %, merged into fp8", f"{survived_into.retention:.4f}", "", ""))
    print_table(("what", "measured", "goal", "met"), rows)
    suffix = "" if device.type == "cpu" else "-" + torch.cuda.get_device_name().replace(" ", "-").lower()
    write_result(f"lora{suffix}", result)


if __name__ == "__main__":
    main()
