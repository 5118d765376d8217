"""Images that the page's forms start from: sent ahead, looked at again after a reload."""

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse

from modules.api.schema.documentation import documented
from modules.errors import FeatherweightError
from modules.images.metadata import read_metadata
from modules.system.texts import page_text
from modules.ui.common.uploads import Uploads

NO_IMAGE = "The image is no image file that can be read (3 bytes, beginning with b'abc'). Give a PNG, JPEG, WebP ..."
GONE = page_text("The image is no longer kept by the server; put it into the form again.")
IMAGE = {"schema": {"type": "string", "format": "binary"}, "example": "(PNG)"}
BODY = {"requestBody": {"content": {"image/png": IMAGE}, "required": True}}
EXAMPLE = {"key": "9f86d081...", "width": 512, "height": 512, "infotext": ""}


def upload_routes(uploads: Uploads) -> APIRouter:
    """To be included below the page's own prefix."""
    routes = APIRouter(prefix="/upload")

    @routes.post("", openapi_extra=BODY, **documented(EXAMPLE, errors={422: NO_IMAGE}))
    async def upload(request: Request, name: str = "The image") -> dict[str, Any]:
        """Keep an image file (the body, as it is) by the hash of its pixels, upright and in 8 bits a channel. `name`
        begins the sentence about a file that cannot be used."""
        data = await request.body()
        return await asyncio.to_thread(_taken_in, uploads, data, name[:200])

    @routes.get("/{key}", response_class=FileResponse, **documented(errors={422: GONE}))
    def show(key: str) -> FileResponse:
        """An image that is kept, as PNG."""
        headers = {"Cache-Control": "private, max-age=86400", "X-Content-Type-Options": "nosniff"}
        return FileResponse(uploads.path(key), media_type="image/png", headers=headers)

    return routes


def _taken_in(uploads: Uploads, data: bytes, name: str) -> dict[str, Any]:
    kept = uploads.add(data, name)
    try:
        infotext, _ = read_metadata(data)
    except FeatherweightError:
        infotext = None  # the image is good, what is written into it is not
    return {"key": kept.key, "width": kept.size_px[0], "height": kept.size_px[1], "infotext": infotext or ""}
