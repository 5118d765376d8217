"""txt2img, png-info, interrupt and skip."""

import asyncio
import logging
from contextlib import suppress

from fastapi import APIRouter, Request

from modules.access.roles import Role
from modules.api.access.auth import identity_of
from modules.api.generation.replies import txt2img_reply
from modules.api.generation.requests import request_from
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Nothing, PngInfoReply, Txt2ImgReply
from modules.api.schema.schemas import GenerationBody, Img2ImgBody, PngInfoBody, Txt2ImgBody
from modules.errors import BusyError, Interrupted
from modules.images.encode import decode_base64
from modules.images.infotext import parse_infotext
from modules.images.metadata import read_metadata
from modules.jobs.job import Entry, Job, JobStatus
from modules.jobs.line import Line
from modules.jobs.ownership import claimed
from modules.services import Services

log = logging.getLogger(__name__)

TXT2IMG_ERRORS = {
    404: "Unknown sampler 'Oiler'. Did you mean 'Euler'? Known: DPM++ 2M, DPM++ SDE, ...",
    422: "width is 7; allowed is 16 to 8192 pixels.",
}
PAUSED_S = 30.0  # how long a client waits for a job in a paused line
IMG2IMG_ERRORS = {
    404: "Init image not found: give at least one image as base64 text in init_images.",
    422: "The mask is empty: it marks nothing to paint. Paint the part that should change.",
}
NO_IMAGE = (
    "The image is no base64 text ('!'): Only base64 data is allowed. Send an image file as base64 or as a data URI."
)


def generation_routes(services: Services) -> APIRouter:
    """The routes that make or read images."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["generation"])

    async def generated(body: GenerationBody, request: Request) -> Txt2ImgReply:
        job = await submitted(body, request, services)
        await wait_for(job, request, services.queue, stays=job.standing.is_lasting)
        return await asyncio.to_thread(txt2img_reply, job.result(), body, job.request.settings)

    @routes.post("/txt2img", **documented(errors=TXT2IMG_ERRORS))
    async def txt2img(body: Txt2ImgBody, request: Request) -> Txt2ImgReply:
        """Make images and wait for them. When the client disconnects the job ends, unless its images are saved or it
        has a `force_task_id`."""
        reply = await generated(body, request)
        reply.parameters |= {"reference_images": None}
        return reply

    @routes.post("/img2img", **documented(errors=IMG2IMG_ERRORS))
    async def img2img(body: Img2ImgBody, request: Request) -> Txt2ImgReply:
        """Make images from images, as a whole or under a mask. Otherwise as txt2img; the images that were sent are
        echoed only with `include_init_images`."""
        reply = await generated(body, request)
        if not body.include_init_images:
            reply.parameters |= {"init_images": None, "mask": None, "reference_images": None}
        return reply

    @routes.post("/png-info", **documented(errors={422: NO_IMAGE}))
    def png_info(body: PngInfoBody) -> PngInfoReply:
        """The infotext in an image, its other text entries, and the infotext parsed."""
        infotext, items = read_metadata(decode_base64(body.image))
        parameters = parse_infotext(infotext) if infotext else {}
        return PngInfoReply(info=infotext or "", items=items, parameters=parameters)

    @routes.post("/interrupt")
    def interrupt(request: Request) -> Nothing:
        """Stop the running job within one step."""
        services.queue.interrupt(who=identity_of(request))
        return Nothing()

    @routes.post("/skip", **documented())
    def skip(request: Request) -> None:
        """Leave the running batch and go on with the next."""
        services.queue.skip(who=identity_of(request))

    return routes


async def submitted(
    body: GenerationBody, request: Request, services: Services, preview_every: int | None = None
) -> Job:
    """Put what a body asks for in line, as work of the user who sent it. `preview_every`: steps, 0 for no previews;
    None for what the settings say. Raises what `request_from`, `claimed` and `Line.submit` raise."""
    identity = identity_of(request)
    wanted = claimed(await asyncio.to_thread(request_from, body, services), identity)
    if body.override_settings and not body.value("override_settings_restore_afterwards"):
        identity.require(Role.ADMIN, "Keeping settings (override_settings_restore_afterwards: false)")
        services.settings.update(body.override_settings, from_api=True)
    if preview_every is None:
        previews = wanted.settings.previews
        preview_every = max(previews.show_progress_every_n_steps, 0) if previews.live_previews_enable else 0
    # Whoever names the job or has its images saved may come back for them.
    is_lasting = wanted.save_images or bool(body.force_task_id)
    return await asyncio.to_thread(services.queue.submit, wanted, body.force_task_id, preview_every, is_lasting)


async def wait_for(job: Entry, request: Request, queue: Line, stays: bool = False) -> None:
    """Wait until the job has ended; no thread waits meanwhile.

    Raises `Interrupted` when the client goes away first, `BusyError` when the job stands in a paused line for
    `PAUSED_S`. `stays`: somebody comes back for the job, so that it is not taken out of the line then.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the server has stopped, and its loop with it
            loop.call_soon_threadsafe(ended.set)

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            continue

    job.when_final(tell)
    waits = [asyncio.create_task(ended.wait()), asyncio.create_task(gone())]
    paused_since: float | None = None
    try:
        while not (await asyncio.wait(waits, timeout=PAUSED_S / 10, return_when=asyncio.FIRST_COMPLETED))[0]:
            if job.status is not JobStatus.QUEUED or not queue.is_paused:
                paused_since = None
            elif paused_since is None:
                paused_since = loop.time()
            elif loop.time() - paused_since > PAUSED_S:
                break
        if ended.is_set():
            return
        is_paused = not waits[1].done()
    finally:
        for wait in waits:
            wait.cancel()
    if not stays:
        await asyncio.to_thread(queue.interrupt, job.task_id, why="left by its client")
    if is_paused:
        what = f"is still in line, as {job.task_id}" if stays else "was taken out of the line"
        raise BusyError(
            f"The queue is paused, so that the job did not begin; it {what}. Resume the queue in its tab or with POST "
            "/featherweight/v1/queue/resume."
        )
    log.info("%s: the client went away; the job %s.", job.task_id, "goes on" if stays else "ends")
    raise Interrupted("The client went away before the job ended.")
