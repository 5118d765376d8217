"""Several checkpoints in memory: by number, by room, the least recently used first; and no growth."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from modules.errors import MemoryShortageError
from modules.models.files.catalogue import CheckpointCatalogue, HashCache
from modules.models.loading.loaded import LoadedModel
from modules.processing.engine import engine as engine_module
from modules.processing.engine.engine import Engine, EngineOptions
from modules.processing.engine.model_shelf import KeepOptions, KeptModel, ModelShelf, free_bytes
from modules.processing.engine.precision import PrecisionOptions
from modules.processing.engine.status import EngineState
from modules.processing.pipeline.generate import generate
from modules.processing.record.output import Output
from modules.processing.request.events import Silent
from modules.processing.request.request import GenerationRequest
from modules.settings.values import Settings
from tests.recordings import CONFIGS, TINY, cpu_machine

FP8 = PrecisionOptions(fp8_storage="Enable")
QUIET = Settings().with_changes({"samples_save": False, "grid_save": False, "return_grid": False})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name in "abc":
        shutil.copy(TINY, folder / f"{name}.safetensors")
        shutil.copy(TINY.with_suffix(".yaml"), folder / f"{name}.yaml")
    return folder


class Options:
    """The settings as they are now."""

    limit = 2
    max_bytes: int | None = None


@pytest.fixture
def options() -> Options:
    return Options()


@pytest.fixture
def engine(folder: Path, options: Options) -> Iterator[Engine]:
    catalogue = CheckpointCatalogue([folder], HashCache(folder / "hashes.json"))
    engine = Engine(
        catalogue,
        CONFIGS,
        cpu_machine,
        options=EngineOptions(keep=lambda: KeepOptions(options.limit, True, options.max_bytes)),
    )
    yield engine
    engine.unload()


def image(engine: Engine, folder: Path, checkpoint: str) -> bytes:
    small = {"width": 64, "height": 64, "steps": 2, "seed": 1, "subseed": 0}
    request = GenerationRequest(**small, prompt="a", checkpoint=checkpoint, settings=QUIET)  # type: ignore[arg-type]
    return generate(request, engine, Output(folder), Silent()).samples[0].image.tobytes()


def test_a_model_that_is_still_in_memory_is_used_again(engine: Engine, folder: Path) -> None:
    first = image(engine, folder, "a")
    a, conditioner = engine.model("a"), engine.conditioner("a")
    b = engine.model("b")
    assert a.switch_seconds > 0
    a.switch_seconds = -1.0
    assert engine.model("a") is a
    assert a.switch_seconds > 0, "measured at each switch"
    assert engine.status.model is not None and engine.status.model.switch_seconds == a.switch_seconds
    assert engine.status.state is EngineState.READY
    assert engine.status.model is not None and engine.status.model.title.startswith("a.safetensors")
    assert engine.conditioner("a") is conditioner
    assert image(engine, folder, "a") == first
    assert engine.model("b") is b
    engine.model("c")  # drops a, which was used longest ago
    assert engine.model("b") is b
    assert engine.model("a") is not a


def test_by_default_one_model_is_in_memory(folder: Path) -> None:
    engine = Engine(CheckpointCatalogue([folder], HashCache(folder / "hashes.json")), CONFIGS, cpu_machine)
    a = engine.model("a")
    engine.model("b")
    assert engine.model("a") is not a


def test_a_smaller_limit_holds_at_once(engine: Engine, options: Options) -> None:
    a = engine.model("a")
    b = engine.model("b")
    options.limit = 1
    assert engine.model("b") is b
    options.limit = 2
    assert engine.model("a") is not a


def test_another_precision_or_a_changed_file_is_read_again(engine: Engine, folder: Path) -> None:
    a = engine.model("a")
    engine.model("b")
    in_8_bits = engine.model("a", FP8)
    assert in_8_bits is not a
    assert in_8_bits.plan.is_low_precision
    engine.model("b")
    (folder / "a.safetensors").touch()
    engine.catalogue.refresh()
    assert engine.model("a", FP8) is not in_8_bits


def test_unloading_drops_all(engine: Engine) -> None:
    a = engine.model("a")
    engine.model("b")
    engine.unload()
    assert engine.model("a") is not a


def test_models_make_room_for_a_new_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    a = engine.model("a")
    monkeypatch.setattr(engine_module, "free_bytes", lambda device, in_main_memory: 10)
    engine.model("b")
    monkeypatch.undo()
    assert engine.model("a") is not a


def test_running_out_of_memory_while_loading_drops_the_others(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    a = engine.model("a")
    load, attempts = engine._load, []

    def fails_once(*arguments: Any) -> LoadedModel:
        attempts.append(len(engine._shelf))
        if len(attempts) == 1:
            raise torch.OutOfMemoryError("no room")
        return load(*arguments)

    monkeypatch.setattr(engine, "_load", fails_once)
    engine.model("b")
    assert attempts == [1, 0]
    assert engine.model("a") is not a


def test_a_model_that_does_not_fit_is_an_error_that_says_what_to_do(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*arguments: Any) -> LoadedModel:
        raise torch.OutOfMemoryError("no room")

    engine.unload()
    with monkeypatch.context() as patch:
        patch.setattr(engine, "_load", fails)
        with pytest.raises(MemoryShortageError, match="FP8 weight"):
            engine.model("a")
    assert engine.status.state is EngineState.FAILED
    assert engine.model("a").info.model_name


def test_models_that_are_not_in_use_have_a_budget(engine: Engine, options: Options) -> None:
    options.limit = 3
    size = engine.model("a").stored_bytes
    options.max_bytes = round(1.5 * size)
    b = engine.model("b")
    assert len(engine._shelf) == 1
    engine.model("c")  # a goes, which was used longest ago
    assert engine._shelf.names == ("b.safetensors",)
    assert engine.model("b") is b
    options.max_bytes = size // 2
    engine.model("b")
    assert len(engine._shelf) == 0, "a smaller budget holds at once"
    engine.model("c")
    assert len(engine._shelf) == 0, "a model that is larger than the budget is not kept at all"


def test_the_budget_is_that_of_the_place_where_models_wait() -> None:
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    options = KeepOptions(2, in_main_memory=False, max_main_bytes=1, max_device_bytes=2)
    assert (options.max_bytes(cpu), options.max_bytes(cuda)) == (1, 2)
    assert KeepOptions(2, True, 1, 2).max_bytes(cuda) == 1


def kept(name: str) -> KeptModel:
    model: Any = SimpleNamespace(info=SimpleNamespace(path=Path(name), name=name), stored_bytes=10)
    return KeptModel(model, None)


def test_the_shelf_drops_the_least_recently_used_first() -> None:
    shelf = ModelShelf()
    for name in ("a", "b", "c", "a"):
        shelf.put(kept(name))
    assert shelf.names == ("b", "c", "a")
    assert shelf.trim(2)
    assert not shelf.trim(2)
    assert "b" not in shelf.names
    assert shelf.take(Path("b")) is None
    assert shelf.take(Path("c")) is not None
    assert len(shelf) == 1


def test_the_shelf_keeps_to_a_number_of_bytes() -> None:
    shelf = ModelShelf()
    for name in "abc":
        shelf.put(kept(name))
    assert not shelf.trim_bytes(None) and not shelf.trim_bytes(30)
    assert shelf.trim_bytes(25)
    assert (shelf.names, shelf.kept_bytes) == (("b", "c"), 20)


def test_room_is_made_only_as_far_as_it_is_needed() -> None:
    shelf = ModelShelf()
    for name in "abc":
        shelf.put(kept(name))
    assert shelf.make_room(25, lambda: 40 - 10 * len(shelf), lambda: None)
    assert shelf.names == ("c",)
    assert shelf.make_room(10**9, lambda: None, lambda: None), "where nobody can tell, nothing is dropped"
    assert not shelf.make_room(10**9, lambda: 1, lambda: None)
    assert len(shelf) == 0


def test_free_memory_is_found_out() -> None:
    cpu = torch.device("cpu")
    free = free_bytes(cpu, in_main_memory=False)
    assert free is None or free > 0


def test_the_options_comes_from_the_settings() -> None:
    assert KeepOptions.of(Settings()) == KeepOptions(1, True)
    changed = Settings().with_changes({"sd_checkpoints_limit": 3, "sd_checkpoints_keep_in_cpu": False})
    assert KeepOptions.of(changed) == KeepOptions(3, False)
    bounded = Settings().with_changes({"sd_checkpoints_ram_gb": 8, "sd_checkpoints_vram_gb": 0.5})
    assert KeepOptions.of(bounded) == KeepOptions(1, True, 8_000_000_000, 500_000_000)
