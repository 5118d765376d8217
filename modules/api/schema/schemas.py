"""Bodies of requests, with the reference UI's field names. Unknown fields are tolerated: clients send many."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model

from modules.processing.request.parameters import Parameter
from modules.processing.request.request import IMG2IMG_PARAMETERS, PARAMETERS

EXAMPLE: dict[str, Any] = {
    "prompt": "a large red circle on a blue background",
    "negative_prompt": "blurry",
    "steps": 20,
    "sampler_name": "DPM++ 2M",
    "scheduler": "Karras",
    "width": 128,
    "height": 128,
    "cfg_scale": 7,
    "seed": 1,
}


class Tolerant(BaseModel):
    """A body whose unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class GenerationBody(Tolerant):
    """The fields that belong to the call and not to the image. A field that is null or left out has its default."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=(), json_schema_extra={"example": EXAMPLE})

    restore_faces: bool | None = None
    do_not_save_samples: bool | None = False
    do_not_save_grid: bool | None = False
    eta: float | None = None
    s_min_uncond: float | None = None
    s_churn: float | None = None
    s_tmax: float | None = None
    s_tmin: float | None = None
    s_noise: float | None = None
    override_settings: dict[str, Any] | None = None
    override_settings_restore_afterwards: bool | None = True
    disable_extra_networks: bool | None = False
    comments: dict[str, Any] | None = None
    enable_hr: bool | None = False
    firstphase_width: int | None = 0
    firstphase_height: int | None = 0
    force_task_id: str | None = None
    sampler_index: str | None = "Euler"
    script_name: str | None = None
    script_args: list[Any] | None = None
    send_images: bool | None = True
    save_images: bool | None = False
    alwayson_scripts: dict[str, Any] | None = None
    infotext: str | None = None
    reference_images: list[str] | None = Field(
        default=None, description="Shown besides to models that edit by references, in shapes of their own."
    )

    def given(self) -> set[str]:
        """Names of the fields that the caller set to something."""
        return {name for name in self.model_fields_set if getattr(self, name) is not None}

    def value(self, name: str) -> Any:
        """The field's value, or its default where the caller sent null."""
        found = getattr(self, name)
        return type(self).model_fields[name].default if found is None else found


class ImageBody(GenerationBody):
    """The start of an img2img request. Images are base64 text or data URIs."""

    init_images: list[str] | None = Field(default=None, examples=[["iVBORw0KGgo..."]])
    mask: str | None = None
    mask_blur: int | None = None
    latent_mask: str | None = None
    include_init_images: bool | None = False


def parameter_fields(rows: Iterable[Parameter]) -> dict[str, Any]:
    """The fields of a body as pydantic's `create_model` takes them: type and default by the API's name."""
    found: dict[str, Any] = {}
    for row in rows:
        if row.api:
            hint = list[str] if row.type is tuple else type(row.api_default) if row.words else row.type
            found[row.api] = (hint | None, row.api_default)
    return found


if TYPE_CHECKING:

    class Txt2ImgBody(GenerationBody):
        """The body of txt2img, as built below; mypy cannot read a class that is made."""

        def __init__(self, **fields: object) -> None: ...

    class Img2ImgBody(ImageBody):
        """The body of img2img, as built below."""

        def __init__(self, **fields: object) -> None: ...
else:
    Txt2ImgBody = create_model(
        "Txt2ImgBody",
        __base__=GenerationBody,
        __doc__="POST /sdapi/v1/txt2img. A field that is null or left out has its default.",
        **parameter_fields(PARAMETERS),
    )
    Img2ImgBody = create_model(
        "Img2ImgBody",
        __base__=ImageBody,
        __doc__="POST /sdapi/v1/img2img. A field that is null or left out has its default.",
        **parameter_fields(IMG2IMG_PARAMETERS),
    )


class ExtrasBody(Tolerant):
    """The common fields of the two routes of Extras, with A1111's defaults."""

    resize_mode: Literal[0, 1] = Field(default=0, description="0: by upscaling_resize, 1: to width and height")
    show_extras_results: bool = Field(default=True, description="Accepted; the images are always returned.")
    gfpgan_visibility: float = Field(default=0, ge=0, le=1)
    codeformer_visibility: float = Field(default=0, ge=0, le=1)
    codeformer_weight: float = Field(default=0, ge=0, le=1)
    upscaling_resize: float = Field(default=2, gt=0, description="factor, for resize_mode 0")
    upscaling_resize_w: int = Field(default=512, ge=1, description="pixels, for resize_mode 1")
    upscaling_resize_h: int = Field(default=512, ge=1, description="pixels, for resize_mode 1")
    upscaling_crop: bool = Field(default=True, description="cut to that size, for resize_mode 1")
    upscaler_1: str = Field(default="None", examples=["Lanczos"])
    upscaler_2: str = Field(default="None")
    extras_upscaler_2_visibility: float = Field(default=0, ge=0, le=1)
    upscale_first: bool = Field(default=False, description="Accepted; the operations run in the order of the settings.")
    operations: dict[str, dict[str, Any]] = Field(
        default={},
        description="others, by name, with their arguments",
        examples=[{"Remove background": {"enable": True}}],
    )


class ExtrasSingleBody(ExtrasBody):
    """POST /sdapi/v1/extra-single-image."""

    image: str = Field(default="", description="base64 text or a data URI", examples=["iVBORw0KGgo..."])


class FileData(Tolerant):
    """A file of a list."""

    data: str = Field(description="base64 text or a data URI", examples=["iVBORw0KGgo..."])
    name: str = Field(examples=["first.png"])


class ExtrasBatchBody(ExtrasBody):
    """POST /sdapi/v1/extra-batch-images."""

    imageList: list[FileData] = Field(  # noqa: N815 - the reference UI's name
        examples=[[{"data": "iVBORw0KGgo...", "name": "first.png"}]]
    )


class InterrogateBody(Tolerant):
    """POST /sdapi/v1/interrogate."""

    image: str = Field(default="", description="base64 text or a data URI", examples=["iVBORw0KGgo..."])
    model: str = Field(default="clip", description="clip, deepbooru or deepdanbooru", examples=["clip"])


class PngInfoBody(Tolerant):
    """POST /sdapi/v1/png-info."""

    image: str = Field(examples=["data:image/png;base64,iVBORw0KGgo..."])


class ProgressBody(Tolerant):
    """POST /internal/progress, as the page asks it."""

    id_task: str | None = Field(default=None, examples=["task(abc)"])
    id_live_preview: int | None = -1
    live_preview: bool | None = True
