"""Memory of finished jobs, stage by stage."""

from fastapi import APIRouter

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import TimelineReply
from modules.errors import UnknownNameError
from modules.memory.timeline import MemoryRecord, Reading
from modules.services import Services

NO_TIMELINE = "The job has no memory timeline: it has not ended yet, or it failed."


def memory_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/memory-timeline."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["server"])

    @routes.get("/memory-timeline", **documented(errors={404: NO_TIMELINE}))
    def memory_timeline(id_task: str = "") -> TimelineReply:
        """Memory of a finished job, stage by stage. Bytes of this process in main memory (rss) and of the graphics
        card's allocator; null where the system does not tell. `samples` are [seconds, stage, rss, allocated, reserved].
        Without `id_task`, of the job that ended last; without stages where none has ended yet."""
        job = services.queue.known.get(id_task) if id_task else services.queue.known.last_done()
        record = job.result().memory if job is not None and job.has_result else None
        if id_task and record is None:
            raise UnknownNameError(NO_TIMELINE)
        record = record or MemoryRecord(device="", begin=Reading(), stages=(), samples=())
        return TimelineReply.model_validate({"id_task": job.task_id if job else "", **record.as_dict()})

    return routes
