"""Extras: images from files, a folder or a client, each through the operations, as one task in the queue.

An image that fails is named and left out; the others are done. What is finished when the user stops stays.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import FeatherweightError, Interrupted, InvalidValueError, OutputError, UnknownNameError
from modules.images.encode import decode_base64
from modules.images.metadata import read_metadata, writable
from modules.images.naming import NameContext
from modules.images.reading import open_image, read_image
from modules.images.saving import OnPath, check_folder, samples_folder, save_image
from modules.jobs.computing import Computing
from modules.jobs.job import WorkerLostError
from modules.jobs.line import Line
from modules.jobs.tasks import Outcome, Starter, Task, TaskSpec
from modules.postprocessing.operation import PostprocessedImage
from modules.postprocessing.operations import Arguments, Operations, check_arguments, infotext_of
from modules.settings.store import SettingsStore
from modules.settings.values import Settings
from modules.system.atomic_files import fingerprint as fingerprint_of_file
from modules.system.atomic_files import output_error, write_atomic
from modules.system.file_names import given_path, lies_in
from modules.system.texts import page_text

log = logging.getLogger(__name__)

EXTRAS_TYPE = "extras"
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".avif", ".gif", ".bmp")
ALL_DONE = "all"
POSTPROCESSING = "postprocessing"
"""The text chunk of a PNG that says what was done to it."""
Operate = Callable[[PostprocessedImage, Arguments], Sequence[PostprocessedImage]]
"""See `Operations.run`."""


@dataclass(frozen=True)
class Source:
    """An image to work on: a file, or the base64 text that a client sent. `name` is what messages call it."""

    name: str
    path: Path | None = None
    data: str | None = None

    def read(self) -> tuple[Image.Image, str | None, dict[str, str]]:
        """The image as RGB, or as RGBA where it has an alpha channel, the infotext it carries, and its other texts.

        Raises `InvalidValueError`.
        """
        what = f"The image {self.name}"
        if self.path is not None:
            stored: bytes | Path = self.path
        else:
            stored = decode_base64(self.data or "", what)
        infotext, items = read_metadata(open_image(stored, what))
        image = read_image(stored, what)
        image = image if image.mode == "RGBA" else image.convert("RGB")
        return image, infotext, {k: v for k, v in items.items() if k not in (POSTPROCESSING, "extras")}


@dataclass(frozen=True, kw_only=True)
class ExtrasRequest:
    """Request: images, and the operations with their arguments.

    `output_dir` None: the folder of the settings. `is_batch`: an image that fails does not end the task, and files are
    named after their sources. `save`: write files. `show`: keep the results for the page (a folder may be large).
    """

    sources: tuple[Source, ...]
    operations: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    output_dir: Path | None = None
    is_batch: bool = False
    save: bool = True
    show: bool = True
    user: str = ""

    def to_json(self) -> dict[str, Any]:
        """For the record; what was sent is under `start`, which a finished record leaves out."""
        return {
            "start": [
                {"name": one.name, "path": str(one.path) if one.path else None, "data": one.data}
                for one in self.sources
            ],
            "operations": {name: dict(args) for name, args in self.operations.items()},
            "output_dir": str(self.output_dir) if self.output_dir else None,
            "is_batch": self.is_batch,
            "user": self.user,
        }

    @property
    def attached(self) -> dict[str, Any]:
        """Return what the record leaves out: work that is begun from it saves its results, since nobody waits for
        them."""
        return {"save": self.save, "show": self.show}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> ExtrasRequest:
        """The inverse of `to_json`, and of `attached` where that is with it."""
        return cls(
            sources=tuple(
                Source(one["name"], Path(one["path"]) if one["path"] else None, one["data"]) for one in record["start"]
            ),
            operations=record["operations"],
            output_dir=Path(record["output_dir"]) if record["output_dir"] else None,
            is_batch=bool(record["is_batch"]),
            save=bool(record.get("save", True)),
            show=bool(record.get("show", True)),
            user=str(record["user"]),
        )


@dataclass(frozen=True)
class ExtrasImage:
    """A result. `infotext`: what was done; `parameters`: how the image was made before. `image` is let go once it is
    saved and nobody waits for it."""

    source: str
    size: tuple[int, int]
    infotext: str
    parameters: str | None
    image: Image.Image | None
    items: Mapping[str, str] = field(default_factory=dict)
    path: Path | None = None
    caption: str | None = None


@dataclass(frozen=True)
class Failure:
    """An image that could not be done, and why."""

    name: str
    error: str


class ExtrasRun:
    """A task and what it has made (its `Product`), for whoever waits for the images themselves."""

    def __init__(self, request: ExtrasRequest) -> None:
        self.request = request
        self.images: list[ExtrasImage] = []
        self.failures: list[Failure] = []
        self.notices: list[str] = []
        self.task: Task  # set when it is submitted
        self.operate: Operate | None = None  # where another server does the operations

    def begin(self, task: Task) -> None:
        """See `Product`."""
        self.task, self.images, self.failures, self.notices = task, [], [], []

    def add(self, item: ExtrasImage | Failure | str) -> None:
        """A result, one that could not be done, or a notice."""
        if isinstance(item, ExtrasImage):
            self.images.append(item)
        elif isinstance(item, Failure):
            self.failures.append(item)
        else:
            self.notices.append(item)

    def outcome(self) -> Outcome:
        """Return it as JSON, for page, API and record."""
        return {
            "results": [
                {
                    "source": one.source,
                    "path": str(one.path) if one.path else None,
                    "width": one.size[0],
                    "height": one.size[1],
                    "infotext": one.infotext,
                    "parameters": one.parameters,
                    "caption": one.caption,
                }
                for one in self.images
            ],
            "failures": [{"name": one.name, "error": one.error} for one in self.failures],
            "notices": list(dict.fromkeys(self.notices)),
        }


@dataclass(frozen=True)
class Extras:
    """Starts and runs Extras. `allowed`: the folders that may be read and written; None: any."""

    queue: Line
    operations: Operations
    settings: SettingsStore
    data_dir: Path
    allowed: tuple[Path, ...] | None = None

    def start(self, request: ExtrasRequest) -> ExtrasRun:
        """Check what can be checked, and put the work in line. Raises `FeatherweightError`s for arguments that are not
        allowed, unknown upscalers, folders that may not be used, and a queue that is full."""
        run, spec = self._spec(request)
        run.task = self.queue.submit_spec(spec)
        return run

    def _spec(self, request: ExtrasRequest, settings: Settings | None = None) -> tuple[ExtrasRun, TaskSpec]:
        """The work before it is in line, and what it fills. Raises as `start`."""
        if not request.sources:
            raise InvalidValueError("There is no image to work on. Choose one, or a folder that holds some.")
        request = replace(request, operations=check_arguments(self.operations, request.operations))
        settings = settings or self.settings.current
        if request.save:
            check_folder(self._folder(request, settings), self.allowed)
        run = ExtrasRun(request)
        count = len(request.sources)
        title = page_text(f"Extras: {request.sources[0].name}") if count == 1 else page_text(f"Extras: {count} images")

        def work(task: Task) -> Outcome:
            return self._work(task, run, settings)

        return run, TaskSpec(
            EXTRAS_TYPE,
            title,
            work,
            request.to_json(),
            makes_images=True,
            product=run,
            user=request.user,
            attached={**request.attached, "settings": settings},
        )

    def images_in(self, folder: str) -> tuple[Source, ...]:
        """The image files of a folder of this machine, by name; raises `InvalidValueError` and `OutputError`."""
        path = self.folder(folder)
        if not path.is_dir():
            raise InvalidValueError(f"There is no folder {path}. Give the path of a folder on the server's machine.")
        found = [file for file in sorted(path.iterdir()) if file.suffix.lower() in SUFFIXES and file.is_file()]
        if not found:
            raise InvalidValueError(f"The folder {path} holds no images ({', '.join(SUFFIXES)}).")
        return tuple(Source(file.name, file) for file in found)

    def folder(self, text: str) -> Path:
        """A folder that a user named, relative to the data folder; raises `OutputError` for one that is not allowed."""
        path = self.data_dir / given_path(text)
        if self.allowed is not None and not lies_in(path, self.allowed):
            raise OutputError(
                f"The folder {path} may not be used: other machines reach this server, so that it reads and writes "
                f"only in {', '.join(map(str, self.allowed))}. Start it with --gradio-allowed-path FOLDER to allow it."
            )
        return path

    def run_of(self, task_id: str) -> ExtrasRun:
        """Return what a task has made; raises `UnknownNameError` for one that is not remembered or has not begun."""
        run = self.queue.known.task(task_id).product
        if not isinstance(run, ExtrasRun):
            raise UnknownNameError(f"The task {task_id!r} has made no images.")
        return run

    @property
    def starters(self) -> Mapping[str, Starter]:
        """How work is begun from its record."""
        return {EXTRAS_TYPE: lambda record: self._spec(ExtrasRequest.from_json(record), record.get("settings"))[1]}

    # -- in the worker's thread --------------------------------------------------------------------------------------

    def _work(self, task: Task, run: ExtrasRun, settings: Settings) -> Outcome:
        request = run.request
        count = len(request.sources)
        try:
            for index, source in enumerate(request.sources):
                tell = _teller(task, index, count, source.name)
                earlier = _earlier_results(task, index)
                if ALL_DONE in earlier:
                    for saved in earlier[ALL_DONE]:
                        task.produce(saved)
                    continue
                try:
                    operate = run.operate or self.operations.run
                    for number, found in enumerate(self._done(source, request, settings, operate, tell)):
                        if str(number) in earlier:
                            self._was_finished(found[0], earlier[str(number)][0], run, settings)
                        else:
                            self._finished(found, run, settings, partial(_note, task, index, number, found[0]))
                    task.note(f"{index}/{ALL_DONE}", {})
                except (Interrupted, WorkerLostError):
                    raise
                except Exception as error:
                    if not request.is_batch:
                        raise
                    if not isinstance(error, FeatherweightError):
                        log.exception("Extras of %s failed", source.name)
                    task.produce(Failure(source.name, _sentence(error)))
                task.keep(run.outcome())
        finally:
            self._save_failures(task, run, settings)
        if request.is_batch and not run.images and run.failures:
            raise InvalidValueError(
                f"None of {count} images could be done. The first, {run.failures[0].name}: {run.failures[0].error}"
            )
        return run.outcome()

    def _done(
        self,
        source: Source,
        request: ExtrasRequest,
        settings: Settings,
        operate: Operate,
        tell: Callable[[float, str], None],
    ) -> Iterator[tuple[ExtrasImage, str]]:
        """The results of one source, each with the suffix of its file."""
        tell(0.0, "reading")
        image, parameters, items = source.read()
        first = PostprocessedImage(image, settings, on_progress=tell)
        suffixes: dict[str, int] = {}
        for one in operate(first, request.operations):
            infotext = infotext_of(one.info)
            suffix = one.get_suffix(suffixes)
            yield (
                ExtrasImage(source.name, one.image.size, infotext, parameters, one.image, items, caption=one.caption),
                suffix,
            )

    def _was_finished(self, found: ExtrasImage, saved: ExtrasImage, run: ExtrasRun, settings: Settings) -> None:
        """A result that an earlier try has saved; its caption may not have been."""
        if found.caption is not None and saved.path is not None:
            _save_caption(found, saved.path, run.request, settings)
        run.task.produce(saved)

    def _finished(self, result: tuple[ExtrasImage, str], run: ExtrasRun, settings: Settings, on_path: OnPath) -> None:
        found, suffix = result
        if run.request.save:
            try:
                path = self._saved(found, suffix, run, settings, on_path)
                found = replace(found, path=path, image=None)
            except OutputError as error:
                if run.request.is_batch:
                    raise
                run.task.produce(page_text(f"{error} The image is kept here until the server ends: save it by hand."))
        is_kept = run.request.show or not run.request.save
        run.task.produce(found if is_kept else replace(found, image=None))

    def _folder(self, request: ExtrasRequest, settings: Settings) -> Path:
        return request.output_dir or samples_folder(settings, self.data_dir, "extras")

    def _saved(self, found: ExtrasImage, suffix: str, run: ExtrasRun, settings: Settings, on_path: OnPath) -> Path:
        assert found.image is not None
        folder = self._folder(run.request, settings)
        check_folder(folder, self.allowed)
        keeps_name = run.request.is_batch and settings.saving.use_original_name_batch
        path = save_image(
            found.image,
            folder,
            settings,
            NameContext(width=found.size[0], height=found.size[1], user=run.request.user),
            text_of(found, settings.saving.samples_format),
            items={**found.items, **chunks_of(found), "extras": found.infotext},
            stem=Path(found.source).stem if keeps_name else "",
            suffix=suffix,
            on_path=on_path,
        )
        if found.caption is not None:
            _save_caption(found, path, run.request, settings)
        return path

    def _save_failures(self, task: Task, run: ExtrasRun, settings: Settings) -> None:
        """The list of failures next to the results, as text; one file, however often the task is begun."""
        if not (run.failures and run.request.save):
            return
        folder = self._folder(run.request, settings)
        path = folder / f"failures-{datetime.fromtimestamp(task.created_at):%Y%m%d-%H%M%S}.txt"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_atomic(path, "".join(f"{one.name}\t{one.error}\n" for one in run.failures).encode())
        except OSError as error:
            log.error("%s", output_error("The list of failures", folder, error))
            return
        task.produce(page_text(f"The list of failures is saved as {path}."))


def _note(task: Task, index: int, number: int, found: ExtrasImage, path: Path, fingerprint: str) -> None:
    """Result `number` of a source is about to appear at a path."""
    data: dict[str, Any] = {"path": str(path), "fingerprint": fingerprint}
    data |= {"source": found.source, "size": list(found.size)}
    data |= {"infotext": found.infotext, "parameters": found.parameters, "caption": found.caption}
    task.note(f"{index}/{number}", data)


def _earlier_results(task: Task, index: int) -> dict[str, list[ExtrasImage]]:
    """List what an earlier try has saved of a source, by number: files that are as they were announced. Under
    `ALL_DONE` all of it, if it had come to the source's end."""
    results: dict[str, list[ExtrasImage]] = {}
    prefix = f"{index}/"
    notes = {key.removeprefix(prefix): data for key, data in task.noted.items() if key.startswith(prefix)}
    is_whole = ALL_DONE in notes
    for number, data in sorted(notes.items(), key=lambda note: (len(note[0]), note[0])):
        try:
            path = Path(data["path"])
            if is_whole or fingerprint_of_file(path) == data["fingerprint"]:
                width, height = data["size"]
                found = ExtrasImage(data["source"], (width, height), data["infotext"], data["parameters"], None)
                results[number] = [replace(found, path=path, caption=data["caption"])]
        except (OSError, KeyError, TypeError, ValueError):
            continue
    if is_whole:
        results[ALL_DONE] = [one for found in results.values() for one in found]
    return results


