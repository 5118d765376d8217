"""Long work that makes no image: what there is, how far it is, and stopping it."""

from fastapi import APIRouter, Request

from modules.api.access.auth import identity_of
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import TaskItem
from modules.jobs.tasks import Task
from modules.services import Services

UNKNOWN = "No task has the id 'x'; it may have ended long ago."


def task_reply(task: Task) -> TaskItem:
    """A task as it stands now."""
    state = task.state
    return TaskItem.of(
        state,
        status=state.status.value,
        elapsed_s=round(state.elapsed_s, 3),
        eta_s=None if state.eta_s is None else round(state.eta_s, 3),
        outcome=None if state.outcome is None else dict(state.outcome),
    )


def task_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/tasks, one of them, and its cancelling."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["tasks"])
    queue = services.queue

    @routes.get("/tasks")
    def list_tasks(request: Request) -> list[TaskItem]:
        """Long work, the newest first. Reports, comparisons, conversions, merges: those that wait, the one that runs,
        and the last that ended."""
        return [task_reply(task) for task in queue.known.tasks(who=identity_of(request))]

    @routes.get("/tasks/{task_id}", **documented(errors={404: UNKNOWN}))
    def one_task(task_id: str, request: Request) -> TaskItem:
        """How far a task is. Ask again until `status` is done, failed or interrupted; then `outcome` or `error` says
        what came of it. Times are seconds, `fraction` is 0 to 1."""
        return task_reply(queue.known.task(task_id, identity_of(request)))

    @routes.post("/tasks/{task_id}/cancel", **documented(errors={404: UNKNOWN}))
    def cancel(task_id: str, request: Request) -> TaskItem:
        """Stop a task. It stops at its next step and leaves no half files; one that has ended stays as it is."""
        task = queue.known.task(task_id, identity_of(request))
        queue.interrupt(task_id, why="cancelled")
        return task_reply(task)

    return routes
