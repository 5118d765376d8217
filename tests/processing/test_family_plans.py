"""Plans for transformer families in full size, from files that hold names and shapes alone: what 1024 px take, and with
which settings they fit on small devices."""

from pathlib import Path

import pytest

from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.files.modules_catalogue import ModuleCatalogue
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.models.full_size import write_full
from tests.recordings import CONFIGS, cpu_machine

GB = 1_000_000_000
STREAMED = {"stream_weights": "Layers", "fp8_storage": "Enable", "vae_tile_size": 512, "split_feed_forward": "8"}
FAMILIES = {"z-image": 20.3, "flux2-klein-4b": 14.3, "flux1-dev": 33.9}  # GB of all weights that are used, in 16 bits


@pytest.mark.parametrize("name", FAMILIES)
def test_streamed_in_8_bits_every_size_of_model_fits(name: str, tmp_path: Path) -> None:
    write_full(tmp_path, name)
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
    assert weights / GB == pytest.approx(FAMILIES[name], rel=0.03)
    assert resident > weights / GB
    assert needed(STREAMED)[0] < 5.0
