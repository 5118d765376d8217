"""A job waits for the checkpoint that it needs, also for one that was deleted after it was listed."""

from pathlib import Path

from safetensors.numpy import save_file

from modules.jobs.needed_models import models_of
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.processing.request.request import GenerationRequest


def test_a_checkpoint_that_is_deleted_is_missing_until_it_is_back(tmp_path: Path) -> None:
    for name in ("a", "b"):
        save_file({}, tmp_path / f"{name}.safetensors")
    models = models_of(CheckpointCatalogue((tmp_path,), HashCache(tmp_path / "hashes.json")))
    _, needs = models.of(GenerationRequest(checkpoint="b.safetensors"))
    assert needs == ("b.safetensors",) and models.missing(needs) == ""
    (tmp_path / "b.safetensors").rename(tmp_path / "aside")
    assert models.missing(needs).startswith("for the checkpoint b.safetensors, which is no longer there")
    (tmp_path / "aside").rename(tmp_path / "b.safetensors")
    assert models.missing(needs) == ""
