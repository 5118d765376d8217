"""`/v1/images` and `/v1/models`: what clients of OpenAI's API call."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.exceptions import RequestValidationError
from PIL import Image
from pydantic import Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import Response, StreamingResponse

from lib_openai_images.bodies import MAX_SOURCES, ImagesBody, Sources, checkpoint_of, generation_body, refused
from lib_openai_images.errors import openai_error
from modules.api.generation.generation import submitted, wait_for
from modules.api.generation.replies import image_text
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Reply
from modules.errors import FeatherweightError, Interrupted
from modules.images.encode import to_base64, to_data_uri
from modules.jobs.job import Job
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.scripts import script_callbacks
from modules.services import Services

user = script_callbacks.open_to("user")
MODEL = {"id": "featherweight-scenes", "object": "model", "created": 1767225600, "owned_by": "featherweight"}
REFUSED = {
    404: "Unknown checkpoint 'gone'. Known: featherweight-scenes.safetensors [5fe1d58aba].",
    422: "The request cannot be used: n: Input should be less than or equal to 10.",
}
EDIT_FORM = {
    "type": "object",
    "required": ["image", "prompt"],
    "properties": {"image": {"type": "string", "format": "binary"}, "mask": {"type": "string", "format": "binary"}}
    | {"prompt": {"type": "string"}},
    "example": {"image": "(PNG)", "prompt": "a red hat"},
}
LOOK_S = 0.1  # how often a stream looks for a preview
NO_USAGE = {"input_tokens": 0, "output_tokens": 0, "total_tokens": 0}
"""Counts that streams carry because clients read them: nothing is billed."""


class ImageItem(Reply):
    """One of the two."""

    b64_json: str | None = Field(default=None, examples=["iVBORw0KGgo..."])
    url: str | None = Field(default=None, examples=[None])


class ImagesReply(Reply):
    """Images, and how they were made."""

    created: int = Field(examples=[1767225600])
    data: list[ImageItem]
    background: str = "opaque"
    output_format: str = Field(examples=["png"])
    size: str = Field(examples=["256x256"])


def openai_routes(services: Services) -> APIRouter:
    """POST /v1/images/generations, /v1/images/edits and GET /v1/models."""
    routes = APIRouter(prefix="/v1", tags=["openai"])

    async def drawn(body: ImagesBody, request: Request, sources: Sources | None = None) -> Response | ImagesReply:
        wanted = await asyncio.to_thread(generation_body, body, services, sources)
        partials = (body.partial_images or 0) if body.stream else 0
        every = max(wanted.value("steps") // (partials + 1), 1) if partials else 0
        job = await submitted(wanted, request, services, every)
        if body.stream:
            kind = "image_generation" if sources is None else "image_edit"
            return StreamingResponse(_events(job, body, request, services, kind), media_type="text/event-stream")
        await wait_for(job, request, services.queue, stays=job.standing.is_lasting)
        return await asyncio.to_thread(_reply, job, body, str(request.base_url))

    @routes.post(
        "/images/generations",
        response_model=ImagesReply,
        response_model_exclude_none=True,
        **documented(errors=REFUSED),
    )
    @user
    async def generations(body: ImagesBody, request: Request) -> Any:
        """Make images from a prompt. With `stream` they come as server-sent events, previews first."""
        return await drawn(body, request)

    @routes.post(
        "/images/edits",
        response_model=ImagesReply,
        response_model_exclude_none=True,
        openapi_extra={"requestBody": {"content": {"multipart/form-data": {"schema": EDIT_FORM}}}},
        **documented(errors=REFUSED),
    )
    @user
    async def edits(request: Request) -> Any:
        """Make images from images: a form with files in `image` or `image[]`, and a `mask` whose transparent part is
        painted. Models that take references are shown all of the images; others change the first."""
        return await drawn(*await _read_form(request))

    @routes.get("/models", **documented({"object": "list", "data": [MODEL]}))
    @user
    def models() -> dict[str, Any]:
        """The checkpoints. Names of OpenAI's models are taken too, for the checkpoint that is chosen on the page."""
        return {"object": "list", "data": [_model(info) for info in services.catalogue.entries]}

    @routes.get("/models/{model:path}", **documented(MODEL, errors={404: REFUSED[404]}))
    @user
    def model(model: str) -> dict[str, Any]:
        """One checkpoint."""
        info = checkpoint_of(model, services)
        assert info is not None
        return _model(info)

    @routes.api_route("/{path:path}", methods=["GET", "POST", "PUT", "DELETE"], include_in_schema=False)
    @user
    def missing(request: Request) -> None:
        raise HTTPException(404, f"There is no {request.url.path} here: this server makes images, and writes no texts.")

    return routes


