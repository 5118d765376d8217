"""Requests of OpenAI's API, and what they become: bodies of txt2img and img2img."""

import base64
import math
import re
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from fastapi.exceptions import RequestValidationError
from PIL import ImageOps
from pydantic import BaseModel, ConfigDict, Field
from pydantic.config import JsonDict

from modules.api.schema.schemas import GenerationBody, Img2ImgBody, Txt2ImgBody
from modules.errors import UnknownNameError
from modules.images.encode import to_base64
from modules.images.infotext import parse_infotext
from modules.images.reading import read_image
from modules.images.resize import ResizeMode
from modules.model_cards.few_steps import checkpoint_few_steps
from modules.models.files.catalogue import CheckpointInfo
from modules.processing.request.pasting import pasted_values
from modules.processing.request.request import REQUEST_ROWS, GenerationRequest
from modules.processing.request.source_images import MaskedContent
from modules.services import Services
from modules.ui.common.defaults import default_size, wanted_checkpoint

THEIR_MODELS = re.compile(r"(gpt-image|dall-e|chatgpt-image)\b", re.IGNORECASE)
"""Models of OpenAI's, which clients name where nobody has set another: the chosen checkpoint stands for them."""
ANSWER_BY_URL = re.compile(r"dall-e\b", re.IGNORECASE)
SIZE = re.compile(r"(\d{1,5})x(\d{1,5})")
STEP_FACTORS = {"low": 0.5, "high": 1.5, "hd": 1.5, "xhigh": 2.0, "max": 2.0}
MAX_IMAGES, MAX_SOURCES = 10, 16
SIDE_STEP_PX = 16
CROP = int(ResizeMode.CROP_AND_RESIZE)
EDIT_STRENGTH, REFERENCE_STRENGTH = 0.75, 1.0
EXAMPLE: JsonDict = {"prompt": "a large red circle on a blue background", "size": "256x256", "seed": 1}


class UnknownModelError(UnknownNameError):
    """A model that is neither here nor one of OpenAI's."""


class ImagesBody(BaseModel):
    """POST /v1/images/generations and /v1/images/edits. Names of POST /sdapi/v1/txt2img may be given besides."""

    model_config = ConfigDict(extra="allow", protected_namespaces=(), json_schema_extra={"example": EXAMPLE})

    prompt: str = Field(min_length=1, max_length=32_000)
    model: str | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_IMAGES)
    size: str | None = Field(default=None, description="WIDTHxHEIGHT; auto: what suits the model, or the image")
    quality: Literal["auto", "standard", "low", "medium", "high", "hd", "xhigh", "max"] | None = Field(
        default=None, description="How many steps, from half of what suits the model to twice that."
    )
    response_format: Literal["url", "b64_json"] | None = Field(
        default=None, description="url saves the images. Without it: url for dall-e, else b64_json."
    )
    background: Literal["auto", "opaque"] | None = None
    output_format: Literal["png", "jpeg", "webp"] | None = None
    output_compression: int | None = Field(default=None, ge=0, le=100)
    stream: bool | None = None
    partial_images: int | None = Field(default=None, ge=0, le=3)
    style: Literal["vivid", "natural"] | None = Field(default=None, description="Accepted; the prompt says the style.")
    moderation: str | None = Field(default=None, description="Accepted; nothing is moderated.")
    input_fidelity: str | None = Field(default=None, description="Accepted; see denoising_strength of img2img.")
    user: str | None = Field(default=None, description="Accepted; whose image it is says the API key.")
    safety_identifier: str | None = Field(default=None, description="Accepted, as user.")

    @property
    def format_name(self) -> str:
        """The format of the images, as the reply calls it."""
        return self.output_format or "png"

    @property
    def extension(self) -> str:
        """The format of the images, as a file name extension."""
        return "jpg" if self.output_format == "jpeg" else self.format_name

    @property
    def answers_by_url(self) -> bool:
        """Whether the reply has URLs in place of images."""
        if self.response_format is None:
            return not self.stream and ANSWER_BY_URL.match(self.model or "") is not None
        return self.response_format == "url" and not self.stream


@dataclass(frozen=True)
class Sources:
    """Files of an edit: the images, of which the first is changed, and the mask."""

    images: list[bytes] = field(default_factory=list)
    mask: bytes | None = None


def refused(param: str, text: str, code: str = "invalid_value") -> RequestValidationError:
    """Make the error of a parameter."""
    return RequestValidationError([{"loc": ("body", param), "msg": text, "type": code}])


