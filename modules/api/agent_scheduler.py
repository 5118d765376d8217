"""The routes of the Agent Scheduler extension, as its clients know them, over our own queue."""

import base64
import json
import re
from contextlib import suppress
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from fastapi import APIRouter, Request, Response

from modules.api.auth import identity_of
from modules.api.documentation import documented
from modules.api.generation import TXT2IMG_ERRORS
from modules.api.queue import changing, check_parameters, image_paths, request_of, retried
from modules.api.reply_models import TaskIdReply
from modules.api.requests import request_from
from modules.api.schemas import Img2ImgBody, Tolerant, Txt2ImgBody
from modules.errors import InvalidValueError, UnknownNameError
from modules.jobs.editing import api_values
from modules.jobs.job import Job, JobStatus
from modules.jobs.ownership import claimed
from modules.jobs.repeats import UNREADABLE
from modules.jobs.store import FINAL, JobRecord
from modules.processing.request.request import request_from_json, request_to_json, tab_of
from modules.sampling.catalog import SAMPLERS
from modules.services import Services

PREFIX = "/agent-scheduler/v1"
WAITS = "pending"  # their word; the other states are called as ours
GONE = {404: "No job has the task id 'task(abc)'; its record may have been removed."}
DONE: dict[str, Any] = {"success": True, "message": "Done"}
WITH_ID = {**DONE, "task_id": "task(abc)"}
TASK: dict[str, Any] = {
    "id": "task(abc)",
    "api_task_id": "task(abc)",
    "api_task_callback": None,
    "name": "a large red circle",
    "type": "txt2img",
    "status": "pending",
    "params": {"prompt": "a large red circle", "steps": 20},
    "script_params": None,
    "priority": 1000,
    "position": 1,
    "result": "{}",
    "bookmarked": False,
    "created_at": "2026-01-01T12:00:00+00:00",
    "updated_at": "2026-01-01T12:00:00+00:00",
}
QUEUE = {"current_task_id": None, "pending_tasks": [TASK], "total_pending_tasks": 1, "paused": False}
RESULTS = {"success": True, "data": [{"image": "data:image/png;base64,iVBORw0KGgo...", "infotext": "a cat"}]}
MAX_IMPORTED = 10000
MAX_SHOWN = 1000
TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".avif": "avif"}


class QueuedTxt2Img(Txt2ImgBody):
    """A job for later. `callback_url` is refused: nobody is called."""

    checkpoint: str | None = None
    vae: str | None = None
    callback_url: str | None = None


class QueuedImg2Img(Img2ImgBody):
    """A job for later. `callback_url` is refused: nobody is called."""

    checkpoint: str | None = None
    vae: str | None = None
    callback_url: str | None = None


class TaskChange(Tolerant):
    """Another title, checkpoint or parameters; what is left out stays."""

    name: str | None = None
    checkpoint: str | None = None
    params: dict[str, Any] | None = None


class ImportBody(Tolerant):
    """What GET export gave, as a text."""

    content: str