async def _read_form(request: Request) -> tuple[ImagesBody, Request, Sources]:
    fields: dict[str, str] = {}
    files: dict[str, list[bytes]] = {}
    async with request.form(max_files=MAX_SOURCES + 1, max_fields=100) as form:
        for key, value in form.multi_items():
            name = key.partition("[")[0]
            if not isinstance(value, UploadFile):
                fields[name] = value
            elif name in ("image", "mask"):
                files.setdefault(name, []).append(await value.read())
            else:
                raise refused(name, "Unknown file; an edit takes image and mask", "unknown_parameter")
    if not files.get("image"):
        raise refused("image", "Missing: send a form (multipart/form-data) with an image file", "missing")
    try:
        body = ImagesBody.model_validate(fields)
    except ValidationError as error:
        details = [{**item, "loc": ("body", *item["loc"])} for item in error.errors()]
        raise RequestValidationError(details) from error
    return body, request, Sources(files["image"], files["mask"][0] if "mask" in files else None)


def _model(info: CheckpointInfo) -> dict[str, Any]:
    created = info.mtime_ns // 10**9
    return {"id": info.model_name, "object": "model", "created": created, "owned_by": "featherweight"}


def _images(job: Job) -> list[GeneratedImage]:
    """Return the images of a job without its grids. Raises the job's error, and `Interrupted` where there are none."""
    found = [image for image in job.result().images if image.role is ImageRole.SAMPLE]
    if not found:
        raise Interrupted("The job was interrupted before an image was finished.")
    return found


def _reply(job: Job, body: ImagesBody, base: str) -> ImagesReply:
    images = _images(job)
    return ImagesReply(
        created=int(time.time()),
        data=[
            ImageItem(url=_url(job, image, base))
            if body.answers_by_url
            else ImageItem(b64_json=image_text(image, job.request.settings))
            for image in images
        ],
        output_format=body.format_name,
        size=_size(images[0].image),
    )


def _size(image: Image.Image) -> str:
    return f"{image.width}x{image.height}"


def _url(job: Job, image: GeneratedImage, base: str) -> str:
    """Return where the file of an image is, for whoever may see the job; a data URI of one that could not be saved."""
    saved = (other for other in job.result().images if other.path is not None)
    index = next((index for index, other in enumerate(saved) if other is image), None)
    if index is None:
        return to_data_uri(image.image)
    return f"{base}featherweight/v1/queue/image?task_id={quote(job.task_id)}&index={index}"


async def _events(job: Job, body: ImagesBody, request: Request, services: Services, kind: str) -> AsyncIterator[str]:
    """Yield up to `partial_images` previews of the first image, then all images, or the error."""
    waiting = asyncio.create_task(wait_for(job, request, services.queue, stays=job.standing.is_lasting))
    waiting.add_done_callback(lambda task: task.cancelled() or task.exception())  # seen, also where nobody reads on
    sent = last_seen = 0
    while not (await asyncio.wait([waiting], timeout=LOOK_S))[0]:
        state = job.progress()
        is_new = state.preview is not None and state.preview_id != last_seen and state.images_done == 0
        if is_new and sent < (body.partial_images or 0):
            assert state.preview is not None
            text = await asyncio.to_thread(to_base64, state.preview, body.extension)
            yield _event(f"{kind}.partial_image", body, text, state.preview, partial_image_index=sent)
            sent, last_seen = sent + 1, state.preview_id
    try:
        waiting.result()
        images = _images(job)
    except FeatherweightError as error:
        content = {"error": type(error).__name__, "detail": "", "errors": str(error)}
        yield f"event: error\ndata: {json.dumps(openai_error(error.status, content)[1])}\n\n"
        return
    for image in images:
        text = await asyncio.to_thread(image_text, image, job.request.settings)
        yield _event(f"{kind}.completed", body, text, image.image, usage=NO_USAGE)


def _event(kind: str, body: ImagesBody, text: str, image: Image.Image, **more: object) -> str:
    """Return a server-sent event with an image."""
    facts = {"created_at": int(time.time()), "size": _size(image), "quality": body.quality or "auto"}
    facts |= {"background": "opaque", "output_format": body.format_name}
    return f"event: {kind}\ndata: {json.dumps({'type': kind, 'b64_json': text, **facts, **more})}\n\n"
