"""Whole images of the bundled model on an NVIDIA GPU, with every kernel sent by itself and by CUDA graphs: seconds, and
whether the images are the same to the bit.

Run `python -m benchmarks.graph_images`; it writes `results/graph-images-NAME_OF_THE_GPU.json`. Euler, 30 steps; the
least of the jobs after the first of each kind, which loads the model or records the graph.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.full_size import ROOT
from benchmarks.report import print_table, write_result
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from recipes.scenes.scoring import color_prompts

SIDES_PX = (128, 512)
STEPS = 30
JOBS = 3
WAYS: Mapping[str, Mapping[str, object]] = {
    "fp16": {},
    "fp8 rows": {"fp8_storage": "Enable"},
    "plain fp8": {"fp8_storage": "Enable", "fp8_format": "fp8_e4m3fn"},
}
"""Changed settings."""


class Jobs:
    """Makes images of one prompt and seed."""

    def __init__(self, folder: Path) -> None:
        device = torch.device("cuda")
        catalogue = CheckpointCatalogue([ROOT / "models" / "Stable-diffusion"], HashCache(folder / "hashes.json"))
        machine = Machine(device, torch.float16, torch.float16)
        self._engine = Engine(catalogue, ROOT / "configs", lambda: machine, options=EngineOptions(hashing=False))
        self._output = Output(folder)
        self._checkpoint = next(iter((ROOT / "models" / "Stable-diffusion").glob("*.safetensors"))).name

    def make(self, graphs: str, side: int, changes: Mapping[str, object]) -> tuple[Any, float]:
        """The image, and the seconds that it took."""
        settings = Settings().with_changes({"samples_save": False, "cuda_graphs": graphs, **changes})
        request = GenerationRequest(
            prompt=color_prompts()[0].text,
            checkpoint=self._checkpoint,
            width=side,
            height=side,
            steps=STEPS,
            sampler="Euler",
            seed=5,
            subseed=1,
            settings=settings,
        )
        began = time.perf_counter()
        result = generate(request, self._engine, self._output, Silent())
        return np.asarray(result.samples[0].image), time.perf_counter() - began


def main() -> None:
    """Measure, print, write."""
    if not torch.cuda.is_available():
        sys.exit("benchmarks.graph_images needs an NVIDIA GPU; there is none here.")
    found: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as folder:
        jobs = Jobs(Path(folder))
        for way, changes in WAYS.items():
            for side in SIDES_PX:
                made = {
                    graphs: [jobs.make(graphs, side, changes) for _ in range(JOBS)] for graphs in ("Off", "Automatic")
                }
                images = [image for each in made.values() for image, _ in each]
                seconds = {graphs: min(took for _, took in each[1:]) for graphs, each in made.items()}
                found[f"{way}, {side} px"] = {
                    "seconds": seconds["Off"],
                    "seconds by graphs": seconds["Automatic"],
                    "same": all(np.array_equal(images[0], image) for image in images),
                }
    head = ("images", "seconds", "by graphs", "same")
    print_table(head, [(what, *each.values()) for what, each in found.items()])
    write_result(f"graph-images-{torch.cuda.get_device_name().replace(' ', '-').lower()}", found)


if __name__ == "__main__":
    main()
