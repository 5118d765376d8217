"""A worker without a model: its host draws plain images, and does what prompts say. Imports no torch."""

import faulthandler
import os
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from modules.errors import Interrupted, Skipped
from modules.images.naming import NameContext
from modules.jobs.job import Job
from modules.jobs.workers.loop import Asking, AskingOutput
from modules.processing.memory_estimate.status import EngineState, EngineStatus
from modules.processing.pipeline.stages import Stage
from modules.processing.record.output import Output
from modules.processing.record.result import GeneratedImage, GenerationInfo, Result
from modules.processing.request import GenerationRequest
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

    def unload(self) -> None:
        self.status = EngineStatus(EngineState.EMPTY, "unloaded")

    def reload(self) -> None:
        raise Interrupted("cannot be loaded again")

    def memory(self) -> Any:
        return {"ram": {"used": self.settings.system.queue_limit}}

    def change_settings(self, settings: Settings) -> None:
        self.settings = settings

    def refresh(self) -> None:
        """Finds nothing."""


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


def build(data_dir: Path, ask: Asking) -> FakeHost:
    return FakeHost(AskingOutput(data_dir, ask=ask))


def broken(data_dir: Path, ask: Asking) -> FakeHost:
    raise RuntimeError("no such folder")
