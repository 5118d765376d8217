"""Plans for transformer families in full size, from files that hold names and shapes alone: what 1024 px take, and with
which settings they fit on small devices."""

import json
import struct
from pathlib import Path

import pytest

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.models.dit_files import full_header
from tests.recordings import CONFIGS, cpu_machine

GB = 1_000_000_000
DTYPES = {2: "BF16", 4: "F32"}
STREAMED = {"stream_weights": "Layers", "fp8_storage": "Enable", "vae_tile_size": 512, "split_feed_forward": "8"}
FAMILIES = {  # text encoders, VAE, and the GB of all weights that are used, in 16 bits
    "z-image": (("te-qwen3-4b",), "vae-flux1", 20.3),
    "flux2-klein-4b": (("te-qwen3-4b",), "vae-flux2", 14.3),
    "flux1-dev": (("te-t5xxl", "te-clip-l"), "vae-flux1", 33.9),
}


def write_empty(path: Path, name: str) -> None:
    """A file of full size on paper: its header, and a hole where the weights would be."""
    header, at = {}, 0
    for key, entry in full_header(name).items():
        size = entry.dtype.itemsize
        for side in entry.shape:
            size *= side
        header[key] = {
            "dtype": DTYPES[entry.dtype.itemsize],
            "shape": list(entry.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + at)


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_in_8_bits_every_size_of_model_fits(name: str, tmp_path: Path) -> None:
    encoders, vae, gigabytes = FAMILIES[name]
    write_empty(tmp_path / "Stable-diffusion" / f"{name}.safetensors", name)
    for encoder in encoders:
        write_empty(tmp_path / "text_encoder" / f"{encoder}.safetensors", encoder)
    write_empty(tmp_path / "VAE" / f"{vae}.safetensors", vae)
    catalogue = CheckpointCatalogue([tmp_path / "Stable-diffusion"], HashCache(tmp_path / "hashes.json"))
    modules = ModuleCatalogue([tmp_path / "text_encoder", tmp_path / "VAE"])
    estimator = MemoryEstimator(Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(modules=modules)), CONFIGS)

    def needed(settings: dict[str, object]) -> tuple[float, int]:
        chosen = Settings().with_changes({"compute_dtype": "bf16", **settings})
        request = GenerationRequest(width=1024, height=1024, steps=4, cfg_scale=1.0, settings=chosen)
        plan = estimator.plan(request, 6 * GB)
        most = max(stage.needs_bytes for stage in plan.stages)
        assert plan.fits == (most <= 6 * GB)
        return most / GB, plan.weights_bytes

    resident, weights = needed({})
    assert weights / GB == pytest.approx(gigabytes, rel=0.03)
    assert resident > weights / GB
    assert needed(STREAMED)[0] < 5.0
