"""Extras over HTTP: extra-single-image and extra-batch-images, and the results of the page's tab."""

import asyncio
from collections.abc import Collection
from html import escape
from typing import Any

from fastapi import APIRouter, Request

from modules.api.access.auth import user_of
from modules.api.generation.generation import wait_for
from modules.api.generation.replies import REPLY_FORMATS
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import ExtrasBatchReply, ExtrasSingleReply, FailureItem
from modules.api.schema.schemas import ExtrasBatchBody, ExtrasBody, ExtrasSingleBody
from modules.errors import InvalidValueError, UnknownNameError
from modules.images.encode import Quality, loses_alpha, to_base64
from modules.jobs.work.extras import (
    ExtrasImage,
    ExtrasRequest,
    ExtrasRun,
    Source,
    chunks_of,
    extras_of,
    text_of,
    unique_names,
)
from modules.services import Services
from modules.settings.values import Settings

EXTRAS_ERRORS = {
    404: "Unknown upscaler 'Lancos'. Did you mean 'Lanczos'? Known: None, Lanczos, Nearest.",
    422: "The image is empty: 0 bytes.",
}


def extras_routes(services: Services) -> APIRouter:
    """The two routes of the reference UI. Their results are answered, not saved."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["generation"])

    async def run(wanted: ExtrasRequest, request: Request) -> ExtrasRun:
        started = await asyncio.to_thread(extras_of(services).start, wanted)
        task = started.task
        await wait_for(task, request, services.queue)
        task.result()
        return started

    def replied(found: ExtrasRun) -> list[str]:
        settings = services.settings.current
        images = [_encoded(image, settings) for image in found.images]
        found.images.clear()  # the task is remembered for a while, its images need not be
        return images

    @routes.post("/extra-single-image", **documented(errors=EXTRAS_ERRORS))
    async def single(body: ExtrasSingleBody, request: Request) -> ExtrasSingleReply:
        """Upscale an image and restore its faces. The reply holds the first image where an operation makes several."""
        if not body.image:
            raise InvalidValueError("There is no image: give one as base64 text in image.")
        wanted = ExtrasRequest(
            sources=(Source("of the request", data=body.image),),
            operations=operations_from(body, services.operations.names),
            save=False,
            user=user_of(request),
        )
        found = await run(wanted, request)
        info = html_of(found)
        return ExtrasSingleReply(html_info=info, image=(await asyncio.to_thread(replied, found))[0])

    @routes.post("/extra-batch-images", **documented(errors=EXTRAS_ERRORS))
    async def batch(body: ExtrasBatchBody, request: Request) -> ExtrasBatchReply:
        """Upscale several images and restore their faces. Images that fail are named in `failures`; the others are
        done."""
        names = unique_names([file.name for file in body.imageList])
        sources = [Source(name, data=file.data) for name, file in zip(names, body.imageList, strict=True)]
        wanted = ExtrasRequest(
            sources=tuple(sources),
            operations=operations_from(body, services.operations.names),
            is_batch=True,
            save=False,
            user=user_of(request),
        )
        found = await run(wanted, request)
        failures = [FailureItem(name=one.name, error=one.error) for one in found.failures]
        info = html_of(found)
        return ExtrasBatchReply(html_info=info, images=await asyncio.to_thread(replied, found), failures=failures)

    return routes


def operations_from(body: ExtrasBody, known: Collection[str]) -> dict[str, dict[str, Any]]:
    """The operations that a body asks for, by name. Raises `UnknownNameError`."""
    for name in body.operations:
        if name not in known:
            raise UnknownNameError.of("operation", name, known)
    wanted: dict[str, dict[str, Any]] = {
        "Upscale": {
            "upscale_enabled": True,
            "upscale_mode": body.resize_mode,
            "upscale_by": body.upscaling_resize,
            "upscale_to_width": body.upscaling_resize_w,
            "upscale_to_height": body.upscaling_resize_h,
            "upscale_crop": body.upscaling_crop,
            "upscaler_1_name": body.upscaler_1,
            "upscaler_2_name": body.upscaler_2,
            "upscaler_2_visibility": body.extras_upscaler_2_visibility,
        }
    }
    if body.gfpgan_visibility > 0:
        wanted["GFPGAN"] = {"enable": True, "gfpgan_visibility": body.gfpgan_visibility}
    if body.codeformer_visibility > 0:
        wanted["CodeFormer"] = {
            "enable": True,
            "codeformer_visibility": body.codeformer_visibility,
            "codeformer_weight": body.codeformer_weight,
        }
    return wanted | body.operations


def html_of(found: ExtrasRun) -> str:
    """Return what was done with the last image, in A1111's form."""
    text = found.images[-1].infotext if found.images else ""
    return f"<p>{escape(text)}</p>"


def _encoded(found: ExtrasImage, settings: Settings) -> str:
    """Encode the image as base64 text, with what was done and how the image was made inside."""
    assert found.image is not None
    extension = settings.saving.samples_format.lower()
    extension = extension if extension in REPLY_FORMATS and not loses_alpha(extension, found.image) else "png"
    if not settings.infotext.enable_pnginfo:
        return to_base64(found.image, extension, None, Quality.of(settings))
    items = {**found.items, **chunks_of(found)}
    return to_base64(found.image, extension, text_of(found, extension), Quality.of(settings), items)
