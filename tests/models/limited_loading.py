"""For a process of its own: load a checkpoint with a bound on the memory, and say what is in memory then."""

import gc
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from modules.errors import first_line
from modules.memory.streaming.groups import Level
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.load_model import load_model
from modules.models.loading.loaded import LoadedModel
from modules.models.loading.precision import ComputeMode, PrecisionPlan
from modules.models.loading.stream_layout import StreamLayout
from modules.system.devices import release_memory
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

SLACK_BYTES = 32 << 20  # for what Python and the kernels allocate meanwhile: a fifth of the file


def load(path: Path, way: str) -> LoadedModel:
    """`way`: "plain", "streamed" from the file, or an 8-bit format."""
    storage = way if way not in ("plain", "streamed") else None
    plan = PrecisionPlan(
        device=torch.device("cpu"),
        compute_dtype=torch.float32,
        vae_dtype=torch.float32,
        mode=ComputeMode.MANUAL if storage else ComputeMode.PLAIN,
        unet_storage=storage,
        text_storage=storage,
        streaming=StreamLayout(level=Level.LAYER, on_disk=True) if way == "streamed" else None,
    )
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    return load_model(catalogue.get(path.name), CONFIGS, lambda family: plan)


def data_bytes() -> int:
    """Private writable memory of this process: what RLIMIT_DATA bounds on Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def limited(small: Path, path: Path, limit_bytes: int, ways: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Run a tiny model in each way, bound the memory, then run the large one in each: `facts` by way."""
    torch.set_num_threads(1)
    small.mkdir()
    tiny = write_family(small, "sd1")
    for way in ways:
        facts(tiny, way)
    found = {}
    bound = data_bytes() + limit_bytes + SLACK_BYTES
    for way in ways:
        if way == "plain":  # what the tiny models left behind when the bound was set is no room for this one
            bound = min(bound, data_bytes() + limit_bytes)
        resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
        found[way] = facts(path, way)
    return found


def facts(path: Path, way: str) -> dict[str, Any]:
    """Bytes in memory and whether the UNet's output is finite; or the error. Nothing of it stays."""
    try:
        model = load(path, way)
        output = model.predict(torch.zeros(1, 4, 8, 8), torch.tensor([5.0]), torch.zeros(1, 77, 64))
        found: dict[str, Any] = {"stored": model.stored_bytes, "finite": bool(output.isfinite().all())}
        del model
    except (RuntimeError, MemoryError) as error:
        found = {"error": first_line(error)}
    gc.collect()
    release_memory(torch.device("cpu"))
    return found
