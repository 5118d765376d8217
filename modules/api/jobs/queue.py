"""The queue over HTTP: what runs, waits and has ended, its order, and what happens when it is done."""

import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from modules.api.access.auth import identity_of
from modules.api.schema.documentation import documented, documented_image
from modules.api.schema.reply_models import Nothing, QueueCount, QueueEntry, QueueReply, TaskIdReply, WorkerReply
from modules.api.schema.schemas import Tolerant
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.encode import encode_image
from modules.jobs.editing import api_values, request_infotext, with_api_values
from modules.jobs.job import IMAGE_TYPE, Entry, Job, JobStatus
from modules.jobs.ownership import check_overrides
from modules.jobs.repeats import UNREADABLE
from modules.jobs.store import JobRecord
from modules.jobs.tasks import Task
from modules.jobs.when_done import WhenDone
from modules.processing.request.request import MAX_SEED, GenerationRequest, request_from_json
from modules.processing.request.source_images import FromImage
from modules.services import Services

ADAPTER = re.compile(r"<(?:lora|lyco|hypernet):([^:<>]+)")
THUMBNAIL_PX = 128
NO_JOB = "No waiting job has the task id 'task(abc)'; it may have begun or ended."
SHOWN_ENDED = 20
MAX_SHOWN = 500


ENTRY: dict[str, Any] = {
    "task_id": "task(abc)",
    "type": "txt2img",
    "is_image_job": True,
    "title": "a large red circle on a blue background",
    "status": "queued",
    "user": "",
    "model": "featherweight-scenes.safetensors Disable",
    "waits_for": "",
    "is_pinned": False,
    "is_bookmarked": False,
    "created_at": 1767225600.0,
    "ended_at": None,
    "seconds": None,
    "fraction": 0.0,
    "phase": "waiting",
    "eta_s": None,
    "images": 0,
    "error": None,
    "details": "512x768 · 20 steps · 4 images",
    "adapters": ["ink"],
    "has_start_image": False,
    "parameters": None,
    "infotext": None,
}
EXAMPLE = {
    "paused": False,
    "when_done": "nothing",
    "running": None,
    "running_all": [],
    "workers": [],
    "waiting": [ENTRY],
    "waiting_total": 1,
    "ended": [],
    "failed_total": 0,
}


WORKER = {
    "name": "worker-1",
    "place": "process 4242, CPU, 2 threads",
    "state": "idle",
    "task_id": "",
    "title": "",
    "model": "featherweight-scenes.safetensors [0123456789]",
    "restarts": 0,
    "jobs": 12,
    "message": "",
}


class QueueId(Tolerant):
    """One job."""

    task_id: str = Field(examples=["task(abc)"])


class MoveBody(QueueId):
    """Where a waiting job goes: before another one, or without one at the end."""

    before: str | None = Field(default=None, examples=["task(def)"])


class AgainBody(QueueId):
    """`seed`: null for the same seeds, -1 for new ones."""

    seed: int | None = Field(default=None, ge=-1, le=MAX_SEED, examples=[-1])


class RenameBody(QueueId):
    """A job's title."""

    title: str = Field(min_length=1, max_length=200, examples=["a cat, more contrast"])


class ChangeBody(QueueId):
    """Parameters by the names of POST /sdapi/v1/txt2img; those left out stay."""

    parameters: dict[str, Any] = Field(examples=[{"steps": 30, "prompt": "a cat"}])


class WhenDoneBody(BaseModel):
    """The action that follows once when the queue is empty."""

    action: WhenDone = Field(examples=["unload"])


