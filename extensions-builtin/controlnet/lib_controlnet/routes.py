"""`/controlnet/...`: lists of modules and models, and running a module on images. Needs FastAPI, which only servers
import."""

from __future__ import annotations

import json
import threading
from typing import Any

from fastapi import APIRouter, Body, Request, Response

from lib_controlnet.detection import DETECT, Detection, as_base64
from lib_controlnet.files import bare_name, list_models, preprocessor_file
from lib_controlnet.poses import drawn_all
from lib_controlnet.preprocessors import MODULES, Module
from lib_controlnet.units import NO_MODEL, UNION_TAGS
from modules.errors import InvalidValueError
from modules.scripts import script_callbacks
from modules.scripts.program import Program

VERSION = 3
MAX_PIXELS_HERE = 2**22
"""More than that is computed where images are."""
ALL = "All"
TYPES = (
    *(ALL, "Canny", "Depth", "IP-Adapter", "Inpaint", "Instant-ID", "InstructP2P", "Lineart", "MLSD", "NormalMap"),
    *("OpenPose", "Recolor", "Reference", "Revision", "Scribble", "Segmentation", "Shuffle", "SoftEdge", "SparseCtrl"),
    *("T2I-Adapter", "Tile"),
)

EXAMPLE = {"controlnet_module": "canny", "controlnet_input_images": ["base64 of an image"]}
"""A body of the route that shows what a module makes of images."""
POSES = [{"people": [{"pose_keypoints_2d": [64, 20, 1, 64, 36, 1]}], "canvas_width": 128, "canvas_height": 128}]
"""A body of the route that draws poses."""
OLD_BODY = {
    "prompt": "a cat",
    "controlnet_units": [{"module": "canny", "model": "control_canny", "input_image": "..."}],
}
"""A body of the routes for old callers."""


WORDS = {
    "InstructP2P": ("ip2p",),
    "Segmentation": ("seg",),
    "NormalMap": ("normal",),
    "T2I-Adapter": ("t2i_adapter", "t2iadapter", "t2ia"),
    "IP-Adapter": ("ip_adapter", "ipadapter"),
    "OpenPose": ("densepose",),
    "Instant-ID": ("instant_id", "instantid"),
    "Scribble": ("sketch",),
    "Tile": ("blur",),
}
"""What names of models say of a control type, besides its own name."""
UNION_WORD = "union"
USUAL_VERSION = "11"
"""What the name of a model says that is chosen first, where one does: ControlNet 1.1."""


def add_routes(app: Any, program: Program) -> None:
    """Called when page and API are built."""
    from modules.api.access.auth import user_of
    from modules.api.schema.documentation import documented

    routes = APIRouter(prefix="/controlnet", tags=["lists"])
    one_at_a_time = threading.Lock()  # of what is computed here: the memory and the threads of the server are for all

    @routes.get("/version", **documented({"version": VERSION}))
    @script_callbacks.open_to("user")
    def version() -> dict[str, int]:
        """The version of these routes."""
        return {"version": VERSION}

    @routes.get("/model_list", **documented({"model_list": ["control_canny [e3b0c442]"]}))
    @script_callbacks.open_to("user")
    def model_list(update: bool = True, shipped: bool = False) -> dict[str, list[str]]:
        """Control models, with hashes; with `shipped` also those that lie in the program's own folder."""
        return {"model_list": [model.title for model in list_models(program, shipped)]}

    @routes.get("/module_list", **documented({"module_list": ["none"], "module_detail": {}}))
    @script_callbacks.open_to("user")
    def module_list(alias_names: bool = False) -> dict[str, Any]:
        """Preprocessors, and which numbers they take."""
        names = {(module.label if alias_names else module.name): module for module in MODULES.values()}
        return {
            "module_list": list(names),
            "module_detail": {name: detail_of(module) for name, module in names.items()},
        }

    @routes.get("/control_types", **documented({"control_types": {}}))
    @script_callbacks.open_to("user")
    def control_types() -> dict[str, Any]:
        """Preprocessors and models by what they are for."""
        models = [model.title for model in list_models(program, with_shipped=False)]
        return {"control_types": {name: type_of(name, models) for name in TYPES}}

    @routes.get("/settings", **documented({"control_net_unit_count": 3}))
    @script_callbacks.open_to("user")
    def settings() -> dict[str, Any]:
        """How many units the page has."""
        return {"control_net_unit_count": program.settings()["control_net_unit_count"]}

    @routes.post("/detect", **documented({"images": [], "info": "Success"}))
    @script_callbacks.open_to("user")
    def detect(
        request: Request,
        body: dict[str, Any] = Body(default={}, examples=[EXAMPLE]),  # noqa: B008
    ) -> dict[str, Any]:
        """Run a preprocessor on images."""
        asked = Detection.read(body)
        asked.module.check_files(lambda names: preprocessor_file(program, names))
        if (
            asked.module.groups or asked.module.detector or asked.pixels > MAX_PIXELS_HERE
        ):  # PyTorch, or the time of what makes images
            return dict(program.compute(DETECT, body, user_of(request)))
        with one_at_a_time:
            return asked.run()

    @routes.post("/render_openpose_json", **documented({"images": [], "info": "Success"}))
    @script_callbacks.open_to("user")
    def render_openpose_json(body: list[Any] = Body(examples=[POSES])) -> dict[str, Any]:  # noqa: B008
        """Draw poses, an image for each entry."""
        with one_at_a_time:
            return {"images": [as_base64(image) for image in drawn_all(body)], "info": "Success"}

    add_old_routes(app, routes)
    app.include_router(routes)


