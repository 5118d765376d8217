"""Memory and time of removing the background of an image of 1024 px, with networks of full size and random weights.

Run `python -m benchmarks.background [NAME ...] [--no-half]`. Each network is a process of its own, on the CPU in the
dtype that the program chooses, or with `--no-half` in fp32, of which nothing is written; memory is what only the
process has (RssAnon), at its peak beyond what it had, with all libraries, before the network's file was read. Linux
only.
"""

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

from benchmarks.report import print_table, write_result
from tests.postprocessing.background_files import SwinSizes, birefnet, nested_u

WIDTHS, MIDDLES = (64, 128, 256, 512, 512, 512), (32, 32, 64, 128, 256, 256)
LARGE = SwinSizes(192, (6, 12, 24, 48), (2, 2, 18, 2), 12, 64, 256)
SMALL = SwinSizes(96, (3, 6, 12, 24), (2, 2, 6, 2), 7, 64, 256)
NETWORKS = {
    "U-2-Net": lambda: nested_u(False, 1, WIDTHS, MIDDLES),
    "IS-Net, RMBG-1.4": lambda: nested_u(True, 1, WIDTHS, MIDDLES),
    "BiRefNet lite": lambda: birefnet(1, SMALL),
    "BiRefNet, RMBG-2.0": lambda: birefnet(1, LARGE),
}
SIDE_PX = 1024


def memory_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Watch(threading.Thread):
    """Notes the most memory, 200 times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0

    def run(self) -> None:
        while True:
            self.most = max(self.most, memory_bytes())
            time.sleep(0.005)


def measure(path: Path) -> None:
    """Remove a background in this process, and print bytes and seconds."""
    from scipy import ndimage
    from transformers import SwinBackbone

    from modules.flags.flags import parse_flags
    from modules.models.files.catalogue import CheckpointCatalogue, HashCache
    from modules.processing.engine.engine import Engine
    from modules.processing.engine.precision import machine_of
    from modules.scripts.built_in import load_built_in

    load_built_in()
    from lib_background.edges import decontaminated
    from lib_background.networks import build_network, foreground

    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    engine = Engine(catalogue, path.parent, lambda: machine_of(parse_flags(sys.argv[3:])))
    pixels = np.random.default_rng(0).integers(0, 255, (SIDE_PX, SIDE_PX, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    assert engine.machine is not None and SwinBackbone is not None and ndimage is not None  # they are there before
    watch, before, began = Watch(), memory_bytes(), time.process_time()
    watch.start()
    mask = engine.compute_alone(path, build_network, lambda net: foreground(net, image))
    decontaminated(image, mask)
    print(watch.most - before, time.process_time() - began)


def main(words: list[str]) -> None:
    flags = [word for word in words if word.startswith("--")]
    rows = []
    for name in [word for word in words if word not in flags] or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.safetensors"
            tensors = {
                key: tensor.half() if tensor.is_floating_point() else tensor for key, tensor in NETWORKS[name]().items()
            }
            save_file(tensors, path)
            size = path.stat().st_size
            command = [sys.executable, "-m", "benchmarks.background", "--file", str(path), *flags]
            said = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
            rows.append((name, f"{size / 1e9:.2f}", f"{int(said[-2]) / 1e9:.2f}", f"{float(said[-1]):.0f}"))
            print(rows[-1], flush=True)
    print_table(("network", "file, GB", "at the peak, GB", "CPU seconds"), rows)
    if not flags:
        write_result("background", {"rows": rows})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(sys.argv[1:]) if sys.argv[1:2] != ["--file"] else measure(Path(sys.argv[2]))
