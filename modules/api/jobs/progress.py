"""Progress: of the running job for clients, and of a named task for the page."""

from fastapi import APIRouter, Request

from modules.api.access.auth import identity_of
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import (
    ClearedReply,
    Nothing,
    PendingTasksReply,
    ProgressReply,
    ProgressState,
    TaskProgressReply,
)
from modules.api.schema.schemas import ProgressBody
from modules.images.encode import to_base64, to_data_uri
from modules.jobs.job import Job, JobStatus
from modules.jobs.tasks import Task
from modules.services import Services
from modules.system.texts import page_text

NOTICE = "styles.csv could not be read: it is a folder. No styles are used from it."
PAUSED = "The queue is paused: Resume in the Queue tab lets it go on"
STOPPING = "stops after this image; Interrupt again stops at once"


def progress_routes(services: Services) -> APIRouter:
    """GET /sdapi/v1/progress and the /internal routes that the page polls."""
    routes = APIRouter(tags=["progress"])
    queue = services.queue

    @routes.get("/sdapi/v1/progress")
    def progress(request: Request, skip_current_image: bool = False) -> ProgressReply:
        """Where the running job stands; all zero when there is none, or when it is another user's."""
        who = identity_of(request)
        job = queue.running_job(who)
        if job is None:
            task = queue.running_task(who)
            is_held = task is None and queue.is_paused and queue.waiting_count(who) > 0
            return ProgressReply(textinfo=PAUSED) if is_held else _task_progress(task)
        state = job.progress()
        done, total = job.request.batch_count, max(state.total_steps // max(job.request.batch_count, 1), 1)
        return ProgressReply(
            progress=state.fraction,
            eta_relative=state.eta_s or 0.0,
            state=ProgressState(
                interrupted=job.is_interrupt_requested,
                stopping_generation=job.is_stopping_after_batch,
                job=job.task_id,
                job_count=done,
                job_timestamp="",
                job_no=state.step // total,
                sampling_step=state.step % total,
                sampling_steps=total,
            ),
            current_image=None if skip_current_image or state.preview is None else to_base64(state.preview),
            textinfo=state.phase,
            stage=state.stage,
        )

    @routes.post("/internal/progress", response_model_exclude_unset=True)
    def task_progress(body: ProgressBody, request: Request) -> TaskProgressReply:
        """Where a task stands, with a new preview when there is one the caller has not seen."""
        job = queue.known.find(body.id_task or "", identity_of(request))
        if job is None:
            return _unknown_task()
        state = queue.progress(job.task_id)
        image = state.preview if body.live_preview and state.preview_id != body.id_live_preview else None
        format_name = job.request.settings.previews.live_previews_image_format
        return TaskProgressReply(
            active=state.status is JobStatus.RUNNING,
            queued=state.status is JobStatus.QUEUED,
            completed=state.status.is_final,
            progress=state.fraction,
            eta=state.eta_s,
            live_preview=None if image is None else to_data_uri(image, format_name),
            id_live_preview=state.preview_id,
            textinfo=_text(job, state.position, state.phase, queue.is_paused),
            stage=state.stage,
            step=state.step,
            steps=state.total_steps,
            error=state.error,
        )

    @routes.get("/internal/pending-tasks")
    def pending_tasks(request: Request) -> PendingTasksReply:
        """Task ids of the running job and those in line."""
        tasks = [entry.task_id for entry in queue.pending(identity_of(request)) if isinstance(entry, Job)]
        return PendingTasksReply(size=len(tasks), tasks=tasks)

    @routes.post("/internal/clear-queue")
    def clear_queue(request: Request) -> ClearedReply:
        """Take everything that waits out of the line; what runs goes on."""
        return ClearedReply(cleared=queue.clear(who=identity_of(request)))

    @routes.get("/internal/notices", **documented([NOTICE]))
    def notices(request: Request) -> list[str]:
        """List what the user should know about this server: damaged files that were kept, doors that are open."""
        if not identity_of(request).is_admin:
            return []  # about files of the server's machine
        spool = (services.spool.notice,) if services.spool.notice else ()
        kept = (*services.notices, *queue.store.notices, *services.folder_faults)
        return list(dict.fromkeys((*spool, *kept, *services.scripts.fault_notices)))

    @routes.get("/internal/ping")
    def ping() -> Nothing:
        """Answers as soon as the server does, model or not."""
        return Nothing()

    return routes


def _task_progress(task: Task | None) -> ProgressReply:
    """Return the progress of a task that makes images."""
    if task is None:
        return ProgressReply()
    state = task.state
    return ProgressReply(
        progress=state.fraction,
        eta_relative=state.eta_s or 0.0,
        state=ProgressState(interrupted=task.is_interrupt_requested, job=task.task_id, job_count=1, job_timestamp=""),
        textinfo=state.phase,
    )


STARTING = page_text("Next: the worker starts")
TRYING_AGAIN = page_text("Trying again: the worker starts")


def _text(job: Job, position: int, phase: str, is_paused: bool) -> str:
    if job.status is JobStatus.QUEUED:
        if is_paused:
            return PAUSED
        if job.standing.waits_for:
            return f"Waits: {job.standing.waits_for}"
        if position == 0:
            return TRYING_AGAIN if job.put_backs else STARTING
        return f"In line: {position} {'job' if position == 1 else 'jobs'} before this one"
    return STOPPING if job.is_stopping_after_batch else phase


def _unknown_task() -> TaskProgressReply:
    return TaskProgressReply(
        active=False,
        queued=False,
        completed=False,
        progress=None,
        eta=None,
        live_preview=None,
        id_live_preview=None,
        textinfo=page_text("Waiting..."),
        stage=None,
    )
