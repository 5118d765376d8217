"""Memory of finished jobs, stage by stage, and the speed of the devices."""

from fastapi import APIRouter

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import ProbeReply, TimelineReply
from modules.errors import UnknownNameError
from modules.memory.timeline import MemoryRecord, Reading
from modules.services import Services

MEASURED = {"NVIDIA GeForce RTX 3060": {"seconds": {"product fp16": 0.004}, "problems": {"fp8": "not supported"}}}
NO_TIMELINE = "The job has no memory timeline: it has not ended yet, or it failed."


def memory_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/memory-timeline and POST /featherweight/v1/measure-device."""
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

    @routes.post("/measure-device", **documented(MEASURED))
    def measure_device() -> dict[str, ProbeReply]:
        """Measure what each device computes fast, which takes up to 20 seconds, and choose by it from now on: seconds
        and problems by the device's name. Frees the model first; waits for a running image."""
        return {name: ProbeReply.model_validate(found) for name, found in services.models.measure_again().items()}

    return routes
