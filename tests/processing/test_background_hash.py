"""A checkpoint's hash is taken while its first image is made, and stands in that image."""

import hashlib
import shutil
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from modules.models.files.catalogue import CheckpointCatalogue, CheckpointInfo, HashCache
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest, HiresRequest
from modules.processing.request.result import Result
from modules.processing.request.stages import Part, Stage
from tests.recordings import CONFIGS, TINY, cpu_machine


class Slow(CheckpointCatalogue):
    """Waits for `go` before it reads a file for its hash."""

    go: threading.Event

    def with_hash(
        self, info: CheckpointInfo, on_read: Callable[[int], None] = lambda read_bytes: None
    ) -> CheckpointInfo:
        assert self.go.wait(120)
        return super().with_hash(info, on_read)


class Watching(Silent):
    """Lets the hash be taken when the image is made but for that."""

    def __init__(self, catalogue: Slow) -> None:
        self.catalogue = catalogue
        self.stages: list[Stage] = []

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        self.stages.append(stage)
        if stage is Stage.HASH:
            self.catalogue.go.set()


@pytest.fixture
def catalogue(tmp_path: Path) -> Slow:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b"):
        shutil.copy(TINY, models / f"{name}.safetensors")
        shutil.copy(TINY.with_suffix(".yaml"), models / f"{name}.yaml")
    found = Slow([models], HashCache(tmp_path / "hashes.json"))
    found.go = threading.Event()
    return found


def make(engine: Engine, events: Silent, hires: HiresRequest | None = None) -> Result:
    small = GenerationRequest(
        checkpoint="a", width=64, height=64, steps=1, seed=1, subseed=0, sampler="Euler", save_images=False, hires=hires
    )
    return generate(small, engine, Output(Path()), events)


SHORT = hashlib.sha256(TINY.read_bytes()).hexdigest()[:10]


def test_the_image_is_made_before_the_hash_is_known_and_has_it(catalogue: Slow) -> None:
    engine = Engine(catalogue, CONFIGS, cpu_machine)
    events = Watching(catalogue)
    result = make(engine, events)
    assert f"Model hash: {SHORT}" in result.samples[0].infotext
    assert result.info.checkpoint_hash == SHORT
    assert events.stages.index(Stage.HASH) > events.stages.index(Stage.SAMPLE)
    assert result.timings_s["hash"] >= 0
    assert catalogue.get("a").sha256
    second = Watching(catalogue)
    make(engine, second)
    assert Stage.HASH not in second.stages
    engine.close()


def test_the_status_names_the_model_with_its_hash_once_that_is_known(catalogue: Slow) -> None:
    engine = Engine(catalogue, CONFIGS, cpu_machine)
    model = engine.model("a")
    assert engine.status.model is not None and engine.status.model.title == "a.safetensors"
    catalogue.go.set()
    assert engine.hashed(model.info).shorthash == SHORT
    for _ in range(500):
        if engine.status.model.title != "a.safetensors":
            break
        threading.Event().wait(0.01)
    assert engine.status.model.title == f"a.safetensors [{SHORT}]"
    engine.close()


def test_the_checkpoint_of_the_second_pass_is_named_with_its_hash(catalogue: Slow) -> None:
    engine = Engine(catalogue, CONFIGS, cpu_machine)
    hires = HiresRequest(scale=1.5, steps=1, upscaler="Latent", checkpoint="b", denoising_strength=0.7)
    result = make(engine, Watching(catalogue), hires)
    assert f"Hires checkpoint: b [{SHORT}]" in result.samples[0].infotext
    engine.close()


def test_without_hashes_none_is_taken(catalogue: Slow) -> None:
    engine = Engine(catalogue, CONFIGS, cpu_machine, options=EngineOptions(hashing=False))
    result = make(engine, Watching(catalogue))
    assert "Model hash" not in result.samples[0].infotext and catalogue.get("a").sha256 is None
    engine.close()
