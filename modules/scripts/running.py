"""Running a job with its scripts: always-on hooks around it, and the selected script in its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from modules.errors import FeatherweightError, InvalidValueError
from modules.processing.engine.engine import Engine
from modules.processing.record.made import Made, made_in
from modules.processing.record.output import Output, name_context
from modules.processing.request.events import Events, ForwardedEvents
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, Result
from modules.processing.request.source_images import FromImage
from modules.processing.request.stages import Part, PartOf, Stage
from modules.scripts.acting import acting
from modules.scripts.hooks import JobHooks, ScriptRunner
from modules.scripts.job import Job, Making, Processed, SeedDraws
from modules.scripts.library import ScriptLibrary
from modules.scripts.script import Script

if TYPE_CHECKING:
    from modules.sampling.types import StepInfo


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
    taking_part = library.taking_part(is_img2img, request.alwayson_args) if request.runs_scripts else []
    script_runner = ScriptRunner(taking_part, library.callbacks, request)
    notices = script_runner.notices
    depth = 0

    def make(job: Job) -> Processed:
        nonlocal depth
        depth += 1
        asked = job.seed, job.subseed
        try:
            with script_runner.making(job):
                return make_now(job)
        finally:
            depth -= 1
            if is_foreign:  # as in the reference UI a job of -1 made again draws again
                job.seed, job.subseed = asked

    def make_now(job: Job) -> Processed:
        job.fix_seeds()
        for hook in ("setup", "before_process"):
            script_runner.call(hook, job)
        job.list_images()
        script_runner.call("process", job)
        hooks = JobHooks(script_runner, job, library.foreign.listener(script_runner, job))
        if depth > 1:  # a hook asked for it: its images are no images of the job
            result = generate(job.to_request(), engine, output, _Inside(events), hooks)
            notices.extend(note for note in result.notices if note not in notices)
        else:
            cell = cells.next()
            recording = output.recordings.of(task_id, cell.prefix) if output.recordings and task_id else None
            earlier = made_in(made, cell.prefix)
            result = generate(job.to_request(), engine, output, cell, hooks, earlier, recording)
        processed = job.processed_class(result)
        script_runner.call("postprocess", job, processed)
        notices.extend(note for note in job.comments if note not in notices)
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
        hooks = JobHooks(script_runner, p, library.foreign.listener(script_runner, p))

        def on_path(path: Path, fingerprint: str) -> None:
            events.saving(image, path, fingerprint)

        saved, problem = output.save(image, wanted, replace(context, seed=image.seed), hooks=hooks, on_path=on_path)
        if problem:
            notices.append(problem)
        return saved

    if request.script and not library.has_told_before_ui:
        library.before_ui()
    script = library.find(request.script, is_img2img) if request.script else None
    asked = request.requested_seed, request.requested_subseed
    drawn = [seed for seed, wanted in zip((request.seed, request.subseed), asked, strict=True) if wanted < 0]
    is_foreign = script is not None and script.is_foreign
    seeds = SeedDraws((request.seed, request.subseed), drawn if is_foreign else ())
    making = Making(make, lambda: request.settings, save_grid, library.program.styles, seeds)
    with library.foreign.run(making, events) as events:
        cells = _Cells(events)
        p = library.foreign.job_of(request, making, library.extensions.values())
        if is_foreign:  # in the reference UI a script's run begins before seeds are drawn
            p.seed, p.subseed = asked
        processed = None
        if any(one.is_foreign for one in library.scripts):
            selected = (script, request.script_args) if script is not None else None
            library.foreign.begin_job(p, script_runner.all_args(), library.selectable_of(is_img2img), selected)
        if script is not None:
            expected = getattr(script, "expected_cells", None)
            if expected is not None:
                cells.count = max(1, expected(p, *request.script_args))
            processed = _run(script, p, request.script_args)
        if processed is None:
            processed = make(p)
        result = processed.to_result()
    count = max(len(result.samples), 1)
    for extension in library.extensions.values():
        extension.image_s = script_runner.seconds.get(extension.name, 0.0) / count
    return replace(result, notices=(*result.notices, *notices))


def _run(script: Script, p: Job, args: tuple[Any, ...]) -> Processed | None:
    try:
        with acting(script.acting):
            return script.run(p, *args)
    except FeatherweightError:
        raise
    except (Exception, SystemExit) as error:
        if not script.is_foreign and not isinstance(error, USERS_MISTAKES):
            raise
        script.failed("run", error)
        raise InvalidValueError(
            f"The script {script.title()!r} failed: {type(error).__name__}: {error}. Check its arguments; "
            f"the file is {script.filename}."
        ) from error


USERS_MISTAKES = (TypeError, ValueError, IndexError, KeyError, AttributeError)
"""What scripts of ours raise for arguments that are none."""


class _Inside(ForwardedEvents):
    """Events of a run inside of another: what happens and whether it should stop, but neither steps nor images."""

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
