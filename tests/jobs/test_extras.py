"""Extras as a task: several images, broken ones, folders, files, what an interrupted task keeps, and repeating."""

import base64
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from modules.errors import InvalidValueError, OutputError, UnknownNameError
from modules.images.encode import encode_image
from modules.images.metadata import read_metadata
from modules.jobs.job import Job, JobStatus
from modules.jobs.store import JobStore
from modules.jobs.tasks import TaskSpec
from modules.jobs.work.extras import EXTRAS_TYPE, Extras, ExtrasRequest, ExtrasRun, Source
from modules.postprocessing.operation import PostprocessedImage, ScriptPostprocessing
from modules.postprocessing.operations import Operations
from modules.processing.request.result import Result
from modules.settings.store import SettingsStore
from tests.queues import JobQueue


class NoImages:
    """There are no image jobs here."""

    def run(self, job: Job) -> Result:
        raise AssertionError

    def close(self) -> None:
        """Holds nothing."""


class Grey(ScriptPostprocessing):
    """Waits for the test where it is told to, fails for images one pixel wide."""

    name = "Grey"

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def process(self, pp: PostprocessedImage, **args: Any) -> None:
        if pp.image.width == 1:
            raise ZeroDivisionError("a mistake")
        if pp.image.width == 3:
            self.begun.set()
            assert self.go_on.wait(120)
            pp.on_progress(0.5, "half")
        pp.image = pp.image.convert("L").convert("RGB")
        pp.info["Grey"] = "Grey"
        pp.caption = args.get("caption")


GREY: dict[str, dict[str, Any]] = {"Grey": {}}


@pytest.fixture
def grey() -> Grey:
    return Grey()


@pytest.fixture
def extras(tmp_path: Path, grey: Grey) -> Iterator[Extras]:
    queue = JobQueue(NoImages(), JobStore(tmp_path / "jobs.sqlite"))
    queue.start()
    settings = SettingsStore(tmp_path / "config.json")
    settings.update({"save_to_dirs": False})
    yield Extras(queue, Operations([grey]), settings, tmp_path)
    queue.close()


def put(folder: Path, name: str, width: int = 8, infotext: str | None = None) -> Source:
    folder.mkdir(exist_ok=True)
    data = encode_image(Image.new("RGB", (width, 8), "red"), Path(name).suffix, infotext)
    (folder / name).write_bytes(data)
    return Source(name, folder / name)


def done(extras: Extras, *sources: Source, **more: Any) -> ExtrasRun:
    run = extras.start(ExtrasRequest(sources=sources, operations=more.pop("operations", GREY), **more))
    assert run.task.wait(120)
    return run


def test_one_image_is_saved_under_a_number_with_what_it_carried(extras: Extras, tmp_path: Path) -> None:
    run = done(extras, put(tmp_path / "in", "a.png", infotext="a cat\nSteps: 1, Seed: 2, Size: 8x8"))
    (result,) = run.task.result()["results"]
    assert result["path"] == str(tmp_path / "outputs" / "extras-images" / "00000.png")
    infotext, items = read_metadata(Path(result["path"]))
    assert infotext == "a cat\nSteps: 1, Seed: 2, Size: 8x8"
    assert items == {"postprocessing": "Grey", "extras": "Grey"}
    assert run.images[0].image is None, "what lies in a file need not stay in memory"


def test_a_jpeg_carries_what_was_done_after_its_parameters(extras: Extras, tmp_path: Path) -> None:
    extras.settings.update({"samples_format": "jpg"})
    run = done(extras, put(tmp_path / "in", "a.png", infotext="a cat\nSteps: 1, Seed: 2, Size: 8x8"))
    infotext, _ = read_metadata(Path(run.task.result()["results"][0]["path"]))
    assert infotext == "a cat\nSteps: 1, Seed: 2, Size: 8x8, Grey"


