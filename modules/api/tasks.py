"""Long work that runs beside the pictures: what there is, how far it is, and stopping it."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from modules.jobs.job import JobStatus
from modules.jobs.tasks import Task
from modules.services import Services

TASK_EXAMPLE = "0f8fad5bd9cb469"


class TaskReply(BaseModel):
    """A task as it stands now."""

    id: str = Field(examples=[TASK_EXAMPLE])
    kind: str = Field(examples=["precision-report"])
    title: str = Field(examples=["Precision report of model.safetensors"])
    status: JobStatus = Field(description="The last three are final.", examples=["running"])
    fraction: float = Field(description="0 to 1", examples=[0.25])
    phase: str = Field(description="what happens now, for people", examples=["120 of 480 tensors"])
    elapsed_s: float = Field(examples=[3.2])
    eta_s: float | None = Field(description="seconds left; null before it can be said", examples=[9.6])
    error: str | None = Field(description="why it failed, or that it was cancelled", examples=[None])
    outcome: dict[str, Any] | None = Field(description="what came of it, when it is done", examples=[None])


def task_reply(task: Task) -> TaskReply:
    """The reply of a task."""
    state = task.state
    return TaskReply(
        id=state.id,
        kind=state.kind,
        title=state.title,
        status=state.status,
        fraction=state.fraction,
        phase=state.phase,
        elapsed_s=round(state.elapsed_s, 3),
        eta_s=None if state.eta_s is None else round(state.eta_s, 3),
        error=state.error,
        outcome=None if state.outcome is None else dict(state.outcome),
    )


def task_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/tasks, one of them, and its cancelling."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["tasks"])
    tasks = services.tasks
    unknown: dict[int | str, dict[str, Any]] = {404: {"description": "No task has this id (any more)."}}

    @routes.get("/tasks", summary="Long work, the newest first")
    def list_tasks() -> list[TaskReply]:
        """Reports, conversions and comparisons: those that wait, the one that runs, and the last that ended."""
        return [task_reply(task) for task in tasks.known()]

    @routes.get("/tasks/{task_id}", summary="How far a task is", responses=unknown)
    def one_task(task_id: str) -> TaskReply:
        """Ask again until `status` is done, failed or interrupted; then `outcome` or `error` says what came of it."""
        return task_reply(tasks.get(task_id))

    @routes.post("/tasks/{task_id}/cancel", summary="Stop a task", responses=unknown)
    def cancel(task_id: str) -> TaskReply:
        """It stops at its next step, and leaves no half files. A task that has ended stays as it is."""
        task = tasks.get(task_id)
        task.cancel()
        return task_reply(task)

    return routes