def queue_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/queue and what changes it."""
    routes = APIRouter(prefix="/featherweight/v1/queue", tags=["queue"])
    queue = services.queue

    @routes.get("", **documented(EXAMPLE))
    def whole(request: Request, limit: int = 100) -> QueueReply:
        """List what runs, what is queued in the order in which it will run, and what finished last; for users their own
        work, for admins everybody's."""
        who = identity_of(request)
        running = [entry_reply(entry) for entry in queue.running(who)]
        limit = max(0, min(limit, MAX_SHOWN))
        return QueueReply(
            paused=queue.is_paused,
            when_done=services.dispatcher.when_done.value,
            running=running[0] if running else None,
            running_all=running,
            workers=worker_replies(services) if who.is_admin else [],
            waiting=[entry_reply(entry) for entry in queue.first(limit, who)],
            waiting_total=queue.waiting_count(who),
            ended=[
                record_reply(one) for one in queue.store.ended_jobs(limit=min(limit, SHOWN_ENDED), user=who.asks_for)
            ],
            failed_total=queue.store.count((JobStatus.FAILED,), who.asks_for),
        )

    @routes.get("/job", **documented(errors={404: "No job has the task id 'task(abc)'."}))
    def one(task_id: str, request: Request) -> QueueEntry:
        """One job with its parameters, by the names of POST /sdapi/v1/txt2img, and as an infotext that fills a form."""
        record = queue.record(task_id, identity_of(request))
        wanted = request_of(record, services)
        entry = queue.known.find_entry(task_id)
        reply = entry_reply(entry) if entry is not None and not entry.status.is_final else record_reply(record)
        if wanted is not None:
            reply.parameters = api_values(wanted)
            reply.infotext = request_infotext(wanted, services.catalogue)
        return reply

    @routes.get(
        "/image", response_class=FileResponse, **documented_image("png", errors={404: "The job has no such image."})
    )
    def image(task_id: str, request: Request, index: int = 0) -> FileResponse:
        """A finished image of a job, from its file."""
        paths = image_paths(queue.record(task_id, identity_of(request)))
        if not 0 <= index < len(paths) or not paths[index].is_file():
            raise UnknownNameError(f"The job has no image {index}, or its file was taken away.")
        return FileResponse(paths[index], headers={"X-Content-Type-Options": "nosniff"})

    @routes.get(
        "/start-image",
        response_class=Response,
        **documented_image("jpeg", errors={404: "The job starts from no image."}),
    )
    def start_image(task_id: str, request: Request, whole: bool = False) -> Response:
        """Return the start image of a queued or running img2img job: made small, or the `whole` image as PNG."""
        who = identity_of(request)
        queue.record(task_id, who)
        entry = queue.known.find(task_id, who)
        start = entry.request.start if entry is not None else None
        if not isinstance(start, FromImage):
            raise UnknownNameError("The job starts from no image, or has ended.")
        if whole:
            return Response(encode_image(start.images[0].image, "png"), media_type="image/png")
        small = start.images[0].image.convert("RGB")
        small.thumbnail((THUMBNAIL_PX, THUMBNAIL_PX))
        return Response(encode_image(small, "jpg"), media_type="image/jpeg")

    @routes.post("/pause")
    def pause() -> Nothing:
        """Begin nothing new; what runs is finished."""
        queue.pause()
        return Nothing()

    @routes.post("/resume")
    def resume() -> Nothing:
        """Go on."""
        queue.pause(False)
        return Nothing()

    @routes.post("/clear")
    def clear(request: Request) -> QueueCount:
        """Cancel everything that waits; what runs goes on."""
        return QueueCount(count=queue.clear(identity_of(request)))

    @routes.post("/retry-failed")
    def retry_failed(request: Request) -> QueueCount:
        """Put all failed jobs in line once more, and forget that they failed."""
        return QueueCount(count=len(retried(services, identity_of(request).asks_for)))

    @routes.post("/when-done", **documented(errors={422: "No command is set (setting queue_done_command)."}))
    def when_done(body: WhenDoneBody) -> Nothing:
        """Choose what happens once when the line is worked off: nothing, unload, exit, sleep, or command."""
        if body.action is WhenDone.COMMAND and not services.settings.current.system.queue_done_command.strip():
            raise InvalidValueError(
                "No command is set: write one into config.json (queue_done_command) while the server is ended."
            )
        services.dispatcher.set_when_done(body.action)
        return Nothing()

    @routes.post("/next", **documented(errors={404: NO_JOB}))
    def run_next(body: QueueId) -> Nothing:
        """Have a waiting job run before all others."""
        queue.run_next(body.task_id)
        return Nothing()

    @routes.post("/move", **documented(errors={404: NO_JOB}))
    def move(body: MoveBody, request: Request) -> Nothing:
        """Put a waiting job elsewhere in line."""
        queue.move_before(body.task_id, body.before, identity_of(request))
        return Nothing()

    @routes.post("/cancel")
    def cancel(body: QueueId, request: Request) -> Nothing:
        """Take a job out of the line, or stop it within one step; what is finished is kept."""
        queue.interrupt(body.task_id, why="cancelled", who=identity_of(request))
        return Nothing()

    @routes.post("/remove", **documented(errors={404: "No job has the task id 'task(abc)'."}))
    def remove(body: QueueId, request: Request) -> Nothing:
        """Forget an ended job, with the images that it began with. What it made stays."""
        if not queue.record(body.task_id, identity_of(request)).status.is_final:
            raise InvalidValueError("The job waits or runs; cancel it first.")
        queue.store.remove([body.task_id])
        queue.known.drop_task(body.task_id)
        return Nothing()

    @routes.post("/again", **documented(errors={404: "No job has the task id 'task(abc)'."}))
    def again(body: AgainBody, request: Request) -> TaskIdReply:
        """Put a job in line once more, with its seeds or with others. Answers with the new task id."""
        return TaskIdReply(task_id=queue.again(body.task_id, body.seed, identity_of(request)).task_id)

    @routes.post("/rename", **documented(errors={404: "No job has the task id 'task(abc)'."}))
    def rename(body: RenameBody, request: Request) -> Nothing:
        """Give a job another title."""
        queue.rename(body.task_id, body.title, identity_of(request))
        return Nothing()

    @routes.post("/change", **documented(errors={404: NO_JOB, 422: "width is 7; allowed is 16 to 8192."}))
    def change(body: ChangeBody, request: Request) -> QueueEntry:
        """Have a waiting job ask for something else."""
        queue.record(body.task_id, identity_of(request))
        check_parameters(request, body.parameters)
        return entry_reply(queue.change(body.task_id, changing(services, body.parameters), identity_of(request)))

    return routes


