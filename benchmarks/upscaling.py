"""How much our tiles cost: a 512x512 image by a 4x file through the program, against spandrel called directly.

Run `python -m benchmarks.upscaling [--blocks N] [--repeats N]`; it writes `results/upscaling.json`. The file is an
ESRGAN with random weights; both ways get the same tiles (192 pixels with an overlap of 8, the default). Seconds are
those of the processor with one thread, so that other programs do not count.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from modules.settings.values import Settings
from modules.upscalers.catalogue import UpscalerCatalogue
from modules.upscalers.loading import PixelModel, load_upscaler
from modules.upscalers.upscalers import Upscalers
from tests.upscalers.models import esrgan_weights

RESULT = Path(__file__).parent / "results" / "upscaling.json"
GOAL = 1.05
SIDE_PX = 512
TILES = (192,)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.upscaling", description=__doc__)
    parser.add_argument("--blocks", type=int, default=1, help="blocks of the network; Real-ESRGAN has 23")
    parser.add_argument("--repeats", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE_PX, SIDE_PX, 3), np.uint8))
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "ESRGAN" / "4x.pth"
        path.parent.mkdir()
        torch.save(esrgan_weights(4, arguments.blocks), path)
        rows = {f"tile {tile}": _compared(path, image, tile, arguments.repeats) for tile in TILES}
    result = {
        "image_px": SIDE_PX,
        "blocks": arguments.blocks,
        "repeats": arguments.repeats,
        "threads": torch.get_num_threads(),
        "goal": GOAL,
        "ratios": rows,
    }
    print(json.dumps(result, indent=2))
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


def _compared(path: Path, image: Image.Image, tile: int, repeats: int) -> dict[str, float]:
    """Seconds of both ways, taken in turns, the best of each."""
    device = torch.device("cpu")
    upscalers = Upscalers(UpscalerCatalogue({"ESRGAN": path.parent}), lambda part: device)
    settings = Settings().changed(ESRGAN_tile=tile)
    network = load_upscaler(path, device)
    size = (SIDE_PX * 4, SIDE_PX * 4)
    ours, direct = [], []
    for _ in range(repeats + 1):  # the first of each warms up
        began = time.process_time()
        upscalers.enlarge(image, "4x", size, settings, lambda index, count: None)
        ours.append(time.process_time() - began)
        began = time.process_time()
        _direct(network, image, tile)
        direct.append(time.process_time() - began)
    best = min(ours[1:]), min(direct[1:])
    return {"ours_s": round(best[0], 3), "spandrel_s": round(best[1], 3), "ratio": round(best[0] / best[1], 3)}


def _direct(network: PixelModel, image: Image.Image, tile: int) -> None:
    """spandrel on the same tiles, and nothing else."""
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255.0
    starts = [0] if not tile else [0, 160, 320]
    side = tile or SIDE_PX
    with torch.inference_mode():
        for top in starts:
            for left in starts:
                network(pixels[:, :, top : top + side, left : left + side])


if __name__ == "__main__":
    main()
