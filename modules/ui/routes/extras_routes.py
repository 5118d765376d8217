"""Images of the Extras tab: from the files they were saved in, or from memory where they could not be saved."""

from typing import Any

from fastapi import APIRouter, Request, Response

from modules.api.access.auth import identity_of
from modules.api.generation.replies import shown_as
from modules.api.schema.documentation import documented
from modules.errors import UnknownNameError
from modules.images.encode import FORMATS, encode_image
from modules.jobs.work.extras import ExtrasImage, chunks_of, extras_of
from modules.services import Services

NO_TASK = "No task has the id 'abc'; it may have ended long ago."
REPLIES: dict[int | str, dict[str, Any]] = {
    **documented(errors={404: NO_TASK})["responses"],
    200: {"description": "The image.", "content": {"image/png": {"example": "(PNG)"}}},
}


def extras_routes(services: Services) -> APIRouter:
    """GET /internal/extras-image."""
    routes = APIRouter(prefix="/internal", tags=["page"])

    @routes.get("/extras-image", response_class=Response, responses=REPLIES)
    def extras_image(id_task: str, index: int, request: Request) -> Response:
        """An image that Extras made, by its place in the task's results."""
        images = extras_of(services).run_of(services.queue.known.task(id_task, identity_of(request)).task_id).images
        if not 0 <= index < len(images):
            raise UnknownNameError(f"The task has {len(images)} images; there is no number {index}.")
        data, extension, name = _data(images[index])
        headers = {
            "Cache-Control": "private, max-age=86400",
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": shown_as(name),
        }
        return Response(data, media_type=f"image/{FORMATS[extension].lower()}", headers=headers)

    return routes


def _data(found: ExtrasImage) -> tuple[bytes, str, str]:
    """The bytes, the extension and the name of a result."""
    if found.path is not None:
        try:
            return found.path.read_bytes(), found.path.suffix.lower().removeprefix("."), found.path.name
        except OSError as error:
            raise UnknownNameError(f"{found.path} cannot be read any more: {error.strerror}.") from error
    if found.image is None:
        raise UnknownNameError("This image was sent to its client and is not kept.")
    items = {**found.items, **chunks_of(found)}
    return encode_image(found.image, "png", found.parameters, items=items), "png", "extras.png"
