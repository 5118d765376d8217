"""Effect of 8 bits on a model, over HTTP: report, comparison, conversion as tasks, and the reports they write."""

from dataclasses import replace
from functools import cache

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field

from lib_workbench.precision_work import COMPARED_BY_DEFAULT, ComparisonRequest, PrecisionWork, StorageOptions
from modules.access.roles import Role, open_to
from modules.api.program.tasks import task_reply
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Reply, TaskItem
from modules.api.schema.schemas import Tolerant
from modules.plots.drawing import script_source
from modules.services import Services

MODEL = "featherweight-scenes.safetensors"
UNKNOWN_MODEL = "Unknown checkpoint 'gone'. Known: featherweight-scenes.safetensors [5fe1d58aba]."
REPORT_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "private, no-cache",
}


@cache
def report_headers() -> dict[str, str]:
    """Return the headers of a report: it loads nothing, and runs only the script that draws its plot."""
    policy = (
        f"default-src 'none'; script-src {script_source()}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return {**REPORT_HEADERS, "Content-Security-Policy": policy}


class StorageBody(Tolerant):
    """POST /featherweight/v1/precision-report."""

    model_config = ConfigDict(
        extra="ignore",
        protected_namespaces=(),
        json_schema_extra={"example": {"checkpoint": MODEL, "format": "fp8_e4m3fn_row", "skip": ["^conv_out$"]}},
    )

    checkpoint: str | None = None
    format: str = "fp8_e4m3fn_row"
    skip: list[str] = Field(default_factory=list)
    text_encoders: bool = True
    budget_gb: float = 0.0

    def options(self) -> StorageOptions:
        """Return the options as the work takes them."""
        return StorageOptions(
            checkpoint=self.checkpoint,
            storage=self.format,
            skip=tuple(self.skip),
            text_encoders=self.text_encoders,
            budget_gb=self.budget_gb,
        )


class ConversionBody(StorageBody):
    """POST /featherweight/v1/convert."""

    model_config = ConfigDict(
        extra="ignore",
        protected_namespaces=(),
        json_schema_extra={
            "example": {"checkpoint": MODEL, "format": "fp8_e4m3fn_row", "name": "scenes-fp8.safetensors"}
        },
    )

    name: str
    layout: str = ""
    alone: bool = Field(default=False, description="a denoiser stays alone, whatever text encoders and VAE are near it")

    def options(self) -> StorageOptions:
        """Return the options as the work takes them."""
        return replace(super().options(), layout=self.layout, alone=self.alone)


class ComparisonBody(Tolerant):
    """POST /featherweight/v1/precision-comparison."""

    model_config = ConfigDict(
        extra="ignore",
        protected_namespaces=(),
        json_schema_extra={
            "example": {
                "prompts": ["a large red circle on a blue background"],
                "formats": ["16 bit", "fp8_e4m3fn_row", "int8_row"],
                "steps": 12,
                "seed": 1,
            }
        },
    )

    prompts: list[str]
    formats: list[str] = Field(default_factory=lambda: list(COMPARED_BY_DEFAULT))
    checkpoint: str | None = None
    negative_prompt: str = ""
    steps: int = 20
    cfg_scale: float = 7.0
    sampler_name: str = "DPM++ 2M"
    seed: int = -1
    width: int | None = None
    height: int | None = None

    def options(self) -> ComparisonRequest:
        """Return the options as the work takes them."""
        return ComparisonRequest(
            prompts=tuple(self.prompts),
            storages=tuple(self.formats),
            checkpoint=self.checkpoint,
            negative_prompt=self.negative_prompt,
            steps=self.steps,
            cfg_scale=self.cfg_scale,
            sampler=self.sampler_name,
            seed=self.seed,
            width=self.width,
            height=self.height,
        )


class ReportItem(Reply):
    """A file among the reports."""

    name: str = Field(examples=["precision-comparison-20260101-120000.html"])


def precision_routes(services: Services) -> APIRouter:
    """The routes below /featherweight/v1 that have to do with precision."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["precision"])
    work = PrecisionWork(services)
    wrong = (
        "Unknown storage format 'fp7'. Known: fp8_e4m3fn_row, fp8_e4m3fn, fp8_e5m2, int8_row, int8_convrot, code4 ..."
    )
    errors = {404: UNKNOWN_MODEL, 422: wrong}

    @routes.post("/precision-report", **documented(errors=errors))
    @open_to(Role.ADMIN)
    def report(body: StorageBody) -> TaskItem:
        """Say what a storage format would make of a checkpoint. Nothing is changed; the task's `outcome` has bytes
        before and after, the mean relative error of the weights, and the layers with the largest; a file with every
        tensor goes into the reports. Formats: fp8_e4m3fn_row, fp8_e4m3fn, fp8_e5m2, int8_row, int8_convrot, gguf_q8_0,
        gguf_q5_1, gguf_q5_0, code4. With `budget_gb` each layer gets a format of its own, so that all weights fit."""
        return task_reply(work.report(body.options()))

    @routes.post("/precision-comparison", **documented(errors=errors))
    @open_to(Role.ADMIN)
    def compare(body: ComparisonBody) -> TaskItem:
        """Make the same images in several formats and compare them. The first format is what the others are
        measured against; "16 bit" means fp8 off. The task's `outcome` has the verdict, the numbers, and the names of a
        page and a JSON file among the reports."""
        return task_reply(work.compare(body.options()))

    @routes.post("/convert", **documented(errors=errors))
    @open_to(Role.ADMIN)
    def convert(body: ConversionBody) -> TaskItem:
        """Save a checkpoint in another precision. It goes into the folder of checkpoints under `name` and replaces
        nothing. Formats: fp16, bf16, fp32 and those of the report. A name that ends in .gguf makes a GGUF file;
        `layout` "comfyui" declares 8-bit weights as ComfyUI does."""
        return task_reply(work.convert(body.options(), body.name))

    @routes.get("/reports")
    @open_to(Role.ADMIN)
    def reports() -> list[ReportItem]:
        """The reports there are, the newest first."""
        return [ReportItem(name=name) for name in work.reports.names()]

    @routes.get("/reports/{name}", **documented(errors={404: "There is no report 'x.html'.", 422: "No name."}))
    @open_to(Role.ADMIN)
    def one_report(name: str) -> Response:
        """A report, as HTML or JSON. The page is complete in itself: it loads nothing and runs only its plot."""
        media_type = "text/html" if name.endswith(".html") else "application/json"
        return Response(work.reports.read(name), media_type=f"{media_type}; charset=utf-8", headers=report_headers())

    return routes
