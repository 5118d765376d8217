"""Images that cannot be saved: kept aside or in memory, over a restart too, and saved as soon as it works."""

import time
from pathlib import Path

import pytest
from PIL import Image

from modules.images.metadata import read_metadata
from modules.processing.record import spool as spooling
from modules.processing.record.output import Output, name_context
from modules.processing.record.result import GeneratedImage
from modules.processing.record.spool import Spool
from modules.processing.request import GenerationRequest
from modules.settings.values import Settings

REQUEST = GenerationRequest(prompt="a cat", seed=5, subseed=1, settings=Settings().changed(samples_format="webp"))


def image() -> GeneratedImage:
    return GeneratedImage(Image.new("RGB", (8, 8), (1, 2, 3)), "a cat\nSteps: 1, Sampler: Euler, Seed: 5", 5, 1)


def save(data: Path, spool: Spool) -> tuple[GeneratedImage, str | None]:
    from datetime import datetime

    context = name_context(REQUEST, "m", "h", (5,), datetime.now().astimezone())
    return Output(data, spool=spool).save(image(), REQUEST, context)


def wait(spool: Spool) -> None:
    until = time.monotonic() + 10
    while spool.notice and time.monotonic() < until:
        time.sleep(0.01)
    assert spool.notice == ""


def saved(data: Path) -> list[Path]:
    return list((data / "outputs").rglob("*.webp"))


def test_an_image_is_kept_aside_and_saved_when_it_works(tmp_path: Path) -> None:
    told: list[tuple[Path | None, Path]] = []
    spool = Spool((tmp_path / "spool",), retry_s=0.05)
    spool.listen(lambda before, after: told.append((before, after)))
    (tmp_path / "outputs").write_text("in the way")
    kept, sentence = save(tmp_path, spool)
    assert kept.path is not None and kept.path.parent == tmp_path / "spool" and sentence is not None
    assert "could not be saved" in sentence and f"is kept as {kept.path}" in sentence
    assert spool.notice.startswith("1 image could not be saved")
    assert read_metadata(kept.path)[0] == image().infotext
    (tmp_path / "outputs").unlink()
    wait(spool)
    (path,) = saved(tmp_path)
    assert told == [(kept.path, path)]
    assert read_metadata(path)[0] == image().infotext
    spool.close()
    assert not list((tmp_path / "spool").iterdir())


def test_what_is_kept_outlives_the_program(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("in the way")
    first = Spool((tmp_path / "spool",), retry_s=60)
    save(tmp_path, first)
    first.close()
    (tmp_path / "spool" / "edited.json").write_text("{}")
    (tmp_path / "outputs").unlink()
    second = Spool((tmp_path / "spool",), retry_s=0.05)
    assert second.start() == 1
    wait(second)
    second.close()
    assert len(saved(tmp_path)) == 1


def test_where_no_folder_takes_it_it_stays_in_memory_and_much_pauses_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spooling, "MAX_IN_MEMORY", 2)
    (tmp_path / "outputs").write_text("in the way")
    (tmp_path / "spool").write_text("in the way")
    paused: list[bool] = []
    spool = Spool((tmp_path / "spool",), retry_s=0.05, on_pressure=lambda: paused.append(True))
    kept, sentence = save(tmp_path, spool)
    assert kept.path is None and "kept in memory" in str(sentence) and paused == []
    _, sentence = save(tmp_path, spool)
    assert paused == [True] and "The queue was paused" in str(sentence)
    (tmp_path / "outputs").unlink()
    wait(spool)
    spool.close()
    assert len(saved(tmp_path)) == 2
