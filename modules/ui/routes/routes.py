"""The page's own small routes: what the engine holds, token counts, finished images. Served from memory, no folder
is opened to the browser."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from modules.api.access.auth import identity_of
from modules.api.generation.replies import shown_as
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import EngineReply, ResultReply, TokenCountReply
from modules.errors import FeatherweightError, InvalidValueError
from modules.images.encode import encode_image
from modules.jobs.job import Job
from modules.models.text_encoders.counting import BY_CHUNKS
from modules.processing.memory_estimate.words import plan_reply
from modules.processing.request.request import MAX_SIDE_PX, GenerationRequest
from modules.processing.request.texts import text_options
from modules.prompting.counter import longest_count
from modules.prompting.styles import StyleBook
from modules.scripts.callbacks import BeforeTokenCounterParams, Moment
from modules.services import Services
from modules.system.texts import page_text
from modules.ui.common.defaults import is_shipped, wanted_checkpoint
from modules.ui.common.page_settings import page_settings
from modules.ui.common.uploads import Uploads
from modules.ui.form.form import FIELDS_OF, request_of
from modules.ui.form.scales import hashing_line, pending_line, scales_facts, scales_line
from modules.ui.form.start_form import mode_of, sized, stand_in
from modules.ui.routes.card_routes import card_routes
from modules.ui.routes.gallery_routes import NO_JOB, gallery_routes
from modules.ui.routes.localization_routes import localization_routes
from modules.ui.routes.preset_routes import preset_routes
from modules.ui.routes.settings_routes import settings_routes
from modules.ui.routes.upload_routes import upload_routes

NO_BATCH = page_text("This batch is unknown: the server was restarted, or many others followed it.")
BATCH = {
    "total": 3,
    "done": 2,
    "current": ["c.png", "task(abc)"],
    "finished": ["task(abd)"],
    "failures": [["b.png", "b.png is empty: 0 bytes."]],
    "is_over": False,
    "is_stopped": False,
}
IMAGE_REPLIES: dict[int | str, dict[str, Any]] = {
    **documented(errors={404: NO_JOB})["responses"],
    200: {"description": "The image as PNG, its infotext inside.", "content": {"image/png": {"example": "(PNG)"}}},
}


class CountBody(BaseModel):
    """POST /internal/token-count."""

    text: str = Field(default="", examples=["a (red:1.2) circle"])
    steps: int = 20
    styles: list[str] = Field(default=[], description="styles to count too, where the settings say so")
    is_negative: bool = False


class FormBody(BaseModel):
    """The values of a form by the names of its fields, as the page's script keeps them."""

    form: dict[str, Any]
    tab: str = Field(default="txt2img", examples=["img2img"])
    image_size: tuple[int, int] | None = Field(default=None, description="of the image that img2img starts from")


class BatchBody(BaseModel):
    """A batch of img2img."""

    id: str = Field(examples=["task(abc)"])