UNITS = "controlnet_units"
HANDED_ON = ("authorization", "cookie")


def add_old_routes(app: Any, routes: APIRouter) -> None:
    """`/controlnet/txt2img` and `/controlnet/img2img` of old callers, who give the units as a list of their own: the
    request goes on to the program's own route, with the units in their place."""
    from httpx import ASGITransport, AsyncClient

    from modules.api.schema.documentation import documented

    async def handed_on(name: str, request: Request, body: dict[str, Any]) -> Response:
        async with AsyncClient(transport=ASGITransport(app), base_url="http://localhost", timeout=None) as client:
            headers = {key: request.headers[key] for key in HANDED_ON if key in request.headers}
            headers["content-type"] = "application/json"
            content = json.dumps(with_units_in_place(body)).encode()
            reply = await client.post(f"/sdapi/v1/{name}", content=content, headers=headers)
        return Response(reply.content, reply.status_code, media_type="application/json")

    @routes.post("/txt2img", **documented({"images": []}))
    @script_callbacks.open_to("user")
    async def txt2img(request: Request, body: dict[str, Any] = Body(examples=[OLD_BODY])) -> Response:  # noqa: B008
        """POST /sdapi/v1/txt2img with `controlnet_units`, for old callers."""
        return await handed_on("txt2img", request, body)

    @routes.post("/img2img", **documented({"images": []}))
    @script_callbacks.open_to("user")
    async def img2img(request: Request, body: dict[str, Any] = Body(examples=[OLD_BODY])) -> Response:  # noqa: B008
        """POST /sdapi/v1/img2img with `controlnet_units`, for old callers."""
        return await handed_on("img2img", request, body)


def with_units_in_place(body: dict[str, Any]) -> dict[str, Any]:
    """A body of an old route as one of the program's. Raises `InvalidValueError`."""
    scripts = body.get("alwayson_scripts") or {}
    units = body.get(UNITS) or []
    if not isinstance(units, list) or not isinstance(scripts, dict):
        raise InvalidValueError(f"{UNITS} takes a list of units, alwayson_scripts an object.")
    rest = {key: value for key, value in body.items() if key != UNITS}
    return {**rest, "alwayson_scripts": {**scripts, "ControlNet": {"args": units}}} if units else rest


def detail_of(module: Module) -> dict[str, Any]:
    """Describe what a module takes."""
    return {
        "model_free": module.is_model_free,
        "sliders": [
            {"name": slider.name, "value": slider.value, "min": slider.low, "max": slider.high, "step": slider.step}
            for slider in module.sliders
        ],
    }


def type_of(name: str, models: list[str]) -> dict[str, Any]:
    """One control type: its modules, the models whose names say that they are of it, and what is chosen first."""
    if name == ALL:
        return {
            "module_list": [module.label for module in MODULES.values()],
            "model_list": [NO_MODEL, *models],
            "default_option": "none",
            "default_model": NO_MODEL,
        }
    modules = [module.label for module in MODULES.values() if name in module.tags]
    words = [name.lower(), *WORDS.get(name, ()), *([UNION_WORD] if name in UNION_TAGS else ())]
    own = [model for model in models if any(word in model.lower() for word in words)]
    usual = [model for model in own if USUAL_VERSION in bare_name(model)]
    return {
        "module_list": ["none", *modules],
        "model_list": [NO_MODEL, *own],
        "default_option": modules[0] if modules else "none",
        "default_model": next(iter((*usual, *own)), NO_MODEL),
    }
