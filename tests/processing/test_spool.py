"""Images that cannot be saved: kept aside or in memory, over a restart too, and saved as soon as it works."""

import os
import time
from pathlib import Path

import pytest
from PIL import Image

from modules.images.metadata import read_metadata
from modules.processing.record import spool as spooling
from modules.processing.record.output import Output, name_context
from modules.processing.record.spool import Spool, temporary_spool
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage
from modules.settings.values import Settings

REQUEST = GenerationRequest(prompt="a cat", seed=5, subseed=1, settings=Settings().changed(samples_format="webp"))


def image() -> GeneratedImage:
    return GeneratedImage(Image.new("RGB", (8, 8), (1, 2, 3)), "a cat\nSteps: 1, Sampler: Euler, Seed: 5", 5, 1)


def save(data: Path, spool: Spool) -> tuple[GeneratedImage, str | None]:
    from datetime import datetime

    context = name_context(REQUEST, "m", "h", (5,), datetime.now().astimezone())
    return Output(data, spool=spool).save(image(), REQUEST, context)


def wait(spool: Spool) -> None:
    until = time.monotonic() + 120
    while spool.notice and time.monotonic() < until:
        time.sleep(0.01)
    assert spool.notice == ""


def saved(data: Path) -> list[Path]:
    return list((data / "outputs").rglob("*.webp"))


def test_an_image_is_kept_aside_and_saved_when_it_works(tmp_path: Path) -> None:
    told: list[tuple[Path | None, Path]] = []
    spool = Spool((tmp_path / "spool",), retry_s=0.05)
    spool.listen(lambda saved: told.append((saved.before, saved.after)))
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


def test_only_what_this_user_put_there_is_taken_up(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("in the way")
    spool = Spool((tmp_path / "spool",), retry_s=60)
    kept, _ = save(tmp_path, spool)
    spool.close()
    assert kept.path is not None
    note = kept.path.with_suffix(".json")
    assert (tmp_path / "spool").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (note, kept.path)} == {0o600}
    for name in ("link", "other"):  # a link to an image of ours, and one that has a second name
        (tmp_path / "spool" / f"{name}.json").write_bytes(note.read_bytes())
    (tmp_path / "spool" / "link.png").symlink_to(kept.path)
    os.link(kept.path, tmp_path / "elsewhere.png")
    second = Spool((tmp_path / "spool",), retry_s=60)
    assert second.start() == 0
    (tmp_path / "elsewhere.png").unlink()
    assert second.start() == 1
    second.close()


def test_a_folder_that_is_a_link_or_anothers_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs").write_text("in the way")
    first = Spool((tmp_path / "theirs",), retry_s=60)
    save(tmp_path, first)
    first.close()
    (tmp_path / "spool").symlink_to(tmp_path / "theirs")
    linked = Spool((tmp_path / "spool",), retry_s=60)
    assert linked.start() == 0
    kept, sentence = save(tmp_path, linked)
    assert kept.path is None and sentence is not None and "kept in memory" in sentence
    linked.close()
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert Spool((tmp_path / "theirs",), retry_s=60).start() == 0


def test_a_note_that_names_a_folder_outside_of_the_allowed_ones_is_left(tmp_path: Path) -> None:
    (tmp_path / "outputs").write_text("in the way")
    first = Spool((tmp_path / "spool",), retry_s=60)
    save(tmp_path, first)
    first.close()
    assert Spool((tmp_path / "spool",), (tmp_path / "other",), retry_s=60).start() == 0
    second = Spool((tmp_path / "spool",), (tmp_path / "outputs",), retry_s=60)
    assert second.start() == 1
    second.close()


def test_two_data_folders_of_one_name_have_two_spools(tmp_path: Path) -> None:
    assert temporary_spool(tmp_path / "a" / "data") != temporary_spool(tmp_path / "b" / "data")
