"""A program whose model computes nothing: for tests of the edges, where images only have to arrive."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI
from PIL import Image

from compat.foreign import Foreign
from modules.api.app import build_api
from modules.api.program.extensions import add_extension_routes
from modules.assembly import build_services
from modules.downloads.transport import FileTransport
from modules.errors import Interrupted, Skipped
from modules.flags.flags import Flags
from modules.images.naming import NameContext
from modules.jobs.job import Job
from modules.jobs.lanes import Lane
from modules.jobs.store import JobStore
from modules.jobs.work.downloads import download_starters, with_downloads
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.record.describe import Facts, extra_fields, infotext, main_fields, schedule_label
from modules.processing.record.output import name_context
from modules.processing.request.request import GenerationRequest
from modules.processing.request.result import GeneratedImage, GenerationInfo, Result
from modules.services import Services
from tests.queues import JobQueue
from tests.recordings import TINY

T = TypeVar("T")
STEP_S = 0.01
SLOW_STEP_S = 0.05  # for prompts that begin with "slow"
CHECKPOINT = CheckpointInfo(TINY, TINY.name, 1, 1, "f" * 64)


class FakeExecutor:
    """Steps like a sampler, previews, and makes a plain image for each sample."""

    def run(self, job: Job) -> Result:
        request = job.request
        pause = SLOW_STEP_S if request.prompt.startswith("slow") else STEP_S
        job.plan(request.steps * request.batch_count)
        images: list[GeneratedImage] = []
        interrupted = False
        for batch in range(request.batch_count):
            try:
                for step in range(request.steps):
                    job.check()
                    time.sleep(pause)
                    job.step(batch * request.steps + step + 1)
                    if job.wants_preview(step + 1):
                        job.preview(Image.new("RGB", (64, 64), (step % 256, 80, 80)))
            except Interrupted:
                interrupted = True
                break
            except Skipped:
                continue
            for index in range(request.batch_size):
                number = batch * request.batch_size + index
                images.append(_image(request, request.seed + number, request.subseed + number))
                job.finished_image(images[-1])
        return result_of(request, images, interrupted)

    def close(self) -> None:
        """Holds nothing."""


def fake_services(data_dir: Path, start: bool = True, **flags: Any) -> Services:
    """A program with the fake executor; its checkpoints are real files, and none of them is ever loaded for a job.

    `flags` are fields of `Flags`. Close it with `services.dispatcher.close()`.
    """
    built = build_services(Flags(data_dir=str(data_dir), ckpt=str(TINY), use_cpu=("all",), **flags), foreign=Foreign())
    built.catalogue.with_hash(built.catalogue.get(TINY.name))  # its title gets the hash now, not halfway
    built.dispatcher.close()
    queue = JobQueue(FakeExecutor(), JobStore(None))
    queue.images.listen(built.history)
    if start:
        queue.start()
    return replace(built, queue=queue, dispatcher=queue.dispatcher)


def downloading_services(data_dir: Path) -> Services:
    """The same, with lanes for downloads in its queue."""
    built = fake_services(data_dir, start=False)
    assert built.downloads is not None
    downloads = replace(built.downloads, transport=FileTransport())  # the other was closed with its dispatcher
    queue = JobQueue(with_downloads((Lane(FakeExecutor()),), downloads), JobStore(None))
    queue.repeats.add(download_starters(downloads))
    queue.images.listen(built.history)
    queue.start()
    return replace(built, queue=queue, dispatcher=queue.dispatcher, downloads=downloads)


@contextmanager
def settings_kept(services: Services) -> Iterator[Services]:
    """What is changed inside of the settings is put back."""
    before = services.settings.current
    yield services
    services.settings.update({key: before[key] for key in before if before[key] != services.settings.current[key]})


def _image(request: GenerationRequest, seed: int, subseed: int) -> GeneratedImage:
    width, height = request.size_px
    image = Image.new("RGB", (width, height), (seed % 256, (seed // 7) % 256, 120))
    main = main_fields(request, CHECKPOINT, request.size_px, seed, subseed)
    extra = extra_fields(request, request.prompt, request.negative_prompt, Facts())
    return GeneratedImage(image, infotext(request.prompt, request.negative_prompt, main, extra), seed, subseed)


def _info(request: GenerationRequest, images: list[GeneratedImage]) -> GenerationInfo:
    count = request.batch_size * request.batch_count
    width, height = request.size_px
    return GenerationInfo(
        prompts=(request.prompt,) * count,
        negative_prompts=(request.negative_prompt,) * count,
        seeds=tuple(request.seed + number for number in range(count)),
        subseeds=tuple(request.subseed + number for number in range(count)),
        subseed_strength=request.subseed_strength,
        width=width,
        height=height,
        sampler=request.sampler,
        scheduler=schedule_label(request.sampler, request.scheduler),
        cfg_scale=request.cfg_scale,
        steps=request.steps,
        batch_size=request.batch_size,
        checkpoint_name=CHECKPOINT.model_name,
        checkpoint_hash=CHECKPOINT.shorthash or "",
        vae_name=None,
        vae_hash=None,
        seed_resize_from_width=request.seed_resize_from_width,
        seed_resize_from_height=request.seed_resize_from_height,
        denoising_strength=None,
        extra_params={},
        infotexts=tuple(image.infotext for image in images),
        styles=request.styles,
        job_timestamp="20260101000000",
        clip_skip=1,
        version="test",
    )


def whole_api(services: Services) -> FastAPI:
    """The API as it is served without a page: with the routes of extensions."""
    app = build_api(services)
    add_extension_routes(app, services.scripts.callbacks, None)
    return app


def in_loop(make: Callable[[], T]) -> T:
    """What `make` builds of Gradio's: in a loop, because Gradio makes loops, and leaves them open, where none is
    running; in a thread of its own, because an open browser's loop may run in this one."""

    async def build() -> T:
        return make()

    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(lambda: asyncio.run(build())).result()


def mounted_page(services: Services) -> FastAPI:
    """API and page as they are served."""
    from modules.ui.app import mount_page

    return in_loop(lambda: mount_page(build_api(services), services))


def page_config(services: Services) -> dict[str, Any]:
    """Gradio's description of the page."""
    from modules.ui.app import build_page

    return dict(in_loop(lambda: build_page(services)).blocks.config)


def result_of(request: GenerationRequest, images: list[GeneratedImage], interrupted: bool) -> Result:
    """What a job of plain images ends with."""
    return Result(images=tuple(images), info=_info(request, images), interrupted=interrupted)


def name_context_of(request: GenerationRequest, checkpoint: CheckpointInfo) -> NameContext:
    """What file names may show of such a job."""
    now = datetime.now().astimezone()
    return name_context(request, checkpoint.model_name, checkpoint.shorthash or "", (request.seed,), now)
