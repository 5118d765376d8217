"""Run as a process of its own: load a checkpoint with a bound on the memory, and say what is in memory then."""

import gc
import json
import resource
import sys
from pathlib import Path

import torch

from modules.memory.streaming.groups import Level
from modules.models.catalogue import CheckpointCatalogue, HashCache
from modules.models.loaded import LoadedModel
from modules.models.loading import load_model
from modules.models.precision import ComputeMode, PrecisionPlan
from modules.models.stream_plan import StreamPlan
from tests.models.family_files import write_family
from tests.recordings import CONFIGS

SLACK_BYTES = 16 << 20  # for what Python itself allocates meanwhile


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
        streaming=StreamPlan(level=Level.LAYER, on_disk=True) if way == "streamed" else None,
    )
    catalogue = CheckpointCatalogue([path.parent], HashCache(path.parent / "hashes.json"))
    return load_model(catalogue.get(path.name), CONFIGS, lambda family: plan)


def data_bytes() -> int:
    """Private writable memory of this process: what RLIMIT_DATA bounds on Linux."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


def main(path: Path, limit_bytes: int, ways: list[str]) -> None:
    """Warm up with a tiny model, bound the memory, load in each way and run the UNet."""
    torch.set_num_threads(1)
    small = path.parent / "small"
    small.mkdir()
    tiny = write_family(small, "sd1")
    for way in ways:
        load(tiny, way)
    gc.collect()
    bound = data_bytes() + limit_bytes + SLACK_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (bound, bound))
    print(json.dumps({way: facts(path, way) for way in ways}))


def facts(path: Path, way: str) -> dict[str, object]:
    """Bytes in memory and whether the UNet's output is finite; or the error."""
    try:
        model = load(path, way)
    except (RuntimeError, MemoryError) as error:
        return {"error": str(error).splitlines()[0]}
    output = model.predict(torch.zeros(1, 4, 8, 8), torch.tensor([5.0]), torch.zeros(1, 77, 64))
    return {"stored": model.stored_bytes, "finite": bool(output.isfinite().all())}


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
