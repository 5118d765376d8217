"""`modules.api.models`: the bodies of requests, as pydantic models."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field

from modules.api.schemas import Img2ImgBody, PngInfoBody, Txt2ImgBody
from modules.compat.refusal import refusing

StableDiffusionTxt2ImgProcessingAPI = Txt2ImgBody
StableDiffusionImg2ImgProcessingAPI = Img2ImgBody
PNGInfoRequest = PngInfoBody


class TextToImageResponse(BaseModel):
    """What POST /sdapi/v1/txt2img answers."""

    images: list[str] | None = Field(default=None, title="Image", description="The images in base64 format.")
    parameters: dict[str, Any] = Field(default_factory=dict)
    info: str = ""


class ImageToImageResponse(TextToImageResponse):
    """What POST /sdapi/v1/img2img answers."""


class FileData(BaseModel):
    """An image of a list."""

    data: str = Field(title="File data", description="Base64 representation of the file")
    name: str = Field(title="File name")


class ExtrasBaseResponse(BaseModel):
    """What POST /sdapi/v1/extra-single-image says of its work."""

    html_info: str = ""


class ExtrasSingleImageResponse(ExtrasBaseResponse):
    """One image."""

    image: str | None = None


class ExtrasBatchImagesResponse(ExtrasBaseResponse):
    """Several images."""

    images: list[str] = Field(default_factory=list)


class PNGInfoResponse(BaseModel):
    """The infotext of an image."""

    info: str = ""
    items: dict[str, Any] = Field(default_factory=dict)
    parameters: dict[str, Any] = Field(default_factory=dict)


class InterrogateRequest(BaseModel):
    """An image and which model writes its caption."""

    image: str = ""
    model: str = "clip"


class InterrogateResponse(BaseModel):
    """A caption."""

    caption: str | None = None


class TrainResponse(BaseModel):
    """What training says."""

    info: str = ""


class CreateResponse(BaseModel):
    """What the creation of a file says."""

    info: str = ""


_BODIES = "POST /docs shows the bodies of the program's own routes; an extension's routes have models of its own."
_NAMES = ("PydanticModelGenerator", "ModelDef", "OptionsModel", "FlagsModel", "ProgressResponse", "ProgressRequest")
__getattr__ = refusing("api.models", dict.fromkeys(_NAMES, _BODIES))
