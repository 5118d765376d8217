"""Devices that an installed PyTorch computes on, asked in a process of its own: the one who asks need not have
PyTorch."""

from pathlib import Path

_ROOT = Path(__file__).parents[2]

ASK_TORCH = f"""
import json, sys, torch
sys.path.insert(0, {str(_ROOT)!r})
from modules.devices import best_device, describe
from modules.memory.kernels.decoding import what_decodes
from modules.memory.kernels.row_support import what_encodes_rows
device = best_device()
names = {{"cpu": "the CPU (no usable GPU was found)", "mps": "the Apple GPU (MPS)"}}
name = names.get(device.type) or describe(device)
instructions = torch.backends.cpu.get_cpu_capability()
facts = {{"version": torch.__version__, "type": device.type, "device": name, "instructions": instructions}}
print(json.dumps({{**facts, "rows": what_encodes_rows(), "decoding": what_decodes(device)}}))
"""
"""For `python -c`; its last line is JSON: version, type ("cuda", "mps", "xpu", "cpu"), device, a name for people,
instructions: what PyTorch's own loops use of the CPU ("DEFAULT", "AVX2", "AVX512" ...), rows: what encodes weights in
8 bits with a scale per row, and decoding: what decodes them on a GPU ("" for the CPU)."""

MEASURE_DEVICE = f"""
import os, sys
sys.path.insert(0, {str(_ROOT)!r})
from pathlib import Path
from modules.devices import best_device
from modules.memory.device_probe import probe_of
probe_of(best_device(), Path(sys.argv[1]), again=True)
os._exit(0)  # a measurement that hangs does not keep the process
"""
"""For `python -c` with a file as its word: the device is measured again, and the file remembers it."""
