"""`modules.api.models`: the bodies of requests, as pydantic models."""

from __future__ import annotations

import inspect as inspect
from typing import Any, Dict, List, Literal, Optional  # noqa: UP035 - taken along by `import *`

from pydantic import BaseModel, Field, create_model

from compat.facades.refusal import refusing
from modules.api.schema import reply_models, schemas

__all__ = [
    "API_NOT_ALLOWED",
    "Any",
    "BaseModel",
    "CreateResponse",
    "Dict",
    "EmbeddingItem",
    "EmbeddingsResponse",
    "ExtensionItem",
    "ExtraBaseResponse",
    "ExtrasBaseRequest",
    "ExtrasBaseResponse",
    "ExtrasBatchImagesRequest",
    "ExtrasBatchImagesResponse",
    "ExtrasSingleImageRequest",
    "ExtrasSingleImageResponse",
    "FaceRestorerItem",
    "Field",
    "FileData",
    "FlagsModel",
    "HypernetworkItem",
    "ImageToImageResponse",
    "InterrogateRequest",
    "InterrogateResponse",
    "LatentUpscalerModeItem",
    "List",
    "Literal",
    "MemoryResponse",
    "Optional",
    "OptionsModel",
    "PNGInfoRequest",
    "PNGInfoResponse",
    "ProgressRequest",
    "ProgressResponse",
    "PromptStyleItem",
    "RealesrganItem",
    "SDModelItem",
    "SDVaeItem",
    "SamplerItem",
    "SchedulerItem",
    "ScriptArg",
    "ScriptInfo",
    "ScriptsList",
    "StableDiffusionImg2ImgProcessingAPI",
    "StableDiffusionTxt2ImgProcessingAPI",
    "TextToImageResponse",
    "TrainResponse",
    "UpscalerItem",
    "create_model",
    "inspect",
]
StableDiffusionTxt2ImgProcessingAPI = schemas.Txt2ImgBody
StableDiffusionImg2ImgProcessingAPI = schemas.Img2ImgBody
PNGInfoRequest = schemas.PngInfoBody
ExtrasBaseRequest = schemas.ExtrasBody
ExtrasSingleImageRequest = schemas.ExtrasSingleBody
ExtrasBatchImagesRequest = schemas.ExtrasBatchBody
InterrogateRequest = schemas.InterrogateBody
ProgressRequest = schemas.ProgressBody
FileData = schemas.FileData
ProgressResponse = reply_models.ProgressReply
OptionsModel = reply_models.OptionsReply
FlagsModel = reply_models.FlagsReply
SamplerItem = reply_models.SamplerItem
SchedulerItem = reply_models.SchedulerItem
UpscalerItem = reply_models.UpscalerItem
LatentUpscalerModeItem = reply_models.LatentModeItem
SDModelItem = reply_models.CheckpointItem
SDVaeItem = reply_models.VaeItem
HypernetworkItem = reply_models.HypernetworkItem
FaceRestorerItem = reply_models.FaceRestorerItem
RealesrganItem = reply_models.RealesrganItem
PromptStyleItem = reply_models.StyleItem
EmbeddingItem = reply_models.EmbeddingItem
EmbeddingsResponse = reply_models.EmbeddingsReply
MemoryResponse = reply_models.MemoryReply
ScriptsList = reply_models.ScriptsReply
ScriptArg = reply_models.ScriptArgument
ScriptInfo = reply_models.ScriptItem
ExtensionItem = reply_models.ExtensionItem
API_NOT_ALLOWED = ["self", "kwargs", "sd_model", "outpath_samples", "outpath_grids", "sampler_index", "extra_params"]
"""Arguments of jobs that no body has."""


class TextToImageResponse(BaseModel):
    """Answer of POST /sdapi/v1/txt2img."""

    images: list[str] | None = Field(default=None, title="Image", description="The images in base64 format.")
    parameters: dict[str, Any] = Field(default_factory=dict)
    info: str = ""


class ImageToImageResponse(TextToImageResponse):
    """Answer of POST /sdapi/v1/img2img."""


class ExtrasBaseResponse(BaseModel):
    """Words of POST /sdapi/v1/extra-single-image on its work."""

    html_info: str = ""


ExtraBaseResponse = ExtrasBaseResponse


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


class InterrogateResponse(BaseModel):
    """A caption."""

    caption: str | None = None


class TrainResponse(BaseModel):
    """Words of training."""

    info: str = ""


class CreateResponse(BaseModel):
    """Words on the creation of a file."""

    info: str = ""


_BODIES = "POST /docs shows the bodies of the program's own routes; an extension's routes have models of its own."
_NAMES = ("PydanticModelGenerator", "ModelDef", "underscore")
__getattr__ = refusing("api.models", dict.fromkeys(_NAMES, _BODIES))