def worker_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/workers."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["queue"])

    @routes.get("/workers", **documented([WORKER]))
    def workers() -> list[WorkerReply]:
        """The processes and other servers that make images; none where the server's own process does."""
        return worker_replies(services)

    return routes


def worker_replies(services: Services) -> list[WorkerReply]:
    """All workers as they are now."""
    return [WorkerReply.model_validate(asdict(facts)) for facts in services.workers.facts]


def changing(services: Services, parameters: dict[str, Any]) -> Any:
    """Return the change that `Line.change` makes to a request."""
    upscalers = services.engine.upscalers.catalogue.names
    return lambda request: with_api_values(request, parameters, services.catalogue, upscalers)


def check_parameters(request: Request, parameters: dict[str, Any]) -> None:
    """Raise `NotAllowedError` for settings among the parameters of a job that this user may not change."""
    overrides = parameters.get("override_settings")
    check_overrides(overrides if isinstance(overrides, dict) else {}, identity_of(request))


def retried(services: Services, user: str | None = None) -> list[str]:
    """Put all failed jobs in line again, of one user or of all; the new task ids. Those whose record cannot be read
    stay as they are."""
    queue, ids = services.queue, []
    for record in reversed(queue.store.ended_jobs((JobStatus.FAILED,), limit=10000, user=user)):
        try:
            entry = queue.again(record.task_id)
        except UNREADABLE:
            continue
        ids.append(entry.task_id)
        queue.store.remove([record.task_id])
    return ids


def request_of(record: JobRecord, services: Services) -> GenerationRequest | None:
    """The request of a recorded image job; None for other work and for what cannot be read."""
    if record.type != IMAGE_TYPE:
        return None
    try:
        return request_from_json(record.request, services.queue.store.inputs.image_of)
    except UNREADABLE:
        return None


def entry_reply(entry: Entry) -> QueueEntry:
    """Work that waits or runs."""
    fraction, phase, eta_s = 0.0, "waiting", None
    done = 0
    if isinstance(entry, Task):
        state = entry.state
        fraction, phase, eta_s = state.fraction, state.phase, state.eta_s
    elif isinstance(entry, Job):
        progress = entry.progress()
        fraction, phase, eta_s, done = progress.fraction, progress.phase, progress.eta_s, progress.images_done
        done = done or len(entry.made)
    standing = entry.standing
    request = entry.request if isinstance(entry, Job) else None
    return QueueEntry(
        details="" if request is None else details_of(request),
        adapters=[] if request is None else list(dict.fromkeys(ADAPTER.findall(request.prompt))),
        has_start_image=request is not None and isinstance(request.start, FromImage),
        task_id=entry.task_id,
        type=entry.type,
        is_image_job=isinstance(entry, Job),
        title=entry.title,
        status=entry.status.value,
        user=standing.user,
        model=standing.model,
        waits_for=standing.waits_for,
        is_pinned=standing.is_pinned,
        is_bookmarked=standing.is_bookmarked,
        created_at=entry.created_at,
        fraction=fraction,
        phase=phase,
        eta_s=eta_s,
        images=done,
    )


def details_of(request: GenerationRequest) -> str:
    """Return what distinguishes jobs of one prompt: "512x768 · 20 steps · 4 images"."""
    width, height = request.size_px
    count = request.batch_count * request.batch_size
    size = f"{width}x{height}" + ("" if request.hires is None else " · hires")
    steps = "1 step" if request.steps == 1 else f"{request.steps} steps"
    return f"{size} · {steps}" + (f" · {count} images" if count > 1 else "")


def record_reply(record: JobRecord) -> QueueEntry:
    """Work that has ended."""
    started = record.started_at
    return QueueEntry(
        task_id=record.task_id,
        type=record.type,
        is_image_job=record.type == IMAGE_TYPE,
        title=record.title,
        status=record.status.value,
        user=record.standing.user,
        model=record.standing.model,
        is_bookmarked=record.standing.is_bookmarked,
        created_at=record.created_at,
        ended_at=record.ended_at,
        seconds=max(record.ended_at - started, 0.0) if record.ended_at and started else None,
        fraction=1.0 if record.status is JobStatus.DONE else 0.0,
        error=record.error,
        images=len(image_paths(record)),
    )


def image_paths(record: JobRecord) -> list[Path]:
    """The files of a recorded job's images."""
    images = (record.outcome or {}).get("images", [])
    return [Path(image["path"]) for image in images if isinstance(image, dict) and image.get("path")]
