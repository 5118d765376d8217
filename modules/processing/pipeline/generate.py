"""From a request to a result, batch by batch: sample, decode, record."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from types import MappingProxyType

import torch
from torch import Tensor

from modules.errors import Interrupted, Skipped
from modules.memory.scratch import release_scratch
from modules.memory.timeline import MemoryTimeline
from modules.processing.engine.chosen_checkpoint import wanted_checkpoint
from modules.processing.engine.engine import Engine
from modules.processing.engine.lease import ModelInUse
from modules.processing.pipeline.followers import check_followers
from modules.processing.pipeline.passes import BatchTools, Passes, sample_batch, scaler_of
from modules.processing.pipeline.previews import Previews
from modules.processing.pipeline.run_pass import PassTools
from modules.processing.pipeline.step_recording import BatchRecorder
from modules.processing.pipeline.steps import StepProgress
from modules.processing.record.made import Made
from modules.processing.record.output import Output
from modules.processing.record.recorder import Recorder
from modules.processing.record.recordings import RunRecording
from modules.processing.request.batch import Batch, draft_of
from modules.processing.request.events import Events, ForwardedEvents
from modules.processing.request.hooks import NO_HOOKS, BatchDraft, Hooks
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import Result
from modules.processing.request.stages import Part, Stage, old_first_pass_size
from modules.processing.request.upscaling import check_upscaler
from modules.system.devices import release_memory
from modules.system.texts import page_text


def generate(
    request: GenerationRequest,
    engine: Engine,
    output: Output,
    events: Events,
    hooks: Hooks = NO_HOOKS,
    made: Made = MappingProxyType({}),
    recording: RunRecording | None = None,
) -> Result:
    """Make the images of a request. Holds the engine's lock throughout. `hooks` take part; `made` is what an earlier
    try has finished, which is not made again. The others come out as if all were made in one go; with `recording` an
    image that was cut off goes on where it was.

    Seeds must be fixed (not -1). An interrupt ends the job with the images that are finished; any other
    `FeatherweightError` is raised.
    """
    assert request.seed >= 0 and request.subseed >= 0, "seeds are fixed when a job is submitted"
    request = with_old_hires_sizes(request)
    if request.hires is not None:
        check_upscaler(request.hires.upscaler, engine.upscalers.catalogue.names)
    faces = request.settings.face_restoration
    if faces.face_restoration:
        engine.faces.check(faces.face_restoration_model)
    with (
        engine.lock,
        torch.inference_mode(),
        MemoryTimeline(engine.machine.device) as timeline,
        ModelInUse(request, engine, hooks.vae_tiles) as in_use,
    ):
        events = clock = StageClock(events, timeline)
        events.stage(Stage.LOAD)
        wanted = wanted_checkpoint(request, engine.catalogue)
        in_use.use(wanted.name)
        check_followers(request, in_use)
        request = request.cut_to(in_use.model.size_multiple_px)
        passes = Passes.of(request, in_use.model, scaler_of(request, engine, in_use, events))
        previews = Previews(request.settings, engine.tiny_vaes)
        steps = StepProgress(events, in_use, previews, request.settings.previews.show_progress_grid)
        steps.plan(passes.steps(in_use.model), request.batch_count)
        recorder = Recorder(request, engine, in_use, output, events, hooks, made)
        recorder.note(wanted.notice)
        recorder.fields(passes.start.fields(in_use.model))
        recorder.sources()
        passing = PassTools(in_use, steps, hooks, BatchRecorder(request, recording))
        tools = BatchTools(engine, passing, events, recorder)
        for number in range(request.batch_count):
            try:
                events.check()
                in_use.use(wanted.name)
                _make_batch(passes, number, tools)
            except Skipped:
                recorder.note(page_text(f"Batch {number + 1} was skipped."))
            except Interrupted:
                recorder.interrupted = True
                break
        recorder.add_grid()
        return recorder.result(timeline.record(), clock.seconds, tuple(previews.notices))


def _make_batch(passes: Passes, number: int, tools: BatchTools) -> None:
    """Sample, decode and record one batch; one that is stopped is recorded as far as it got."""
    hooks, in_use, steps = tools.passing.hooks, tools.passing.in_use, tools.passing.steps
    steps.begin_batch(number)
    draft = draft_of(passes.request, number)
    asked = Batch.of(draft, passes.request)
    tools.recorder.begin(asked)
    if tools.recorder.has_all(asked):
        for index in range(len(asked.seeds)):
            tools.recorder.restore(number, index)
        steps.begin_batch(number + 1)
        return
    hooks.before_batch(draft)
    try:
        latents = hooks.sampled(sample_batch(passes, draft, tools))
    except (Interrupted, Skipped):
        if steps.unfinished is not None:
            tools.events.stage(Stage.DECODE)
            batch = Batch.of(draft, passes.request)
            for index, latent in enumerate(steps.unfinished):
                tools.recorder.image(in_use.model.decode(latent[None]), batch, index, passes.start, is_finished=False)
        raise
    images = _decoded(latents, draft, tools)
    batch = Batch.of(draft, passes.request)
    tools.recorder.begin(batch)
    for index, image in enumerate(images):
        tools.recorder.image(image, batch, index, passes.start)
    tools.passing.recorder.forget_batch(number)


def _decoded(latents: Tensor, draft: BatchDraft, tools: BatchTools) -> Iterable[Tensor]:
    """The images [1,3,H,W] in -1..1 of latents, each decoded when it is asked for; all before the first where hooks
    want whole batches."""

    def decode() -> Iterator[Tensor]:
        for latent in latents:
            tools.events.check()
            tools.events.stage(Stage.DECODE)  # and what the image before has left goes back to the system
            yield tools.passing.in_use.model.decode(latent[None])

    hooks = tools.passing.hooks
    if not hooks.wants_whole_batches:
        return decode()
    unit = [((image[0].float() + 1.0) / 2.0).clamp(0.0, 1.0) for image in decode()]
    return (image[None] * 2.0 - 1.0 for image in hooks.decoded(draft, unit))


def with_old_hires_sizes(request: GenerationRequest) -> GenerationRequest:
    """Under "use width/height sliders to set final resolution" the first pass gets a size of its own."""
    hires = request.hires
    if hires is None or not request.settings.compatibility.use_old_hires_fix_width_height:
        return request
    width, height = old_first_pass_size(request.width, request.height)
    final = replace(hires, resize_width=request.width, resize_height=request.height)
    return replace(request, width=width, height=height, hires=final)


class StageClock(ForwardedEvents):
    """Events that also tell the memory timeline in which stage a job is, and take the time of each stage.

    At each border of stages the heap gives back what is free, so that what a stage needs does not come on top of what
    the one before has left behind.
    """

    def __init__(self, events: Events, timeline: MemoryTimeline) -> None:
        super().__init__(events)
        self._timeline = timeline
        self._stage: Stage | None = None
        self._began = 0.0
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Return the seconds that each stage took so far, over all its parts."""
        self._count()
        return dict(self._seconds)

    def stage(self, stage: Stage, parts: Sequence[Part] = ()) -> None:
        release_scratch()
        release_memory(torch.device("cpu"))
        self._count()
        self._stage = stage
        self._timeline.stage(stage)
        super().stage(stage, parts)

    def _count(self) -> None:
        now = time.monotonic()
        if self._stage is not None:
            self._seconds[self._stage] = self._seconds.get(self._stage, 0.0) + now - self._began
        self._began = now
