"""The page's own small routes: what the engine holds, token counts, finished images. Served from memory, no folder
is opened to the browser."""

import csv
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from modules.api.documentation import documented
from modules.api.replies import shown_as
from modules.api.reply_models import (
    EngineReply,
    OpenedFolderReply,
    ResultReply,
    SavedImageReply,
    TokenCountReply,
)
from modules.errors import FeatherweightError, InvalidValueError
from modules.images.encode import encode_image
from modules.images.saving import samples_folder, save_image
from modules.jobs.job import Job
from modules.processing.memory_estimate.proposals import propose
from modules.processing.memory_estimate.words import plan_reply
from modules.processing.pipeline.texts import text_options
from modules.processing.record.output import name_context
from modules.processing.record.result import GeneratedImage, ImageRole
from modules.processing.request import MAX_SIDE_PX, GenerationRequest
from modules.prompting.chunks import Tokenizer
from modules.prompting.counter import count_prompt
from modules.prompting.styles import StyleBook
from modules.prompting.tokens import ClipTokenizer
from modules.services import Services
from modules.ui.card_routes import card_routes
from modules.ui.form import FIELDS_OF, request_of
from modules.ui.page_settings import page_settings
from modules.ui.scales import hashing_line, pending_line, scales_facts, scales_line
from modules.ui.start_form import mode_of, sized, stand_in
from modules.ui.upload_routes import upload_routes
from modules.ui.uploads import Uploads

log = logging.getLogger(__name__)

LOG_COLUMNS = ("prompt", "seed", "width", "height", "sampler", "cfgs", "steps", "filename", "negative_prompt")
NO_JOB = "No job has the task id 'task(abc)'; it may have finished long ago."
IMAGE_REPLIES: dict[int | str, dict[str, Any]] = {
    **documented(errors={404: NO_JOB})["responses"],
    200: {"description": "The image as PNG, its infotext inside.", "content": {"image/png": {"example": "(PNG)"}}},
}
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class CountBody(BaseModel):
    """POST /internal/token-count."""

    text: str = Field(default="", examples=["a (red:1.2) circle"])
    steps: int = 20
    styles: list[str] = Field(default=[], description="styles to count too, where the settings say so")
    is_negative: bool = False


class ImageBody(BaseModel):
    """An image of a job, by its position in the result."""

    id_task: str = Field(examples=["task(abc)"])
    index: int = 0


class FormBody(BaseModel):
    """The values of a form by the names of its fields, as the page's script keeps them."""

    form: dict[str, Any]
    tab: str = Field(default="txt2img", examples=["img2img"])
    image_size: tuple[int, int] | None = Field(default=None, description="of the image that img2img starts from")


class _Counting:
    """The tokenizer, built when the first count is asked for."""

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return ClipTokenizer.standard()


