"""Running a job with its scripts: always-on hooks around it, and the selected script in its place."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any

from PIL import Image

from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.engine import Engine
from modules.processing.events import Events
from modules.processing.output import Output, name_context
from modules.processing.requests import Txt2ImgRequest
from modules.processing.results import Picture, Result
from modules.scripts.library import ScriptLibrary
from modules.scripts.processing import Processed, StableDiffusionProcessing
from modules.scripts.script import PostprocessImageArgs, Script

log = logging.getLogger(__name__)


def run_with_scripts(
    request: Txt2ImgRequest, engine: Engine, output: Output, events: Events, library: ScriptLibrary
) -> Result:
    """Make a request's pictures. An always-on script that fails is left out with a notice; a selected one fails the
    job. Raises what txt2img raises."""
    from modules.processing.txt2img import txt2img

    cells = _Cells(events)
    notices: list[str] = []

    def make(wanted: Txt2ImgRequest) -> Result:
        return txt2img(wanted, engine, output, cells.next())

    def save_grid(picture: Picture, wanted: Txt2ImgRequest, made: Result) -> Picture:
        info = made.info
        began = datetime.now().astimezone()
        context = name_context(wanted, info.checkpoint_name, info.checkpoint_hash, info.seeds, began)
        saved, problem = output.save(picture, wanted, replace(context, seed=picture.seed))
        if problem:
            notices.append(problem)
        return saved

    p = StableDiffusionProcessing(request, make, save_grid)
    hooks = _Hooks(library.alwayson, request, notices)
    hooks.call("before_process", p)
    hooks.call("process", p)
    processed = None
    if request.script:
        script = library.find(request.script)
        expected = getattr(script, "expected_cells", None)
        if expected is not None:
            cells.count = max(1, expected(p, *request.script_args))
        processed = _run(script, p, request.script_args)
    if processed is None:
        processed = Processed(make(p.to_request()))
    for index, picture in enumerate(processed.pictures):
        args = PostprocessImageArgs(picture, index)
        hooks.call("postprocess_image", p, args)
        if args.image is not picture.image:
            processed.pictures[index] = replace(picture, image=args.image)
    hooks.call("postprocess", p, processed)
    result = processed.to_result()
    return replace(result, notices=(*result.notices, *notices))


def _run(script: Script, p: StableDiffusionProcessing, args: tuple[Any, ...]) -> Processed | None:
    try:
        return script.run(p, *args)
    except FeatherweightError:
        raise
    except (TypeError, ValueError, IndexError, KeyError, AttributeError) as error:
        log.exception("%s failed", script.title())
        raise InvalidValueError(
            f"The script {script.title()!r} failed: {type(error).__name__}: {error}. Check its arguments; "
            f"the file is {script.filename}."
        ) from error


class _Hooks:
    """Calls a hook of all always-on scripts; one that fails is not called again in this job."""

    def __init__(self, scripts: list[Script], request: Txt2ImgRequest, notices: list[str]) -> None:
        given = {title.lower(): args for title, args in request.alwayson_args.items()}
        self._scripts = {script.title(): (script, given.get(script.title().lower(), ())) for script in scripts}
        self._notices = notices

    def call(self, hook: str, *objects: object) -> None:
        for title, (script, args) in list(self._scripts.items()):
            method: Callable[..., None] = getattr(script, hook)
            try:
                method(*objects, *args)
            except Exception as error:  # somebody else's code must not cost the picture
                log.exception("%s of %s failed", hook, title)
                self._notices.append(f"The script {title!r} failed in {hook} ({error}) and was left out.")
                del self._scripts[title]


class _Cells:
    """Spreads a job's progress over the runs that a script makes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.count = 1
        self._begun = 0

    def next(self) -> Events:
        """Events for the next run."""
        self._begun += 1
        return _Cell(self._events, self._begun - 1, max(self.count, self._begun))


class _Cell:
    """Events of one run of several."""

    def __init__(self, events: Events, index: int, count: int) -> None:
        self._events = events
        self._index = index
        self._count = count
        self._total = 0

    def check(self) -> None:
        self._events.check()

    def phase(self, text: str) -> None:
        self._events.phase(text if self._count == 1 else f"{self._index + 1} of {self._count}: {text}")

    def plan(self, total_steps: int) -> None:
        self._total = total_steps
        self._events.plan(total_steps * self._count)

    def step(self, done: int) -> None:
        self._events.step(self._index * self._total + done)

    def latent(self, info: Any) -> None:
        self._events.latent(info)

    def wants_preview(self, done: int) -> bool:
        return self._events.wants_preview(self._index * self._total + done)

    def preview(self, image: Image.Image) -> None:
        self._events.preview(image)

    def finished_picture(self, picture: Picture) -> None:
        self._events.finished_picture(picture)