def test_broken_images_of_a_batch_are_named_and_the_others_done(extras: Extras, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    put(folder, "a.png"), put(folder, "d.webp"), put(folder, "mistake.png", width=1)
    (folder / "broken.png").write_bytes(b"no image")
    (folder / "notes.txt").write_text("not looked at")
    run = done(extras, *extras.images_in("in"), is_batch=True)
    outcome = run.task.result()
    assert [Path(one["path"]).name for one in outcome["results"]] == ["a.png", "d.png"]
    assert [one["name"] for one in outcome["failures"]] == ["broken.png", "mistake.png"]
    assert "no image file that can be read" in outcome["failures"][0]["error"]
    assert outcome["failures"][1]["error"].startswith("internal error ZeroDivisionError: a mistake")
    (listed,) = (tmp_path / "outputs" / "extras-images").glob("failures-*.txt")
    assert listed.read_text().startswith("broken.png\tThe image broken.png is no image")
    assert str(listed) in outcome["notices"][0]


def test_results_never_replace_images(extras: Extras, tmp_path: Path) -> None:
    folder = tmp_path / "in"
    source = put(folder, "a.png")
    before = (folder / "a.png").read_bytes()
    done(extras, source, is_batch=True, output_dir=folder)
    assert (folder / "a.png").read_bytes() == before
    assert (folder / "a-1.png").is_file()
    extras.settings.update({"use_original_name_batch": False})
    done(extras, source, is_batch=True, output_dir=folder)
    assert (folder / "00000.png").is_file()


@pytest.mark.parametrize(
    ("action", "written"), [("Ignore", "new"), ("Keep", "old"), ("Prepend", "old new"), ("Append", "new old")]
)
def test_a_caption_that_is_there_is_treated_as_set(extras: Extras, tmp_path: Path, action: str, written: str) -> None:
    source = put(tmp_path / "in", "a.png")
    (tmp_path / "in" / "a.txt").write_text("old\n")
    extras.settings.update({"postprocessing_existing_caption_action": action})
    done(extras, source, is_batch=True, operations={"Grey": {"caption": "new"}}, output_dir=tmp_path / "out")
    assert (tmp_path / "out" / "a.txt").read_text() == written


def test_an_interrupted_batch_keeps_what_is_done(extras: Extras, grey: Grey, tmp_path: Path) -> None:
    grey.go_on.clear()
    sources = (put(tmp_path / "in", "a.png"), put(tmp_path / "in", "b.png", width=3), put(tmp_path / "in", "c.png"))
    run = extras.start(ExtrasRequest(sources=sources, operations=GREY, is_batch=True))
    assert grey.begun.wait(120)
    assert extras.queue.running_task() is run.task
    assert run.task.state.phase == "b.png (2 of 3): Grey"
    assert len((run.task.state.outcome or {})["results"]) == 1
    extras.queue.interrupt()  # as POST /sdapi/v1/interrupt
    grey.go_on.set()
    assert run.task.wait(120)
    assert run.task.status is JobStatus.INTERRUPTED
    assert [one["source"] for one in run.task.result()["results"]] == ["a.png"]


def test_single_images_that_cannot_be_done_fail_with_their_sentence(extras: Extras, tmp_path: Path) -> None:
    run = done(extras, Source("of the request", data="!"))
    with pytest.raises(InvalidValueError, match="no base64 text"):
        run.task.result()
    run = done(extras, Source("x.png", tmp_path / "gone.png"), is_batch=True)
    with pytest.raises(InvalidValueError, match=r"None of 1 images could be done. The first, x.png"):
        run.task.result()


def test_work_that_a_crash_left_is_begun_again_from_its_record(extras: Extras, tmp_path: Path) -> None:
    data = base64.b64encode(encode_image(Image.new("RGB", (8, 8)), "png")).decode()
    asked = ExtrasRequest(sources=(Source("x", data=data),), operations=GREY, save=False, user="me")
    again = ExtrasRequest.from_json(json.loads(json.dumps(asked.to_json())))
    assert again == ExtrasRequest(sources=asked.sources, operations=GREY, user="me")
    extras.queue.repeats.add(extras.starters)
    run = done(extras, *again.sources)
    record = extras.queue.store.get(run.task.task_id)
    assert record is not None and record.type == EXTRAS_TYPE and "start" not in record.request


@pytest.mark.parametrize("cut", ["after a source", "after a file", "before a file"])
def test_a_task_that_is_begun_again_saves_nothing_twice(extras: Extras, grey: Grey, tmp_path: Path, cut: str) -> None:
    grey.go_on.clear()
    names = ("a.png", "b.png", "c.png")
    sources = tuple(put(tmp_path / "in", name, width=3 if name == "b.png" else 8) for name in names)
    put(tmp_path / "in", "broken.png")
    (tmp_path / "in" / "broken.png").write_bytes(b"no image")
    sources = (Source("broken.png", tmp_path / "in" / "broken.png"), *sources)
    asked = ExtrasRequest(sources=sources, operations={"Grey": {"caption": "grey"}}, is_batch=True)
    first = extras.start(asked)
    assert grey.begun.wait(120)  # a is saved, b is not
    saved = tmp_path / "outputs" / "extras-images" / "a.png"
    before = saved.stat().st_mtime_ns
    store = JobStore(tmp_path / "jobs.sqlite")  # as the next server after a kill
    if cut != "after a source":
        store.file.database.db.execute("DELETE FROM task_notes WHERE key = '1/all'")
    if cut == "before a file":
        saved.unlink()
    saved.with_suffix(".txt").unlink()
    store.file.database.db.commit()
    queue = JobQueue(NoImages(), store)
    again = Extras(queue, Operations([Grey()]), extras.settings, tmp_path)
    again.queue.repeats.add(again.starters)
    assert queue.restore() == 1
    queue.start()
    task = queue.known.task(first.task.task_id)
    assert task.wait(120)
    assert [Path(one["path"]).name for one in task.result()["results"]] == list(names)
    assert [one["caption"] for one in task.result()["results"]] == ["grey"] * 3
    assert [one["width"] for one in task.result()["results"]] == [8, 3, 8]
    folder = tmp_path / "outputs" / "extras-images"
    assert sorted(path.name for path in folder.glob("*.png")) == list(names)
    assert len(list(folder.glob("failures-*.txt"))) == 1
    assert (saved.stat().st_mtime_ns == before) == (cut != "before a file")
    assert saved.with_suffix(".txt").is_file() == (cut != "after a source")
    assert store.notes(first.task.task_id) == {}
    extras.queue.interrupt()
    grey.go_on.set()
    assert first.task.wait(120)
    queue.close()


def test_folders_that_may_not_be_used_and_empty_ones_are_refused(extras: Extras, tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="There is no folder"):
        extras.images_in("nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InvalidValueError, match="holds no images"):
        extras.images_in("empty")
    with pytest.raises(InvalidValueError, match="There is no image to work on"):
        extras.start(ExtrasRequest(sources=()))
    narrow = Extras(extras.queue, extras.operations, extras.settings, tmp_path, (tmp_path / "outputs",))
    with pytest.raises(OutputError, match="may not be used"):
        narrow.images_in(str(tmp_path / "empty"))
    with pytest.raises(OutputError, match="may not be saved"):
        narrow.start(ExtrasRequest(sources=(Source("x"),), output_dir=tmp_path / "elsewhere"))


def test_a_task_that_made_nothing_has_no_images(extras: Extras) -> None:
    task = extras.queue.submit_spec(TaskSpec("other", "other", lambda task: {}))
    with pytest.raises(UnknownNameError, match="has made no images"):
        extras.run_of(task.task_id)
