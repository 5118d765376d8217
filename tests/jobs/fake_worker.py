"""A worker without a model: its host draws plain images, and does what prompts say. Imports no torch."""

import faulthandler
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import Interrupted, Skipped
from modules.images.naming import NameContext
from modules.jobs.job import Job
from modules.jobs.tasks import Outcome, Task, TaskSpec
from modules.jobs.workers.loop import Asking, AskingOutput
from modules.jobs.workers.protocol import Question
from modules.models.files.hashing import HashProgress
from modules.processing.engine.status import EngineState, EngineStatus
from modules.processing.record.output import Output
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request.stages import Stage
from modules.settings.values import Settings


@dataclass
class FakeHost:
    """What a prompt begins with says what happens at the second image: "kill", "segfault", "device", "hang", "error",
    "slow"; followed by ":FILE", only once."""

    output: Output
    device: str = "CPU"
    status: EngineStatus = field(default_factory=lambda: EngineStatus(EngineState.EMPTY, "empty"))
    settings: Settings = field(default_factory=Settings)

    @property
    def executor(self) -> "FakeHost":
        return self

    def run(self, job: Job) -> Result:
        request = job.request
        job.stage(Stage.SAMPLE)
        job.plan(request.steps * request.batch_count)
        images: list[GeneratedImage] = []
        interrupted = False
        for batch in range(request.batch_count):
            key = f"0/{batch}/0"
            earlier = job.made.get(key)
            if earlier is not None and (found := earlier.read()) is not None:
                images.append(found)
                continue
            try:
                for step in range(request.steps):
                    if batch == request.batch_count - 1 and step == 1:
                        do(request.prompt)
                    job.check()
                    time.sleep(0.05 if request.prompt.startswith("slow") else 0.001)
                    job.step(batch * request.steps + step + 1)
                    if job.wants_preview(step + 1):
                        job.preview(Image.new("RGB", (16, 16), (step % 256, 80, 80)))
            except Interrupted:
                interrupted = True
                break
            except Skipped:
                continue
            images.append(self._saved(job, request, batch, key))
        return result_of(request, images, interrupted)

    def _saved(self, job: Job, request: GenerationRequest, batch: int, key: str) -> GeneratedImage:
        seed = request.seed + batch
        pixels = Image.new("RGB", request.size_px, (seed % 256, 80, 120))
        image = GeneratedImage(pixels, f"{request.prompt}\nSeed: {seed}", seed, 0, key=key)
        if request.save_images:
            context = NameContext(seeds=(request.seed,), seed=seed)

            def on_path(path: Path, fingerprint: str) -> None:
                job.saving(image, path, fingerprint)

            image, problem = self.output.save(image, request, context, on_path=on_path)
            assert problem is None or "kept" in problem
        job.finished_image(image)
        return image

    def close(self) -> None:
        """Holds nothing."""

    def load(self, checkpoint: str | None) -> None:
        self.status = EngineStatus(EngineState.READY, f"loaded {checkpoint}")
        self.hashing = HashProgress(checkpoint, 0.5) if checkpoint else None

    hashing: HashProgress | None = None

    def answer(self, question: Question, arguments: tuple[Any, ...]) -> Any:
        match question:
            case Question.UNLOAD:
                self.status = EngineStatus(EngineState.EMPTY, "unloaded")
            case Question.RELOAD:
                raise Interrupted("cannot be loaded again")
            case Question.MEMORY:
                return {"ram": {"used": self.settings.system.queue_limit}}
            case Question.ROOM:
                return not arguments[0].prompt.startswith("large")
        return None

    def spec_of(self, type: str, request: Mapping[str, Any]) -> TaskSpec:
        return fake_spec(dict(request), self.settings)

    def change_settings(self, settings: Settings) -> None:
        self.settings = settings

    def refresh(self) -> None:
        """Finds nothing."""

    def rest(self) -> bool:
        return True


def result_of(request: GenerationRequest, images: list[GeneratedImage], interrupted: bool) -> Result:
    info = GenerationInfo(
        prompts=(request.prompt,),
        negative_prompts=("",),
        seeds=tuple(image.seed for image in images),
        subseeds=(0,),
        subseed_strength=0.0,
        width=request.size_px[0],
        height=request.size_px[1],
        sampler=request.sampler,
        scheduler="Automatic",
        cfg_scale=7.0,
        steps=request.steps,
        batch_size=1,
        checkpoint_name="x",
        checkpoint_hash="",
        vae_name=None,
        vae_hash=None,
        seed_resize_from_width=0,
        seed_resize_from_height=0,
        denoising_strength=None,
        extra_params={},
        infotexts=tuple(image.infotext for image in images),
        styles=(),
        job_timestamp="",
        clip_skip=1,
        version="",
    )
    return Result(images=tuple(images), info=info, interrupted=interrupted)


def do(prompt: str) -> None:
    word, _, rest = prompt.partition(":")
    if rest and Path(rest).exists():
        return
    if rest:
        Path(rest).touch()
    if word == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "segfault":
        faulthandler.disable()
        faulthandler._sigsegv()  # type: ignore[attr-defined]
    if word == "device":
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    if word == "error":
        raise RuntimeError("boom")
    if word == "hang":
        time.sleep(600)


class FakeProduct:
    """What a fake task has produced."""

    def __init__(self) -> None:
        self.items: list[Any] = []

    def begin(self, task: Task) -> None:
        self.items = []

    def add(self, item: Any) -> None:
        self.items.append(item)


def fake_spec(asked: dict[str, Any], settings: Settings) -> TaskSpec:
    """Four steps; `how` says what happens at the third, as a prompt does. A step that was noted is not done again.
    "images:FILE": before the last one images are let in, once the file is there."""

    def work(task: Task) -> Outcome:
        done = []
        for step in range(4):
            task.progress(step, 4, f"step {step}")
            if str(step) in task.noted:
                continue
            if step == 2 and not asked["how"].startswith("images"):
                do(asked["how"])
            if step == 3 and asked["how"].startswith("images"):
                while not Path(asked["how"].partition(":")[2]).exists():
                    time.sleep(0.01)
                task.let_images_in(lambda job: False)  # the server asks by itself
            time.sleep(0.05 if asked["how"].startswith("slow") else 0.0)
            task.produce((step, asked.get("attached", "")))
            task.note(str(step), {})
            done.append(step)
            task.keep({"done": done})
        return {"done": done, "pid": os.getpid(), "limit": settings.system.queue_limit}

    return TaskSpec("fake", "a fake", work, {"how": asked["how"]}, product=FakeProduct(), attached={"attached": "x"})


def build(data_dir: Path, ask: Asking) -> FakeHost:
    return FakeHost(AskingOutput(data_dir, ask=ask))


def broken(data_dir: Path, ask: Asking) -> FakeHost:
    raise RuntimeError("no such folder")
