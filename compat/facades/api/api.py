"""`modules.api.api`: images as base64 text, for routes of extensions."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Body, Depends, FastAPI, HTTPException, Request, Response
from PIL import Image

from compat.facades.api import models
from compat.facades.refusal import refusing
from compat.host import host_now
from modules.errors import InvalidValueError
from modules.images.encode import decode_image, to_base64
from modules.sampling.catalog import SAMPLERS

__all__ = [
    "APIRouter",
    "Body",
    "Depends",
    "FastAPI",
    "HTTPException",
    "Request",
    "Response",
    "decode_base64_to_image",
    "decode_to_image",
    "encode_pil_to_base64",
    "models",
    "upscaler_to_index",
    "validate_sampler_name",
]


def decode_base64_to_image(encoding: str) -> Image.Image:
    """The image in base64 text or a data URI. Raises HTTPException 422 for text that is none, addresses included."""
    try:
        return decode_image(encoding)
    except InvalidValueError as error:
        raise HTTPException(status_code=422, detail=str(error)) from error


def decode_to_image(encoding: str) -> Image.Image:
    """Do the same."""
    return decode_base64_to_image(encoding)


def encode_pil_to_base64(image: Image.Image) -> bytes:
    """An image as base64, in the format of the settings, with its infotext."""
    settings = host_now().settings.current
    extension = (
        settings.saving.samples_format if settings.saving.samples_format in ("png", "jpg", "jpeg", "webp") else "png"
    )
    return to_base64(image.convert("RGB") if image.mode == "RGBA" and extension != "png" else image, extension).encode()


def upscaler_to_index(name: str) -> int:
    """The place of an upscaler among shared.sd_upscalers. Raises HTTPException 400."""
    from compat.facades.upscaler import sd_upscalers

    names = [one.name.lower() for one in sd_upscalers]
    if name.lower() not in names:
        raise HTTPException(status_code=400, detail=f"Invalid upscaler, needs to be one of these: {', '.join(names)}")
    return names.index(name.lower())


def validate_sampler_name(name: str) -> str:
    """The name. Raises HTTPException 400 for one that there is not."""
    if name not in SAMPLERS:
        raise HTTPException(status_code=400, detail="Sampler not found")
    return name


def script_name_to_index(name: str, scripts: Any) -> int:
    """The place of a script in a list of titles. Raises HTTPException 422."""
    titles = [
        one.title().lower() if hasattr(one, "title") and not isinstance(one, str) else one.lower() for one in scripts
    ]
    if name.lower() not in titles:
        raise HTTPException(status_code=422, detail=f"Script '{name}' not found")
    return titles.index(name.lower())


def setUpscalers(req: Any) -> dict[str, Any]:  # noqa: N802 - their name
    """A body of Extras as a dict."""
    found = dict(vars(req))
    found["extras_upscaler_1"] = found.pop("upscaler_1", None)
    found["extras_upscaler_2"] = found.pop("upscaler_2", None)
    return found


def verify_url(url: str) -> bool:
    """Addresses are not fetched."""
    return False


_REASONS = {
    "api_middleware": "script_callbacks.on_app_started has the FastAPI app.",
    "Api": "script_callbacks.on_app_started has the FastAPI app; the program's own routes are below /sdapi/v1.",
}
__getattr__ = refusing("api.api", _REASONS)
