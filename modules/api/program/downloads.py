"""Getting models over HTTP: the list that ships, a look at a file before it comes, downloads as tasks."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from modules.api.program.tasks import UNKNOWN as UNKNOWN_TASK
from modules.api.program.tasks import task_reply
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import (
    DetectedItem,
    FittingItem,
    FittingReply,
    KnownModelItem,
    LookReply,
    Nothing,
    TaskItem,
    UnfinishedItem,
)
from modules.api.schema.schemas import Tolerant
from modules.downloads.downloads import DownloadRequest, Downloads, Found
from modules.downloads.fitting import fitting_models
from modules.downloads.machine import machine_here
from modules.downloads.verdict import Verdict
from modules.jobs.job import JobStatus
from modules.jobs.tasks import Task
from modules.jobs.work.downloads import DOWNLOAD_TYPE, download_spec
from modules.models.detection.files import Detected
from modules.services import Services

STOP_S = 20.0  # how long a reply waits for a download to stop
ERRORS = {
    404: "Unknown folder 'x'. Known: Stable-diffusion, VAE, VAE-taesd, text_encoder, Lora, embeddings, ControlNet ...",
    422: "'x' is none of: a name of the list, a repository of the Hub and a file in it, an https address.",
    424: "The host example.com is not found: is this machine connected to the Internet?",
    503: "huggingface.co asks to wait for 30 s (answer 429); try again later.",
}


class DownloadBody(Tolerant):
    """POST /featherweight/v1/downloads."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"source": "z-image-turbo"}})

    source: str = Field(max_length=4096)
    name: str = Field(default="", max_length=512)
    folder: str = Field(default="", max_length=64)
    allow_pickle: bool = False

    def request(self) -> DownloadRequest:
        """Return the request in the form that the work takes."""
        return DownloadRequest(self.source, self.name, self.folder, self.allow_pickle)


class LookBody(DownloadBody):
    """POST /featherweight/v1/downloads/look."""

    judges: bool = Field(default=True, description="whether it fits this machine is worked out, which takes seconds")


class CancelBody(Tolerant):
    """POST /featherweight/v1/downloads/cancel."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"task_id": "task(abc)"}})

    task_id: str = Field(max_length=512)


class DiscardBody(Tolerant):
    """POST /featherweight/v1/downloads/discard."""

    model_config = ConfigDict(
        extra="ignore", json_schema_extra={"example": {"folder": "Lora", "name": "some.safetensors"}}
    )

    folder: str = Field(max_length=64)
    name: str = Field(max_length=512)


def download_routes(services: Services) -> APIRouter:
    """The routes below /featherweight/v1/downloads."""
    routes = APIRouter(prefix="/featherweight/v1/downloads", tags=["downloads"])
    downloads = services.downloads
    assert downloads is not None, "this server was built without downloads"

    @routes.get("/known")
    def known() -> list[KnownModelItem]:
        """The models that this program knows by name: repository, file, size, licence, what belongs to them."""
        return [KnownModelItem.of(model) for model in downloads.known.values()]

    @routes.post("/look", **documented(errors=ERRORS))
    async def look(body: LookBody) -> LookReply:
        """Say what a file is and whether it fits this machine, from its header alone: less than a megabyte is read.
        `fits` is null where it cannot be said before the file is here, and without `judges`."""

        def looked() -> LookReply:
            found = downloads.find(body.request())
            return _looked(downloads, found, downloads.judged(found) if body.judges else Verdict(None, ""))

        return await asyncio.to_thread(looked)

    @routes.post("", **documented(errors={422: ERRORS[422]}))
    def download(body: DownloadBody) -> TaskItem:
        """Download a file into the folder where it belongs, as a task: it can be cancelled, goes on where it was after
        a restart or when it is asked for again, and appears under its name only when it is whole."""
        return task_reply(services.queue.submit_spec(download_spec(downloads, downloads.checked(body.request()))))

    @routes.get("/fitting")
    async def fitting() -> FittingReply:
        """Three models of the list that fit this machine, by its memory and its cores. No server is asked."""
        machine = await asyncio.to_thread(machine_here)
        models = fitting_models(downloads.known, machine)
        return FittingReply(
            memory_gb=round(machine.memory_gb, 1),
            has_gpu=machine.has_gpu,
            cores=machine.cores,
            models=[FittingItem.of(one, **KnownModelItem.of(one.model).model_dump()) for one in models],
        )

    @routes.get("/unfinished")
    def unfinished() -> list[UnfinishedItem]:
        """Downloads that were begun and are not running: paused, or broken off with the server. To go on, ask for the
        download of `url` with `name` and `folder`."""
        return [UnfinishedItem.of(part, folder=folder) for folder, part in downloads.unfinished()]

    @routes.post("/discard", **documented(errors={404: ERRORS[404]}))
    def discard(body: DiscardBody) -> Nothing:
        """Delete what came of a download that is not wanted any more."""
        downloads.discard(body.folder, body.name)
        return Nothing()

    @routes.post("/cancel", **documented(errors={404: UNKNOWN_TASK}))
    async def cancel(body: CancelBody) -> TaskItem:
        """Stop a download and delete what came of it. To go on later instead, cancel its task: what came is kept."""
        task = services.queue.known.task(body.task_id)
        thrown: Future[None] = Future()

        def throw_away() -> None:
            try:
                if task.type == DOWNLOAD_TYPE and task.status is not JobStatus.DONE:
                    _throw_away(downloads, task)
                thrown.set_result(None)
            except Exception as error:  # of the disk: raised again where the reply waits
                thrown.set_exception(error)

        services.queue.interrupt(body.task_id, why="cancelled")
        task.when_final(throw_away)
        with suppress(TimeoutError):  # a server is silent: thrown away when it is given up
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(thrown)), STOP_S)
        return task_reply(task)

    return routes


def _throw_away(downloads: Downloads, task: Task) -> None:
    """Delete what came. A download that was stopped before it had looked at its file says nothing of it, and an
    earlier try may have left a part."""
    outcome = task.state.outcome
    if outcome is not None:
        downloads.discard(str(outcome["folder"]), str(outcome["file"]))
        return
    for folder, part in downloads.begun(DownloadRequest(**task.recorded_request())):
        downloads.discard(folder, part.name)


def detected_item(found: Detected) -> DetectedItem:
    """Describe a file, as routes answer it."""
    family = "" if found.family is None else found.family.label
    return DetectedItem.of(found, family=family, missing=[need.title for need in found.missing])


def _looked(downloads: Downloads, found: Found, verdict: Verdict) -> LookReply:
    folder = downloads.folders[found.kind.folder]
    return LookReply(
        name=found.name,
        line=found.line,
        found=detected_item(found.kind),
        folder=found.kind.folder,
        size_bytes=found.remote.size_bytes,
        is_there=(folder / found.name).exists(),
        fits=verdict.fits,
        verdict=verdict.text,
        step_seconds=verdict.step_seconds,
        parts=[KnownModelItem.of(part) for part in found.parts],
    )
