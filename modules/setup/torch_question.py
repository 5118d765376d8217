"""Devices that an installed PyTorch computes on, asked in a process of its own: the one who asks need not have
PyTorch."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]

ASK_TORCH = f"""
import json, sys, torch
sys.path.insert(0, {str(_ROOT)!r})
from modules.system.devices import best_device, describe
from modules.memory.kernels.decoding import what_decodes
from modules.memory.kernels.row_support import what_encodes_rows
device = best_device()
names = {{"cpu": "the CPU (no usable GPU was found)", "mps": "the Apple GPU (MPS)"}}
name = names.get(device.type) or describe(device)
instructions = torch.backends.cpu.get_cpu_capability()
has = {{"AMX": torch.cpu._is_amx_tile_supported(), "VNNI": torch.cpu._is_vnni_supported()}}
extra = [feature for feature, there in has.items() if there]
facts = {{"version": torch.__version__, "type": device.type, "device": name}}
facts |= {{"instructions": instructions, "extra": extra}}
print(json.dumps({{**facts, "rows": what_encodes_rows(), "decoding": what_decodes(device)}}))
"""
"""For `python -c`; its last line is JSON: version, type ("cuda", "mps", "xpu", "cpu"), device, a name for people,
instructions: what PyTorch's own loops use of the CPU ("DEFAULT", "AVX2", "AVX512" ...), extra: "AMX" and "VNNI" where
the CPU has them, rows: what encodes weights in
8 bits with a scale per row, and decoding: what decodes them on a GPU ("" for the CPU)."""

MEASURE_DEVICE = f"""
import os, sys
sys.path.insert(0, {str(_ROOT)!r})
from pathlib import Path
from modules.system.devices import best_device
from modules.memory.device_probe import probe_of
probe_of(best_device(), Path(sys.argv[1]), again=True)
os._exit(0)  # a measurement that hangs does not keep the process
"""
"""For `python -c` with a file as its word: the device is measured again, and the file remembers it."""


def gains_by_kernels(facts: Mapping[str, Any]) -> bool:
    """Say whether compiled kernels pay where PyTorch answered `facts`: on CPUs with AVX512, not with AVX2 alone."""
    return facts.get("type") == "cpu" and str(facts.get("instructions", "")).startswith("AVX512")


def what_to_expect(facts: Mapping[str, Any]) -> str:
    """Return the class of an x86 CPU, and what it computes fast."""
    instructions, extra = str(facts.get("instructions", "")), facts.get("extra", ())
    if instructions.startswith("AVX512"):
        if "AMX" in extra:
            return f"{instructions} with AMX: 16-bit weights and int8 products both take less time than fp32"
        if "VNNI" in extra:
            return f"{instructions} with VNNI: int8 products and attention take less than half of the time of fp32"
        return f"{instructions} without VNNI: 8-bit weights take half of the memory, and about the time of fp32"
    if instructions == "AVX2":
        return (
            "AVX2 alone: 8-bit weights take a quarter of fp32's memory, and its time; models for 1 to 4 steps with "
            "the small decoder (TAESD) save the most"
        )
    return instructions or "not told"