def generation_body(body: ImagesBody, services: Services, sources: Sources | None = None) -> GenerationBody:
    """Return the body of txt2img that asks for the same, or of img2img where there are sources.

    Raises `RequestValidationError` for a parameter that neither API has or that cannot be had, `UnknownModelError`, and
    `InvalidValueError` for a source that is no image.
    """
    kind = Txt2ImgBody if sources is None else Img2ImgBody
    extra = body.model_extra or {}
    for name in extra.keys() - kind.model_fields.keys():
        near = get_close_matches(name, [*ImagesBody.model_fields, *kind.model_fields], n=1)
        raise refused(name, f"Unknown parameter{f'; did you mean {near[0]}' if near else ''}", "unknown_parameter")
    named = bool(body.model) and not THEIR_MODELS.match(str(body.model))
    info = checkpoint_of(body.model if named else wanted_checkpoint(services), services)
    side = default_size(services, info.title) if info else GenerationRequest.width
    saving: dict[str, Any] = {"samples_format": body.extension}
    if body.output_compression is not None:
        saving["jpeg_quality"] = max(body.output_compression, 1)
    fields = own_settings(info, services)
    fields |= {"width": side, "height": side, "prompt": body.prompt, "n_iter": body.n or 1}
    fields |= {"do_not_save_grid": True, "save_images": body.answers_by_url}
    if sources is not None:
        fields |= source_fields(sources, side, services)
    if body.size not in (None, "auto"):
        fields["width"], fields["height"] = size_of(str(body.size))
    fields["steps"] = max(1, round(fields["steps"] * STEP_FACTORS.get(body.quality or "", 1)))
    fields |= extra
    chosen = {"sd_model_checkpoint": info.title} if named and info else {}
    fields["override_settings"] = {**saving, **chosen, **(fields.get("override_settings") or {})}
    return kind(**fields)


def checkpoint_of(name: str | None, services: Services) -> CheckpointInfo | None:
    """Return the checkpoint of a name, None without one. Raises `UnknownModelError`."""
    try:
        return services.catalogue.get(name) if name else None
    except UnknownNameError as error:
        raise UnknownModelError(str(error)) from error


def own_settings(info: CheckpointInfo | None, services: Services) -> dict[str, Any]:
    """Return what suits a model, by names of txt2img: what its family is usually sampled with, as far as that is known
    before it is loaded; what its name asks for; else what the page begins with."""
    fields: dict[str, Any] = {"steps": GenerationRequest.steps, "sampler_name": GenerationRequest.sampler}
    loaded, few_steps = services.models.status.model, checkpoint_few_steps(info.stem if info else "")
    if loaded is not None and loaded.usual and info is not None and info.answers_to(loaded.title):
        usual = pasted_values(parse_infotext(loaded.usual))
        fields |= {row.api: usual[row.name] for row in REQUEST_ROWS if row.api and row.name in usual}
    elif few_steps is not None:
        fields |= {"steps": few_steps.steps, "cfg_scale": few_steps.cfg_scale}
        fields |= {"sampler_name": few_steps.sampler} if few_steps.sampler else {}
        fields |= {"scheduler": few_steps.scheduler} if few_steps.scheduler else {}
    return fields


def size_of(text: str) -> tuple[int, int]:
    """Return width and height of "1024x1536". Raises `RequestValidationError`."""
    found = SIZE.fullmatch(text)
    if found is None:
        raise refused("size", f"{text!r} is no size; write WIDTHxHEIGHT in pixels, as in 1024x1024, or auto")
    return int(found[1]), int(found[2])


def source_fields(sources: Sources, side: int, services: Services) -> dict[str, Any]:
    """Return what img2img receives for an edit: the first image, which is changed, others as references, and the mask,
    whose transparent part is painted. The size is that of the first image, reduced to the pixels of a square of `side`.

    Raises `InvalidValueError` for what is no image, `RequestValidationError` for a mask that masks nothing.
    """
    first, *others = [base64.b64encode(data).decode("ascii") for data in sources.images]
    image = read_image(sources.images[0], "The image")
    scale = min(1.0, side / math.sqrt(image.width * image.height))
    width, height = (max(round(px * scale / SIDE_STEP_PX), 1) * SIDE_STEP_PX for px in image.size)
    model = services.models.status.model
    strength = REFERENCE_STRENGTH if model is not None and "references" not in model.unused else EDIT_STRENGTH
    fields: dict[str, Any] = {"init_images": [first], "reference_images": others or None, "resize_mode": CROP}
    fields |= {"width": width, "height": height, "denoising_strength": strength}
    if sources.mask is None:
        return fields
    mask = read_image(sources.mask, "The mask")
    if "A" not in mask.getbands():
        raise refused("mask", "The mask has no transparency: make what is to be painted transparent (alpha 0)")
    if mask.size != image.size:
        raise refused("mask", f"The mask is {mask.width}x{mask.height}, the image {image.width}x{image.height}")
    painted = to_base64(ImageOps.invert(mask.getchannel("A")))
    return {**fields, "mask": painted, "inpaint_full_res": False, "inpainting_fill": int(MaskedContent.ORIGINAL)}