def agent_scheduler_routes(services: Services) -> APIRouter:
    """All of them."""
    routes = APIRouter(prefix=PREFIX, tags=["agent scheduler"])
    queue = services.queue

    def submit(body: QueuedTxt2Img | QueuedImg2Img, request: Request) -> TaskIdReply:
        if body.callback_url:
            raise InvalidValueError(
                "callback_url is not supported: this server calls nobody. Ask for the task instead."
            )
        overrides = dict(body.override_settings or {})
        if body.checkpoint:
            overrides["sd_model_checkpoint"] = body.checkpoint
        if body.vae:
            overrides["sd_vae"] = body.vae
        body.override_settings = overrides or None
        if "save_images" not in body.model_fields_set:
            body.save_images = True  # the images are asked for later
        wanted = claimed(request_from(body, services), identity_of(request))
        return TaskIdReply(task_id=queue.submit(wanted, body.force_task_id).task_id)

    @routes.post("/queue/txt2img", **documented(errors=TXT2IMG_ERRORS))
    def txt2img(body: QueuedTxt2Img, request: Request) -> TaskIdReply:
        """Put a job in line and answer at once. The body of POST /sdapi/v1/txt2img, and `checkpoint` and `vae`."""
        return submit(body, request)

    @routes.post("/queue/img2img", **documented(errors=TXT2IMG_ERRORS))
    def img2img(body: QueuedImg2Img, request: Request) -> TaskIdReply:
        """Put a job in line and answer at once. The body of POST /sdapi/v1/img2img, and `checkpoint` and `vae`."""
        return submit(body, request)

    @routes.get("/queue", **documented(QUEUE))
    def whole(request: Request, limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """The task that runs, and those that wait."""
        who = identity_of(request)
        line = queue.first(_offset(offset) + _limit(limit), who)[_offset(offset) :]
        running = next(iter(queue.running(who)), None)
        return {
            "current_task_id": running.task_id if running else None,
            "pending_tasks": [
                _task(queue.record(entry.task_id), services, number) for number, entry in enumerate(line)
            ],
            "total_pending_tasks": queue.waiting_count(who),
            "paused": queue.is_paused,
        }

    @routes.get("/history", **documented({"total": 1, "tasks": [TASK]}))
    def history(request: Request, status: str | None = None, limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Ended tasks, what ended last first; of one status or of all."""
        statuses = FINAL if status is None else tuple(item for item in FINAL if item.value == status)
        user = identity_of(request).asks_for
        found = queue.store.ended_jobs(statuses, _limit(limit), _offset(offset), user) if statuses else []
        return {
            "total": queue.store.count(statuses, user) if statuses else 0,
            "tasks": [_task(record, services) for record in found],
        }

    @routes.get("/export", **documented([{**TASK, "request": {"prompt": "a large red circle"}}]))
    def export(request: Request, limit: int = MAX_SHOWN, offset: int = 0) -> list[dict[str, Any]]:
        """Waiting tasks with all that is needed to put them in line elsewhere."""
        line = queue.first(_offset(offset) + _limit(limit), identity_of(request))[_offset(offset) :]
        records = (queue.record(entry.task_id) for entry in line if isinstance(entry, Job))
        return [{**_task(record, services), "request": _portable(record, services)} for record in records]

    @routes.post("/import", **documented({**DONE, "task_ids": ["task(abc)"]}))
    def import_tasks(body: ImportBody) -> dict[str, Any]:
        """Put exported tasks in line."""
        try:
            tasks = json.loads(body.content)
            requests = [request_from_json(task["request"]) for task in tasks[:MAX_IMPORTED]]
        except UNREADABLE as error:
            raise InvalidValueError(f"The text is no export of tasks: {error}.") from error
        return _done("Imported") | {"task_ids": [queue.submit(request).task_id for request in requests]}

    @routes.get("/samplers", **documented(["Euler", "DPM++ 2M"]))
    def samplers() -> list[str]:
        """Names of samplers."""
        return [name for name, _ in SAMPLERS.items()]

    @routes.get("/sd-models", **documented(["model.safetensors [5fe1d58aba]"]))
    def models() -> list[str]:
        """Titles of checkpoints."""
        return [info.title for info in services.catalogue.entries]

    @routes.post("/queue/pause", **documented(DONE))
    def pause() -> dict[str, Any]:
        """Begin nothing new."""
        queue.pause()
        return _done("Queue paused")

    @routes.post("/queue/resume", **documented(DONE))
    def resume() -> dict[str, Any]:
        """Go on."""
        queue.pause(False)
        return _done("Queue resumed")

    @routes.post("/queue/clear", **documented(DONE))
    def clear(request: Request) -> dict[str, Any]:
        """Cancel everything that waits."""
        return _done(f"{queue.clear(who=identity_of(request))} tasks were taken out of the queue")

    @routes.post("/history/clear", **documented(DONE))
    def clear_history() -> dict[str, Any]:
        """Forget ended tasks but the bookmarked ones; images stay."""
        queue.store.prune(0)
        return _done("Task history cleared")

    @routes.post("/task/requeue-failed", **documented({**DONE, "task_ids": ["task(abc)"]}))
    def requeue_failed(request: Request) -> dict[str, Any]:
        """Put all failed tasks in line again."""
        return _done("Failed tasks were put in line again") | {
            "task_ids": retried(services, identity_of(request).asks_for)
        }

    @routes.get("/task/{id}", **documented({"success": True, "data": TASK}, errors=GONE))
    def one(id: str, request: Request) -> dict[str, Any]:
        """A task."""
        return {"success": True, "data": _task(queue.record(id, identity_of(request)), services)}

    @routes.get("/task/{id}/position", **documented({"status": "pending", "position": 1}, errors=GONE))
    def position(id: str, request: Request) -> dict[str, Any]:
        """Its status, and its place in line from 1; null for one that does not wait."""
        record = queue.record(id, identity_of(request))
        line = [entry.task_id for entry in queue.first(MAX_IMPORTED)]
        return {"status": _word(record.status), "position": line.index(id) + 1 if id in line else None}

    @routes.get("/task/{id}/results", response_model=None, **documented(RESULTS, errors=GONE))
    def results(id: str, request: Request, zip: bool = False) -> Response | dict[str, Any]:
        """The images of a task with their infotexts, as data URIs or as a zip file."""
        record = queue.record(id, identity_of(request))
        files = [path for path in image_paths(record) if path.is_file()]
        if zip:
            return _zipped(files, id)
        texts = {image["path"]: image.get("infotext", "") for image in _images(record)}
        return {
            "success": True,
            "data": [{"image": _uri(path), "infotext": texts.get(str(path), "")} for path in files],
        }

    @routes.put("/task/{id}", **documented(DONE, errors=GONE))
    def change(id: str, body: TaskChange, request: Request) -> dict[str, Any]:
        """Have a waiting task ask for something else."""
        who = identity_of(request)
        queue.record(id, who)
        parameters = dict(body.params or {})
        check_parameters(request, parameters)
        if body.checkpoint is not None:
            parameters["checkpoint"] = body.checkpoint
        if parameters:
            queue.change(id, changing(services, parameters), who)
        if body.name:
            queue.rename(id, body.name, who)
        return _done("Task updated")

    @routes.delete("/task/{id}", **documented(DONE, errors=GONE))
    def delete(id: str, request: Request) -> dict[str, Any]:
        """Cancel a task that waits or runs; forget one that has ended."""
        if queue.record(id, identity_of(request)).status.is_final:
            queue.store.remove([id])
        else:
            queue.interrupt(id, why="cancelled")
        return _done("Task deleted")

    @routes.post("/task/{id}/run", **documented(WITH_ID, errors=GONE))
    def run(id: str) -> dict[str, Any]:
        """Have a waiting task run next; an ended one is put in line again, first."""
        if queue.record(id).status.is_final:
            id = queue.again(id).task_id
        with suppress(UnknownNameError):  # it has begun by now
            queue.run_next(id)
        return _done("Task runs next") | {"task_id": id}

    @routes.post("/task/{id}/requeue", **documented(WITH_ID, errors=GONE))
    def requeue(id: str, request: Request) -> dict[str, Any]:
        """Put a task in line once more, with its seeds."""
        return _done("Task requeued") | {"task_id": queue.again(id, who=identity_of(request)).task_id}

    @routes.post("/task/{id}/move/{over_id}", **documented(DONE, errors=GONE))
    def move(id: str, over_id: str) -> dict[str, Any]:
        """Put a waiting task before another one; `top` and `bottom` are the ends of the line."""
        if over_id == "top":
            queue.move(id, 0)
        else:
            queue.move_before(id, None if over_id == "bottom" else over_id)
        return _done("Task moved")

    @routes.post("/task/{id}/bookmark", **documented(DONE, errors=GONE))
    def bookmark(id: str, request: Request) -> dict[str, Any]:
        """Keep a task when the history is cleared."""
        queue.bookmark(id, who=identity_of(request))
        return _done("Task bookmarked")

    @routes.post("/task/{id}/unbookmark", **documented(DONE, errors=GONE))
    def unbookmark(id: str, request: Request) -> dict[str, Any]:
        """The opposite."""
        queue.bookmark(id, False, who=identity_of(request))
        return _done("Task unbookmarked")

    @routes.post("/task/{id}/rename", **documented(DONE, errors=GONE))
    def rename(id: str, name: str, request: Request) -> dict[str, Any]:
        """Give a task another title."""
        queue.rename(id, name, identity_of(request))
        return _done("Task renamed")

    return routes


def _limit(limit: int) -> int:
    return max(0, min(limit, MAX_SHOWN))


def _offset(offset: int) -> int:
    return max(0, min(offset, 10**9))


def _done(message: str) -> dict[str, Any]:
    return {"success": True, "message": message}


def _word(status: JobStatus) -> str:
    return WAITS if status is JobStatus.QUEUED else status.value


def _task(record: JobRecord, services: Services, position: int | None = None) -> dict[str, Any]:
    """A record with the extension's fields. Times are ISO 8601."""
    request = request_of(record, services)
    values = api_values(request) if request is not None else {}
    changed_at = record.ended_at or record.started_at or record.created_at
    return {
        "id": record.task_id,
        "api_task_id": record.task_id,
        "api_task_callback": None,
        "name": record.title,
        "type": tab_of(request) if request is not None else record.type,
        "status": _word(record.status),
        "params": values,
        "script_params": None,
        "priority": int(record.standing.position * 1000),
        "position": None if position is None else position + 1,
        "result": record.error if record.status is JobStatus.FAILED else json.dumps(_result(record)),
        "bookmarked": record.standing.is_bookmarked,
        "created_at": _time(record.created_at),
        "updated_at": _time(changed_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _images(record: JobRecord) -> list[dict[str, Any]]:
    return [image for image in (record.outcome or {}).get("images", []) if isinstance(image, dict)]


def _result(record: JobRecord) -> dict[str, Any]:
    images = [image for image in _images(record) if image.get("path")]
    return {"images": [image["path"] for image in images], "infotexts": [image.get("infotext", "") for image in images]}


def _portable(record: JobRecord, services: Services) -> dict[str, Any] | None:
    """The request with its images inside."""
    request = request_of(record, services)
    return None if request is None else request_to_json(request)


def _uri(path: Path) -> str:
    subtype = TYPES.get(path.suffix.lower(), "png")
    return f"data:image/{subtype};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def _zipped(files: list[Path], task_id: str) -> Response:
    data = BytesIO()
    with ZipFile(data, "w") as archive:
        for number, path in enumerate(files):
            archive.write(path, f"{number:04}-{path.name}")
    name = re.sub(r"[^\w-]", "", task_id) or "task"
    headers = {"Content-Disposition": f'attachment; filename="{name}.zip"'}
    return Response(data.getvalue(), media_type="application/zip", headers=headers)
