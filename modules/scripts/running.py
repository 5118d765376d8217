"""Running a job with its scripts: always-on hooks around it, and the selected script in its place."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.engine.engine import Engine
from modules.processing.pipeline.events import Events, ForwardedEvents
from modules.processing.pipeline.stages import Part, PartOf, Stage
from modules.processing.record.made import Made, made_in
from modules.processing.record.output import Output, name_context
from modules.processing.record.result import GeneratedImage, Result
from modules.processing.request import GenerationRequest
from modules.processing.start import FromImage
from modules.scripts.hooks import JobHooks, ScriptRunner
from modules.scripts.library import ScriptLibrary
from modules.scripts.processing import Processed, StableDiffusionProcessing, job_of
from modules.scripts.script import Script

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo

log = logging.getLogger(__name__)


def run_with_scripts(
    request: GenerationRequest,
    engine: Engine,
    output: Output,
    events: Events,
    library: ScriptLibrary,
    made: Made = MappingProxyType({}),
    task_id: str = "",
) -> Result:
    """Make a request's images. An always-on script that fails is left out with a notice; a selected one fails the
    job. `made`: images of an earlier try, by keys `RUN/KEY`. `task_id`: of the job whose recordings in `output` are
    used, "" for none. Raises what `generate` raises."""
    from modules.processing.pipeline.generate import generate

    is_img2img = isinstance(request.start, FromImage)
    cells = _Cells(events)
    script_runner = ScriptRunner(library.taking_part(is_img2img, request.alwayson_args), library.callbacks, request)
    notices = script_runner.notices
    depth = 0

    def make(job: StableDiffusionProcessing) -> Processed:
        for hook in ("setup", "before_process"):
            script_runner.call(hook, job)
        job.list_images()
        script_runner.call("process", job)
        hooks = JobHooks(script_runner, job)
        nonlocal depth
        depth += 1
        try:
            if depth > 1:  # a hook asked for it: its images are no images of the job
                result = generate(job.to_request(), engine, output, _Inside(events), hooks)
            else:
                cell = cells.next()
                recording = output.recordings.of(task_id, cell.prefix) if output.recordings and task_id else None
                earlier = made_in(made, cell.prefix)
                result = generate(job.to_request(), engine, output, cell, hooks, earlier, recording)
        finally:
            depth -= 1
        processed = Processed(result)
        script_runner.call("postprocess", job, processed)
        return processed

    def save_grid(image: GeneratedImage, wanted: GenerationRequest, result: Result) -> GeneratedImage:
        image = replace(image, key=cells.next_grid())
        earlier = made.get(image.key)
        found = earlier.read() if earlier is not None else None
        if found is not None:
            return found
        info = result.info
        began = datetime.now().astimezone()
        context = name_context(wanted, info.checkpoint_name, info.checkpoint_hash, info.seeds, began)
        hooks = JobHooks(script_runner, p)

        def on_path(path: Path, fingerprint: str) -> None:
            events.saving(image, path, fingerprint)

        saved, problem = output.save(image, wanted, replace(context, seed=image.seed), hooks=hooks, on_path=on_path)
        if problem:
            notices.append(problem)
        return saved

    p = job_of(request, make, save_grid, library.program.styles)
    processed = None
    if request.script:
        script = library.find(request.script, is_img2img)
        expected = getattr(script, "expected_cells", None)
        if expected is not None:
            cells.count = max(1, expected(p, *request.script_args))
        processed = _run(script, p, request.script_args)
    if processed is None:
        processed = make(p)
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


class _Inside(ForwardedEvents):
    """Events of a run inside of another: what happens and whether it shall stop, but neither steps nor images."""

    def plan(self, total_steps: int) -> None:
        return

    def step(self, done: int, info: StepInfo | None = None) -> None:
        return

    def wants_preview(self, done: int) -> bool:
        return False

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        return

    def finished_image(self, image: GeneratedImage) -> None:
        return


class _Cells:
    """Spreads a job's progress over the runs that a script makes."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self.count = 1
        self._begun = 0
        self._grids = 0

    def next_grid(self) -> str:
        """The key of the next grid that a script saves."""
        self._grids += 1
        return f"grid/{self._grids - 1}"

    def next(self) -> _Cell:
        """Events for the next run."""
        self._begun += 1
        return _Cell(self._events, self._begun - 1, max(self.count, self._begun))


class _Cell(ForwardedEvents):
    """Events of one run of several."""

    def __init__(self, events: Events, index: int, count: int) -> None:
        super().__init__(events)
        self._index = index
        self.prefix = f"{index}/"  # of the keys of its images
        self._count = count
        self._total = 0

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        run = (Part(PartOf.RUN, self._index, self._count),) if self._count > 1 else ()
        super().stage(stage, (*run, *parts))

    def saving(self, image: GeneratedImage, path: Path, fingerprint: str) -> None:
        super().saving(self._keyed(image), path, fingerprint)

    def finished_image(self, image: GeneratedImage) -> None:
        super().finished_image(self._keyed(image))

    def _keyed(self, image: GeneratedImage) -> GeneratedImage:
        return replace(image, key=f"{self.prefix}{image.key}")

    def plan(self, total_steps: int) -> None:
        self._total = total_steps
        super().plan(total_steps * self._count)

    def step(self, done: int, info: StepInfo | None = None) -> None:
        super().step(self._index * self._total + done, info)

    def wants_preview(self, done: int) -> bool:
        return super().wants_preview(self._index * self._total + done)
