import gc
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from modules.errors import CheckpointError, Interrupted, MemoryShortageError, NumericalError, Skipped
from modules.models.families.registry import FAMILIES
from modules.models.families.sd1.family import FAMILY as SD1
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading import load_model as loading
from modules.processing.engine.engine import Engine, ExtraModels
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.engine.status import EngineState
from modules.processing.engine.streaming_options import StreamFlags, StreamOptions, finer_options
from modules.processing.memory_estimate.estimate import MemoryEstimator
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.extensions import adapters_of
from tests.recordings import CONFIGS, TINY, cpu_machine

SMALL = {"width": 64, "height": 64, "steps": 2, "seed": 1, "subseed": 0, "sampler": "Euler"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("a", "b"):
        shutil.copy(TINY, models / f"{name}.safetensors")
        shutil.copy(TINY.with_suffix(".yaml"), models / f"{name}.yaml")
    return models


def engine_of(folder: Path) -> Engine:
    catalogue = CheckpointCatalogue([folder], HashCache(folder.parent / "hashes.json"))
    return Engine(catalogue, CONFIGS, cpu_machine, models=ExtraModels(adapters=adapters_of()))


def state_of(engine: Engine) -> EngineState:
    return engine.status.state


def request(**changes: object) -> GenerationRequest:
    return GenerationRequest(**{**SMALL, **changes})  # type: ignore[arg-type]


def test_the_status_tells_what_is_loaded(folder: Path) -> None:
    engine = engine_of(folder)
    assert state_of(engine) is EngineState.EMPTY
    engine.model("a")
    facts = engine.status.model
    assert state_of(engine) is EngineState.READY and facts is not None
    assert facts.title.startswith("a.safetensors")
    assert (facts.family, facts.parameters, facts.storage) == ("SD 1.x", 20_946_667, "fp32")
    assert facts.stored_bytes == 4 * facts.parameters
    engine.unload()
    assert state_of(engine) is EngineState.EMPTY


def test_a_bad_checkpoint_is_reported_and_the_next_good_one_loads(folder: Path) -> None:
    (folder / "bad.safetensors").write_bytes(b"nothing")
    engine = engine_of(folder)
    with pytest.raises(CheckpointError):
        engine.model("bad")
    assert state_of(engine) is EngineState.FAILED
    assert "bad.safetensors" in engine.status.message
    engine.model("a")
    assert state_of(engine) is EngineState.READY


@pytest.mark.parametrize(("times", "word"), [(1, None), (2, "Parts"), (3, "Blocks"), (4, "Layers"), (5, None)])
def test_a_model_that_does_not_fit_is_streamed(
    times: int, word: str | None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_of(folder)
    expected = generate(request(checkpoint="a"), engine, Output(tmp_path), Silent())
    engine.unload()
    tries = _fail_to_load(monkeypatch, times)
    if times == 5:
        with pytest.raises(MemoryShortageError, match=r"with weights streamed \(Layers\)\. Switch FP8"):
            engine.model("a")
        assert len(tries) == 5 and state_of(engine) is EngineState.FAILED
        assert engine.model("a").streaming is None  # there is room again
        return
    result = generate(request(checkpoint="a"), engine, Output(tmp_path), Silent())
    assert result.samples[0].image.tobytes() == expected.samples[0].image.tobytes()
    said = f"a.safetensors did not fit into memory; its weights are streamed (Stream weights: {word})."
    assert (said in engine.status.message) == (said in result.notices) == (word is not None)
    facts = engine.status.model
    assert facts is not None and bool(facts.streaming) == (word is not None)
    generate(request(checkpoint="a"), engine, Output(tmp_path), Silent())
    assert len(tries) == times + 1  # nothing is tried again for the next image
    engine.unload()
    assert engine.model("a").streaming is None


def test_what_the_user_chose_is_not_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_of(folder)
    tries = _fail_to_load(monkeypatch, 2)
    with pytest.raises(MemoryShortageError, match="with freed memory"):
        engine.model("a", PrecisionOptions(streaming=StreamOptions("Off")))
    assert len(tries) == 2
    flags = StreamFlags(large_only=False, level="block")
    assert [options.weights for options in finer_options(StreamOptions(), flags)] == ["Layers"]


def _fail_to_load(monkeypatch: pytest.MonkeyPatch, times: int) -> list[object]:
    """Have loading run out of memory so many times; the list grows by one a try."""
    real, tries = loading.load_model, list[object]()

    def load(*args: Any) -> Any:
        tries.append(args)
        if len(tries) <= times:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(*args)

    monkeypatch.setattr(loading, "load_model", load)
    return tries


def test_a_file_that_changed_on_disk_is_loaded_again(folder: Path) -> None:
    engine = engine_of(folder)
    before = engine.model("a")
    (folder / "a.safetensors").touch()
    changed = engine.model("a")
    assert changed is not before
    assert engine.model("a") is changed
    (folder / "a.safetensors").unlink()
    assert engine.model("a") is changed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_large_weights_that_need_no_conversion_are_pages_of_the_file_unless_a_setting_says_no(folder: Path) -> None:
    def is_mapped() -> bool:
        gc.collect()
        return str(folder / "a.safetensors") in Path("/proc/self/maps").read_text()

    halves = replace(cpu_machine(), dtype=torch.float16, vae_dtype=torch.float16)
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder.parent / "hashes.json")), CONFIGS, lambda: halves)
    weights = {key: weight.clone() for key, weight in engine.model("a", PrecisionOptions()).unet.state_dict().items()}
    assert is_mapped()
    read = engine.model("a", PrecisionOptions(map_files=False))
    assert not is_mapped()
    assert all(torch.equal(weights[key], weight) for key, weight in read.unet.state_dict().items())
    assert not PrecisionOptions.of(Settings({"disable_mmap_load_safetensors": True})).map_files
    assert PrecisionOptions.of(Settings()).map_files


