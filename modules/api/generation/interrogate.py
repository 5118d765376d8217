"""Captions and tags of images over HTTP."""

import asyncio

from fastapi import APIRouter, Request

from modules.api.access.auth import user_of
from modules.api.generation.generation import wait_for
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import InterrogateReply
from modules.api.schema.schemas import InterrogateBody
from modules.captioning.captioners import NAMES
from modules.errors import UnknownNameError
from modules.images.encode import decode_image
from modules.jobs.work.captions import start_interrogation
from modules.services import Services

ERRORS = {404: "Image not found: give one as base64 text in image.", 422: "There is no tagging model: put a folder ..."}


def interrogate_routes(services: Services) -> APIRouter:
    """POST /sdapi/v1/interrogate."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["generation"])

    @routes.post("/interrogate", **documented(errors=ERRORS))
    async def interrogate(body: InterrogateBody, request: Request) -> InterrogateReply:
        """Describe an image: a sentence (model clip), tags (model deepbooru), or a prompt by the language model
        of the chosen checkpoint (model describe)."""
        if not body.image:
            raise UnknownNameError("Image not found: give one as base64 text in image.")
        if body.model.lower() not in NAMES:
            raise UnknownNameError.of("interrogate model", body.model, NAMES)
        image = await asyncio.to_thread(decode_image, body.image)
        task = await asyncio.to_thread(
            start_interrogation,
            services.queue,
            services.captioners,
            image,
            body.model,
            services.settings.current,
            user_of(request),
        )
        await wait_for(task, request, services.queue)
        return InterrogateReply(caption=task.result()["caption"])

    return routes