def chunks_of(found: ExtrasImage) -> dict[str, str]:
    """The text chunk that says what was done, as the reference UI's images carry it."""
    return {POSTPROCESSING: found.infotext}


def text_of(found: ExtrasImage, extension: str) -> str | None:
    """The one text that an image of this format carries as its parameters. A PNG has chunks of their own for what was
    done; elsewhere it follows the parameters on their last line."""
    if extension.lower() == "png":
        return found.parameters
    return ", ".join(text for text in (found.parameters, found.infotext) if text) or None


def _save_caption(found: ExtrasImage, path: Path, request: ExtrasRequest, settings: Settings) -> None:
    """Beside the image; a caption that is next to the source is treated as the setting says."""
    caption = found.caption or ""
    action = settings.postprocessing.postprocessing_existing_caption_action
    source = next((one.path for one in request.sources if one.name == found.source), None)
    beside = source.with_suffix(".txt") if source is not None else None
    if action != "Ignore" and beside is not None and beside.is_file():
        existing = beside.read_text(encoding="utf-8", errors="replace").strip()
        if existing:
            caption = {
                "Keep": existing,
                "Prepend": f"{existing} {caption}",
                "Append": f"{caption} {existing}",
            }[action]
    try:
        write_atomic(path.with_suffix(".txt"), writable(caption.strip()).encode())
    except OSError as error:
        raise output_error("The caption", path.parent, error) from error


def _teller(task: Task, index: int, count: int, name: str) -> Callable[[float, str], None]:
    def tell(fraction: float, phase: str) -> None:
        place = f"{name} ({index + 1} of {count})" if count > 1 else name
        task.progress(index + fraction, count, f"{place}: {phase}" if phase else place)

    return tell


def _sentence(error: Exception) -> str:
    if isinstance(error, FeatherweightError):
        return str(error)
    return page_text(f"internal error {type(error).__name__}: {error}. The log says more.")


def unique_names(names: Sequence[str]) -> list[str]:
    """File names of uploads, a number added to those that come twice."""
    seen: dict[str, int] = {}
    found = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        found.append(name if seen[name] == 1 else f"{Path(name).stem}-{seen[name]}{Path(name).suffix}")
    return found


def extras_of(computing: Computing) -> Extras:
    """Return the work of the Extras tab of this program."""
    return Extras(
        computing.queue, computing.operations, computing.settings, computing.paths.data_dir, computing.history_folders
    )