def test_nan_is_an_error_that_names_the_remedy(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(TINY)
    tensors["model.diffusion_model.out.2.bias"].fill_(float("nan"))
    save_file(tensors, folder / "a.safetensors")
    with pytest.raises(NumericalError, match="--no-half"):
        generate(request(checkpoint="a"), engine_of(folder), Output(tmp_path), Silent())


class StopAt(Silent):
    """Raises at the n-th check."""

    def __init__(self, number: int, error: Exception) -> None:
        self.left = number
        self.error = error
        self.seen: list[int] = []

    def check(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error

    def step(self, done: int, info: object = None) -> None:
        self.seen.append(done)


def test_an_interrupt_keeps_finished_images(folder: Path, tmp_path: Path) -> None:
    events = StopAt(6, Interrupted("stop"))  # the second batch's first evaluation
    result = generate(request(batch_count=3), engine_of(folder), Output(tmp_path), events)
    assert result.interrupted
    assert [image.seed for image in result.samples] == [1]


def test_a_skip_leaves_one_batch_out(folder: Path, tmp_path: Path) -> None:
    result = generate(request(batch_count=3), engine_of(folder), Output(tmp_path), StopAt(2, Skipped("skip")))
    assert not result.interrupted
    assert [image.seed for image in result.samples] == [2, 3]


def test_an_image_in_a_batch_is_the_image_alone(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder)
    for sampler in ("Euler a", "DPM++ 2M SDE"):
        both = generate(request(sampler=sampler, batch_size=2), engine, Output(tmp_path), Silent())
        alone = generate(request(sampler=sampler, seed=2), engine, Output(tmp_path), Silent())
        together = torch.frombuffer(bytearray(both.samples[1].image.tobytes()), dtype=torch.uint8).int()
        single = torch.frombuffer(bytearray(alone.samples[0].image.tobytes()), dtype=torch.uint8).int()
        assert (together - single).abs().max() <= 1


def test_sides_are_cut_to_multiples_of_what_the_family_takes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose denoiser packs 2x2 latents makes images of multiples of 16 pixels; infotext and estimate say so too."""
    monkeypatch.setitem(FAMILIES._entries, "sd1", replace(SD1, latents=replace(SD1.latents, multiple=2)))
    engine = engine_of(folder)
    asked = request(width=72, height=64)
    result = generate(asked, engine, Output(tmp_path), Silent())
    assert [image.image.size for image in result.samples] == [(64, 64)]
    assert "Size: 64x64" in result.samples[0].infotext
    estimator = MemoryEstimator(engine, CONFIGS)
    assert estimator.plan(asked, 1 << 40) == estimator.plan(replace(asked, width=64), 1 << 40)


def test_images_are_saved_with_their_infotext_and_a_grid(folder: Path, tmp_path: Path) -> None:
    result = generate(request(prompt="a cat", batch_size=2), engine_of(folder), Output(tmp_path), Silent())
    grid, first, second = result.images
    assert grid.role == "grid" and grid.image.size == (128, 64)
    assert first.path is not None and second.path is not None and grid.path is not None
    assert first.path.parent.parent == tmp_path / "outputs" / "txt2img-images"
    assert (first.path.name, second.path.name) == ("00000-1.png", "00001-2.png")
    assert first.infotext.startswith(
        "a cat\nSteps: 2, Sampler: Euler, Schedule type: Automatic, CFG scale: 7.0, Seed: 1"
    )


def test_a_folder_that_cannot_be_written_loses_no_image(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("a file in the way")
    result = generate(request(), engine_of(folder), Output(tmp_path), Silent())
    assert len(result.samples) == 1 and result.samples[0].path is None
    assert "could not be saved" in result.notices[0]


def test_previews_are_made_when_wanted(folder: Path, tmp_path: Path) -> None:
    class Watching(Silent):
        sizes: list[tuple[int, int]]

        def wants_preview(self, done: int) -> bool:
            return True

        def preview(self, image: object) -> None:
            self.sizes.append(image.size)  # type: ignore[attr-defined]

    yaml = folder / "a.yaml"
    yaml.write_text(
        yaml.read_text().replace(
            "    linear_start:",
            "    preview_rgb_factors: [[1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 0, 0]]\n    linear_start:",
        )
    )
    events = Watching()
    events.sizes = []
    generate(request(checkpoint="a", steps=3), engine_of(folder), Output(tmp_path), events)
    assert events.sizes == [(64, 64)] * 3


def test_an_adapter_that_is_not_there_is_left_out_with_a_notice(folder: Path, tmp_path: Path) -> None:
    result = generate(request(prompt="a <lora:x:1> cat"), engine_of(folder), Output(tmp_path), Silent())
    assert any("'x' was not found" in notice for notice in result.notices)


def test_settings_of_one_job_do_not_reach_the_next(folder: Path, tmp_path: Path) -> None:
    engine = engine_of(folder)
    plain = generate(request(), engine, Output(tmp_path), Silent())
    generate(request(settings=Settings().changed(CLIP_stop_at_last_layers=2)), engine, Output(tmp_path), Silent())
    again = generate(request(), engine, Output(tmp_path), Silent())
    assert plain.samples[0].image.tobytes() == again.samples[0].image.tobytes()
