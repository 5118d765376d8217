"""Bytes that a server's process reads from its disk for prompts after the first, counted by the kernel.

Run `python -m benchmarks.disk_reads [--prompts N]` (Linux). The bundled model is loaded, one image is made, and then so
many of other prompts: `read_bytes` of `/proc/self/io`, what came from the disk, and `rchar`, what any call to read was
given, from the page cache too; `major_faults` of mapped files count among the first. The rows marked "dropped" have the
system forget the checkpoint's pages after the first image, so that whatever is read from it again must come from the
disk.
"""

import argparse
import resource
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.formats import BUNDLED, prompts
from benchmarks.full_size import ROOT
from benchmarks.loading import forget
from benchmarks.report import print_table, write_result
from modules.models.reading.catalogue import CheckpointCatalogue, HashCache
from modules.processing.engine.engine import Engine
from modules.processing.engine.precision import Machine
from modules.processing.pipeline.events import Silent
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request import GenerationRequest
from modules.settings.values import Settings

SETTINGS: dict[str, dict[str, Any]] = {
    "16 bit": {},
    "fp8 row": {"fp8_storage": "Enable"},
    "gguf_q8_0": {"fp8_storage": "Enable", "fp8_format": "gguf_q8_0"},
}
COUNTERS = ("read_bytes", "rchar", "major_faults")


def counters() -> dict[str, int]:
    """What this process has read so far, and how often it waited for a page of a mapped file (a library's, mostly)."""
    lines = (line.split(": ") for line in Path("/proc/self/io").read_text(encoding="ascii").splitlines())
    found = {name: int(value) for name, value in lines if name in COUNTERS}
    return found | {"major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt}


def measure(changes: dict[str, Any], count: int, drop: bool, folder: Path) -> dict[str, int]:
    """Bytes that `count` prompts after the first have read."""
    catalogue = CheckpointCatalogue([BUNDLED.parent], HashCache(folder / "hashes.json"))
    machine = Machine(torch.device("cpu"), torch.float32, torch.float32)
    engine = Engine(catalogue, ROOT / "configs", lambda: machine, hashing=False)
    settings = Settings().with_changes({"samples_save": False, "grid_save": False, **changes})
    request = GenerationRequest(
        prompt="a lighthouse",
        steps=2,
        seed=1,
        subseed=0,
        width=64,
        height=64,
        settings=settings,
        checkpoint=BUNDLED.name,
        save_images=False,
    )
    generate(request, engine, Output(folder), Silent())
    if drop:
        forget(BUNDLED)
    before = counters()
    for prompt in prompts(count):
        generate(replace(request, prompt=prompt), engine, Output(folder), Silent())
    after = counters()
    engine.unload()
    return {name: after[name] - before[name] for name in COUNTERS}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write the JSON, print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=30)
    count = parser.parse_args(argv).prompts
    rows: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory() as folder:
        measure({}, 1, False, Path(folder))  # what is imported at first use
        for name, changes in SETTINGS.items():
            for drop in (False, True):
                rows[name + (", dropped" if drop else "")] = measure(changes, count, drop, Path(folder))
    write_result("disk_reads", {"prompts": count, "bytes": rows})
    print_table(["weights", *COUNTERS], [[name, *(row[key] for key in COUNTERS)] for name, row in rows.items()])


if __name__ == "__main__":
    main()
