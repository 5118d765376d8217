"""`/agent-scheduler/v1/...`: what its clients call, over the line of jobs."""

import base64
import json
import re
from datetime import UTC, datetime
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from fastapi import APIRouter, Request, Response

from lib_agent_scheduler.line_access import FIRST, LAST, LineAccess, LineEntry
from modules.api.schema.documentation import documented
from modules.api.schema.schemas import Img2ImgBody, Tolerant, Txt2ImgBody
from modules.errors import InvalidValueError
from modules.sampling.catalog import SAMPLERS
from modules.scripts import script_callbacks
from modules.scripts.program import Program
from modules.system.bounded import read_json

user, admin = script_callbacks.open_to("user"), script_callbacks.open_to("admin")
"""Who may call a route: users for their own work, admins for everybody's."""
PREFIX = "/agent-scheduler/v1"
WAITS = "pending"  # their word; the other states are called as ours
GONE = {404: "No job has the task id 'task(abc)'; its record may have been removed."}
REFUSED = {404: "Unknown sampler 'Oiler'.", 422: "width is 7; allowed is 16 to 8192 pixels."}
TASK_ID = {"task_id": "task(abc)"}
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
    """Reply of GET export, as a text."""

    content: str


def agent_scheduler_routes(line: LineAccess, program: Program) -> APIRouter:
    """All of them."""
    routes = APIRouter(prefix=PREFIX, tags=["agent scheduler"])

    def submit(body: QueuedTxt2Img | QueuedImg2Img, request: Request) -> dict[str, Any]:
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
        return {"task_id": line.submit(request, body)}

    @routes.post("/queue/txt2img", **documented(TASK_ID, errors=REFUSED))
    @user
    def txt2img(body: QueuedTxt2Img, request: Request) -> dict[str, Any]:
        """Put a job in line and answer at once. The body of POST /sdapi/v1/txt2img, and `checkpoint` and `vae`."""
        return submit(body, request)

    @routes.post("/queue/img2img", **documented(TASK_ID, errors=REFUSED))
    @user
    def img2img(body: QueuedImg2Img, request: Request) -> dict[str, Any]:
        """Put a job in line and answer at once. The body of POST /sdapi/v1/img2img, and `checkpoint` and `vae`."""
        return submit(body, request)

    @routes.get("/queue", **documented(QUEUE))
    @user
    def whole(request: Request, limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """The task that runs, and those that wait."""
        waiting = line.waiting(request, _limit(limit), _offset(offset))
        return {
            "current_task_id": line.running(request),
            "pending_tasks": [_task(entry, number) for number, entry in enumerate(waiting)],
            "total_pending_tasks": line.waiting_count(request),
            "paused": line.is_paused,
        }

    @routes.get("/history", **documented({"total": 1, "tasks": [TASK]}))
    @user
    def history(request: Request, status: str | None = None, limit: int = 20, offset: int = 0) -> dict[str, Any]:
        """Ended tasks, what ended last first; of one status or of all."""
        total, found = line.ended(request, status, _limit(limit), _offset(offset))
        return {"total": total, "tasks": [_task(entry) for entry in found]}

    @routes.get("/export", **documented([{**TASK, "request": {"prompt": "a large red circle"}}]))
    @user
    def export(request: Request, limit: int = MAX_SHOWN, offset: int = 0) -> list[dict[str, Any]]:
        """Waiting tasks with all that is needed to put them in line elsewhere."""
        found = line.exported(request, _limit(limit), _offset(offset))
        return [{**_task(entry), "request": wanted} for entry, wanted in found]

    @routes.post("/import", **documented({**DONE, "task_ids": ["task(abc)"]}))
    @admin
    def import_tasks(body: ImportBody, request: Request) -> dict[str, Any]:
        """Put exported tasks in line."""
        try:
            wanted = [task["request"] for task in read_json(body.content)]
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidValueError(f"The text is no export of tasks: {error}.") from error
        return _done("Imported") | {"task_ids": line.imported(request, wanted)}

    @routes.get("/samplers", **documented(["Euler", "DPM++ 2M"]))
    @user
    def samplers() -> list[str]:
        """Names of samplers."""
        return [name for name, _ in SAMPLERS.items()]

    @routes.get("/sd-models", **documented(["model.safetensors [5fe1d58aba]"]))
    @user
    def models() -> list[str]:
        """Titles of checkpoints."""
        return program.checkpoints()

    @routes.post("/pause", include_in_schema=False)
    @routes.post("/queue/pause", **documented(DONE))
    @admin
    def pause() -> dict[str, Any]:
        """Begin nothing new."""
        line.pause()
        return _done("Queue paused")

    @routes.post("/resume", include_in_schema=False)
    @routes.post("/queue/resume", **documented(DONE))
    @admin
    def resume() -> dict[str, Any]:
        """Go on."""
        line.pause(False)
        return _done("Queue resumed")

    @routes.post("/queue/clear", **documented(DONE))
    @user
    def clear(request: Request) -> dict[str, Any]:
        """Cancel everything that waits."""
        return _done(f"{line.clear(request)} tasks were taken out of the queue")

    @routes.post("/history/clear", **documented(DONE))
    @admin
    def clear_history() -> dict[str, Any]:
        """Forget ended tasks but the bookmarked ones; images stay."""
        line.forget_ended()
        return _done("Task history cleared")

    @routes.post("/task/requeue-failed", **documented({**DONE, "task_ids": ["task(abc)"]}))
    @user
    def requeue_failed(request: Request) -> dict[str, Any]:
        """Put all failed tasks in line again."""
        return _done("Failed tasks were put in line again") | {"task_ids": line.retry_failed(request)}

    @routes.get("/task/{id}", **documented({"success": True, "data": TASK}, errors=GONE))
    @user
    def one(id: str, request: Request) -> dict[str, Any]:
        """A task."""
        return {"success": True, "data": _task(line.entry(request, id))}

    @routes.get("/task/{id}/position", **documented({"status": "pending", "position": 1}, errors=GONE))
    @user
    def position(id: str, request: Request) -> dict[str, Any]:
        """Its status, and its place in line from 1; null for one that does not wait."""
        place = line.place(request, id)
        return {"status": _word(line.entry(request, id)), "position": None if place is None else place + 1}

    @routes.get("/results/{id}", response_model=None, include_in_schema=False)
    @routes.get("/task/{id}/results", response_model=None, **documented(RESULTS, errors=GONE))
    @user
    def results(id: str, request: Request, zip: bool = False) -> Response | dict[str, Any]:
        """The images of a task with their infotexts, as data URIs or as a zip file."""
        images = [(path, text) for path, text in line.entry(request, id).images if path.is_file()]
        if zip:
            return _zipped([path for path, _ in images], id)
        return {"success": True, "data": [{"image": _uri(path), "infotext": text} for path, text in images]}

    @routes.put("/task/{id}", **documented(DONE, errors=GONE))
    @user
    def change(id: str, body: TaskChange, request: Request) -> dict[str, Any]:
        """Have a waiting task ask for something else."""
        chosen = {} if body.checkpoint is None else {"checkpoint": body.checkpoint}
        line.change(request, id, {**(body.params or {}), **chosen}, body.name)
        return _done("Task updated")

    @routes.post("/delete/{id}", include_in_schema=False)
    @routes.delete("/task/{id}", **documented(DONE, errors=GONE))
    @user
    def delete(id: str, request: Request) -> dict[str, Any]:
        """Cancel a task that waits or runs; forget one that has ended."""
        line.remove(request, id)
        return _done("Task deleted")

    @routes.post("/run/{id}", include_in_schema=False)
    @routes.post("/task/{id}/run", **documented(WITH_ID, errors=GONE))
    @admin
    def run(id: str, request: Request) -> dict[str, Any]:
        """Have a waiting task run next; an ended one is put in line again, first."""
        return _done("Task runs next") | {"task_id": line.run_next(request, id)}

    @routes.post("/requeue/{id}", include_in_schema=False)
    @routes.post("/task/{id}/requeue", **documented(WITH_ID, errors=GONE))
    @user
    def requeue(id: str, request: Request) -> dict[str, Any]:
        """Put a task in line once more, with its seeds."""
        return _done("Task requeued") | {"task_id": line.again(request, id)}

    @routes.post("/move/{id}/{over_id}", include_in_schema=False)
    @routes.post("/task/{id}/move/{over_id}", **documented(DONE, errors=GONE))
    @admin
    def move(id: str, over_id: str, request: Request) -> dict[str, Any]:
        """Put a waiting task before another one; `top` and `bottom` are the ends of the line."""
        line.move(request, id, {"top": FIRST, "bottom": LAST}.get(over_id, over_id))
        return _done("Task moved")

    @routes.post("/bookmark/{id}", include_in_schema=False)
    @routes.post("/task/{id}/bookmark", **documented(DONE, errors=GONE))
    @user
    def bookmark(id: str, request: Request) -> dict[str, Any]:
        """Keep a task when the history is cleared."""
        line.bookmark(request, id)
        return _done("Task bookmarked")

    @routes.post("/unbookmark/{id}", include_in_schema=False)
    @routes.post("/task/{id}/unbookmark", **documented(DONE, errors=GONE))
    @user
    def unbookmark(id: str, request: Request) -> dict[str, Any]:
        """The opposite."""
        line.bookmark(request, id, False)
        return _done("Task unbookmarked")

    @routes.post("/rename/{id}", include_in_schema=False)
    @routes.post("/task/{id}/rename", **documented(DONE, errors=GONE))
    @user
    def rename(id: str, name: str, request: Request) -> dict[str, Any]:
        """Give a task another title."""
        line.change(request, id, {}, name)
        return _done("Task renamed")

    return routes


def _limit(limit: int) -> int:
    return max(0, min(limit, MAX_SHOWN))


def _offset(offset: int) -> int:
    return max(0, min(offset, 10**9))


def _done(message: str) -> dict[str, Any]:
    return {"success": True, "message": message}


def _word(entry: LineEntry) -> str:
    return WAITS if entry.status == "queued" else entry.status


def _task(entry: LineEntry, position: int | None = None) -> dict[str, Any]:
    """An entry with the extension's fields. Times are ISO 8601."""
    images = {"images": [str(path) for path, _ in entry.images], "infotexts": [text for _, text in entry.images]}
    return {
        "id": entry.task_id,
        "api_task_id": entry.task_id,
        "api_task_callback": None,
        "name": entry.title,
        "type": entry.type,
        "status": _word(entry),
        "params": entry.parameters,
        "script_params": None,
        "priority": int(entry.position * 1000),
        "position": None if position is None else position + 1,
        "result": entry.error if entry.status == "failed" else json.dumps(images),
        "bookmarked": entry.is_bookmarked,
        "created_at": _time(entry.created_at),
        "updated_at": _time(entry.changed_at),
    }


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


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