def page_routes(services: Services) -> APIRouter:
    """The routes that the page's scripts call."""
    routes = APIRouter(prefix="/internal", tags=["page"])

    @routes.get("/engine", response_model=EngineReply)
    def engine() -> dict[str, Any]:
        """State of the engine, the loaded model on the scales, and the settings that the page's script follows."""
        status = services.models.status
        model, optimizations = status.model, services.settings.current.optimizations
        pending = (
            pending_line(
                model,
                optimizations.fp8_storage,
                services.queue.running_job() is not None,
                optimizations.weights_budget_gb,
            )
            if model
            else ""
        )
        return {
            "state": status.state.value,
            "message": status.message,
            "line": scales_line(model) if model else "",
            "pending": pending,
            "facts": scales_facts(model) if model else "",
            "hashing": hashing_line(services.models.hashing),
            "is_bundled": is_shipped(wanted_checkpoint(services)),
            "size": model.default_size_px if model else None,
            "usual": model.usual if model else "",
            "unused": model.unused if model else None,
            "switch_seconds": round(model.switch_seconds, 2) if model else None,
            "settings": page_settings(services.settings.current),
        }

    @routes.post("/token-count", response_model=TokenCountReply)
    def token_count(body: CountBody) -> dict[str, Any]:
        """Tokens of the longest text a prompt becomes, as "n/75", by the tokenizer of the loaded model."""
        settings = services.settings.current
        model = services.models.status.model
        before = BeforeTokenCounterParams(body.text, body.steps, list(body.styles), not body.is_negative)
        services.scripts.callbacks.call(Moment.BEFORE_TOKEN_COUNTER, before)
        text, steps = str(before.prompt), int(before.steps)
        counting, options = model.counting if model else BY_CHUNKS, text_options(settings)
        count = longest_count(
            lambda text: counting.count(text, options),
            text,
            max(1, min(steps, 1000)),
            apply_styles=_styling(services, body)
            if settings.prompt_editing.include_styles_into_token_counters
            else None,
            comments=settings.stable_diffusion.enable_prompt_comments,
            is_negative=body.is_negative,
        )
        return {"text": str(count), "count": count.count, "limit": count.limit}

    @routes.post("/memory-estimate", **documented({"line": "needs 3.2 GB of 4.0 GB"}))
    def memory_estimate(body: FormBody) -> dict[str, Any]:
        """Estimate what the job in a form will need, as POST /sdapi/v1/plan says it; the form counts as Generate would
        read it, also the fields that the page has not shown."""
        missing = [name for name in FIELDS_OF.get(body.tab, ()) if name not in body.form]
        if missing or body.tab not in FIELDS_OF:
            lacks = ", ".join(missing) or f"a tab (given: {body.tab!r})"
            raise InvalidValueError(f"The form lacks {lacks}; reload the page.")
        try:
            request = _planned(body, services)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValueError(f"A number in the form cannot be used: {error}.") from error
        return plan_reply(*services.planner.planned(request))

    @routes.get("/result", response_model=ResultReply, **documented(errors={404: NO_JOB}))
    def result(id_task: str, request: Request) -> dict[str, Any]:
        """A job's images so far, and what there is to say about them."""
        job = services.queue.known.get(id_task, identity_of(request))
        return _result_reply(job)

    @routes.get("/image", response_class=Response, responses=IMAGE_REPLIES)
    def image(id_task: str, index: int, request: Request) -> Response:
        """One image as PNG with its infotext."""
        found = services.queue.known.get(id_task, identity_of(request)).image(index)
        name = found.path.stem if found.path else f"{found.seed}"
        headers = {
            "Cache-Control": "private, max-age=86400",
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": shown_as(f"{name}.png"),
        }
        return Response(encode_image(found.image, "png", found.infotext), media_type="image/png", headers=headers)

    @routes.get("/batch", **documented(BATCH, errors={404: NO_BATCH}))
    def batch(id: str, request: Request) -> dict[str, Any]:
        """How far a batch of img2img is, and what of it could not be made."""
        return asdict(services.batches.get(id, identity_of(request)).state)

    @routes.post("/stop-batch", **documented(BATCH, errors={404: NO_BATCH}))
    def stop_batch(body: BatchBody, request: Request) -> dict[str, Any]:
        """Stop a batch; what is made stays."""
        found = services.batches.get(body.id, identity_of(request))
        found.stop()
        return asdict(found.state)

    routes.include_router(gallery_routes(services))
    routes.include_router(card_routes(services))
    routes.include_router(localization_routes(services))
    routes.include_router(settings_routes(services))
    routes.include_router(preset_routes(services))
    routes.include_router(upload_routes(Uploads.of(services.paths)))
    return routes


def _planned(body: FormBody, services: Services) -> GenerationRequest:
    """The request of a form whose images were not sent."""
    if body.tab == "txt2img":
        return request_of(body.form, services)
    width, height = body.image_size or (int(body.form["width"]), int(body.form["height"]))
    size_px = (min(max(width, 1), MAX_SIDE_PX), min(max(height, 1), MAX_SIDE_PX))
    start = stand_in(body.form, size_px, is_masked=mode_of(body.form).has_mask)
    return request_of(sized(body.form, size_px), services, start)


def _styling(services: Services, body: CountBody) -> Callable[[str], str]:
    """Return what the chosen styles make of a prompt; those that are gone meanwhile count nothing."""
    book = StyleBook.read(services.paths.styles_files)
    chosen = [name for name in body.styles if name in book.styles]
    apply = book.apply_to_negative if body.is_negative else book.apply_to_prompt
    return lambda text: apply(text, chosen)


def _result_reply(job: Job) -> dict[str, Any]:
    notices: list[str] = []
    error = None
    seconds = None
    retention = None
    images = job.images
    version = f"&v={job.removed}" if job.removed else ""  # an image that moves up is not the one the browser kept
    if job.status.is_final:
        try:
            finished = job.result()
        except FeatherweightError as failure:
            error = str(failure)
        else:
            images, notices = finished.images, list(finished.notices)
            state = job.progress()
            seconds = round(state.elapsed_s, 1)
            retention = finished.adapter_retention
            if finished.interrupted:
                notices.append(
                    page_text(
                        f"Interrupted at step {state.step} of {state.total_steps}. Finished images are kept; the last "
                        f"one may be unfinished."
                    )
                )
    return {
        "task": job.task_id,
        "status": job.status.value,
        "error": error,
        "notices": notices,
        "seconds": seconds,
        "images": [
            {
                "url": f"internal/image?id_task={job.task_id}&index={index}&n={len(images)}{version}",
                "infotext": image.infotext,
                "seed": str(image.seed),  # a browser would round it above 2^53
                "subseed": str(image.subseed),
                "role": image.role.value,
                "width": image.image.width,
                "height": image.image.height,
                "path": str(image.path) if image.path else None,
            }
            for index, image in enumerate(images)
        ],
        "retention": retention,
    }