def page_routes(services: Services) -> APIRouter:
    """The routes that the page's scripts call."""
    routes = APIRouter(prefix="/internal", tags=["page"])
    counting = _Counting()

    @routes.get("/engine", response_model=EngineReply)
    def engine() -> dict[str, Any]:
        """State of the engine, the loaded model on the scales, and the settings that the page's script follows."""
        status = services.engine.status
        model, wanted = status.model, services.settings.current.optimizations.fp8_storage
        return {
            "state": status.state.value,
            "message": status.message,
            "line": scales_line(model) if model else "",
            "pending": pending_line(model, wanted, services.queue.running is not None) if model else "",
            "facts": scales_facts(model) if model else "",
            "hashing": hashing_line(services.engine.hashing),
            "size": model.default_size_px if model else None,
            "switch_seconds": round(model.switch_seconds, 2) if model else None,
            "settings": page_settings(services.settings.current),
        }

    @routes.post("/token-count", response_model=TokenCountReply)
    def token_count(body: CountBody) -> dict[str, Any]:
        """Tokens of the longest text a prompt becomes, as "n/75"."""
        settings = services.settings.current
        count = count_prompt(
            counting.tokenizer,
            body.text,
            max(1, min(body.steps, 1000)),
            text_options(settings),
            apply_styles=_styling(services, body)
            if settings.prompt_editing.include_styles_into_token_counters
            else None,
            comments=settings.stable_diffusion.enable_prompt_comments,
            is_negative=body.is_negative,
        )
        return {"text": str(count), "count": count.count, "limit": count.limit}

    @routes.post("/memory-estimate", **documented({"line": "needs 3.2 GB of 4.0 GB"}))
    def memory_estimate(body: FormBody) -> dict[str, Any]:
        """What the job in a form will need, as POST /sdapi/v1/plan says it; the form counts as Generate would read
        it, also the fields that the page has not shown."""
        missing = [name for name in FIELDS_OF.get(body.tab, ()) if name not in body.form]
        if missing or body.tab not in FIELDS_OF:
            lacks = ", ".join(missing) or f"a tab (given: {body.tab!r})"
            raise InvalidValueError(f"The form lacks {lacks}; reload the page.")
        try:
            request = _planned(body, services)
        except (TypeError, ValueError, OverflowError) as error:
            raise InvalidValueError(f"A number in the form cannot be used: {error}.") from error
        found = services.estimator.plan(request)
        return plan_reply(found, propose(request, found, services.estimator.plan))

    @routes.get("/result", response_model=ResultReply, **documented(errors={404: NO_JOB}))
    def result(id_task: str) -> dict[str, Any]:
        """A job's images so far, and what there is to say about them."""
        job = services.queue.get(id_task)
        return _result_reply(job)

    @routes.get("/image", response_class=Response, responses=IMAGE_REPLIES)
    def image(id_task: str, index: int) -> Response:
        """One image as PNG with its infotext."""
        found = services.queue.get(id_task).image(index)
        name = found.path.stem if found.path else f"{found.seed}"
        headers = {
            "Cache-Control": "private, max-age=86400",
            "X-Content-Type-Options": "nosniff",
            "Content-Disposition": shown_as(f"{name}.png"),
        }
        return Response(encode_image(found.image, "png", found.infotext), media_type="image/png", headers=headers)

    @routes.post("/save-image", response_model=SavedImageReply, **documented(errors={404: NO_JOB}))
    def save_image(body: ImageBody) -> dict[str, Any]:
        """Save an image once more, into the folder of the Save button, with a line in log.csv.

        All of the job's images where the setting `save_selected_only` is off.
        """
        job = services.queue.get(body.id_task)
        chosen = [job.image(body.index)]
        if not services.settings.current.saving.save_selected_only:
            chosen = [image for image in job.known_images() if image.kind is ImageRole.SAMPLE]
        paths = [str(_save_chosen(services, job, image)) for image in chosen]
        return {"path": ", ".join(paths)}

    @routes.post("/open-folder", response_model=OpenedFolderReply, **documented(errors={404: NO_JOB}))
    def open_folder(body: ImageBody, request: Request) -> dict[str, Any]:
        """Open the folder of an image in the file manager of this machine, if the page runs on it."""
        folder = _folder_of(services, services.queue.get(body.id_task).image(body.index).path)
        is_local = request.client is not None and request.client.host in LOOPBACK
        return {"folder": str(folder), "opened": is_local and _open(folder)}

    routes.include_router(card_routes(services))
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


def _folder_of(services: Services, path: Path | None) -> Path:
    """The folder to open for an image: its own, or as a setting may say the root of the output folder."""
    settings = services.settings.current
    root = samples_folder(settings, services.paths.data_dir)
    return root if path is None or settings.gallery.open_dir_button_choice == "Output Root" else path.parent


def _styling(services: Services, body: CountBody) -> Callable[[str], str]:
    """What the chosen styles make of a prompt; those that are gone meanwhile count nothing."""
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
                    f"Interrupted at step {state.step} of {state.total_steps}. What was made until then is kept; the "
                    "last image may be unfinished."
                )
    return {
        "task": job.task_id,
        "status": job.status.value,
        "error": error,
        "notices": notices,
        "seconds": seconds,
        "images": [
            {
                "url": f"internal/image?id_task={job.task_id}&index={index}&n={len(images)}",
                "infotext": image.infotext,
                "seed": image.seed,
                "subseed": image.subseed,
                "kind": image.kind.value,
                "width": image.image.width,
                "height": image.image.height,
                "path": str(image.path) if image.path else None,
            }
            for index, image in enumerate(images)
        ],
        "retention": retention,
    }


def _save_chosen(services: Services, job: Job, image: GeneratedImage) -> Path:
    settings = services.settings.current
    folder = services.paths.data_dir / settings.saving_paths.outdir_save
    request = job.request
    context = replace(name_context(request, "", "", (image.seed,), datetime.now().astimezone()), seed=image.seed)
    in_subfolders = settings.saving_folders.use_save_to_dirs_for_ui
    path = save_image(image.image, folder, settings.changed(save_to_dirs=in_subfolders), context, image.infotext)
    if settings.saving.save_write_log_csv:
        _log_saved(folder / "log.csv", job, image, path)
    return path


def _log_saved(file: Path, job: Job, image: GeneratedImage, path: Path) -> None:
    request = job.request
    is_new = not file.exists()
    with file.open("a", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        if is_new:
            writer.writerow(LOG_COLUMNS)
        writer.writerow(
            [
                *(request.prompt, image.seed, *request.size_px, request.sampler, request.cfg_scale),
                *(request.steps, path.name, request.negative_prompt),
            ]
        )


def _open(folder: Path) -> bool:
    command = {"darwin": "open", "win32": "explorer"}.get(sys.platform, "xdg-open")
    has_screen = command != "xdg-open" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    if not has_screen or shutil.which(command) is None:
        return False
    try:
        subprocess.Popen([command, str(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    except OSError as error:
        log.info("The folder %s could not be opened: %s", folder, error)
        return False
    return True
