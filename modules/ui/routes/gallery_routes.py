"""Routes of the buttons below an image: save, zip, delete, hires fix of this image, open its folder.

Only images of jobs that the queue remembers can be named, by task id and position; no path comes from outside.
"""

import csv
import io
import logging
import os
import tempfile
import zipfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field
from starlette.background import BackgroundTask

from modules.access.roles import Identity
from modules.api.access.auth import identity_of
from modules.api.generation.replies import attached_as
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import DeletedImageReply, HiresImageReply, OpenedFolderReply, SavedImageReply
from modules.errors import BusyError, InvalidValueError
from modules.images.encode import encode_image
from modules.images.filenames import apply_pattern
from modules.images.infotext import parse_infotext
from modules.images.infotext_settings import override_settings_from
from modules.images.naming import NameContext
from modules.images.patterns import Source
from modules.images.saving import samples_folder, save_image
from modules.jobs.job import Job
from modules.jobs.ownership import own_folders
from modules.processing.record.output import name_context
from modules.processing.request.pasting import pasted_values
from modules.processing.request.request import GenerationRequest, tab_of
from modules.processing.request.result import GeneratedImage, ImageRole
from modules.processing.request.source_images import FromImage
from modules.services import Services
from modules.system.atomic_files import output_error, write_atomic
from modules.system.file_names import sanitize_name
from modules.system.show_folder import show_folder
from modules.ui.form.form import hires_of

log = logging.getLogger(__name__)

LOG_COLUMNS = (
    *("prompt", "seed", "width", "height", "sampler", "cfgs", "steps", "filename", "negative_prompt"),
    *("sd_model_name", "sd_model_hash"),
)
NO_JOB = "No job has the task id 'task(abc)'; it may have finished long ago."
RUNS = "The job 'task(abc)' still runs; wait until it is done, or interrupt it."
DEFAULT_ZIP_PATTERN = "[datetime]_[model_name]_[seed]-[seed_last]"
LOOPBACK = ("127.0.0.1", "::1", "localhost")


class ImageBody(BaseModel):
    """An image of a job, by its position in the result."""

    id_task: str = Field(examples=["task(abc)"])
    index: int = 0


class HiresBody(ImageBody):
    """An image of txt2img, and the values of the form by the names of its fields."""

    form: dict[str, Any]


def gallery_routes(services: Services) -> APIRouter:
    """The routes, without a prefix."""
    routes = APIRouter()

    @routes.post("/save-image", response_model=SavedImageReply, **documented(errors={404: NO_JOB}))
    def save(body: ImageBody, request: Request) -> dict[str, Any]:
        """Save an image once more, into the folder of the Save button, with a line in log.csv.

        All of the job's images where the setting `save_selected_only` is off.
        """
        job = services.queue.known.get(body.id_task, identity_of(request))
        chosen = [job.image(body.index)]
        if not services.settings.current.saving.save_selected_only:
            chosen = [image for image in job.known_images() if image.role is ImageRole.SAMPLE]
        paths = [str(_save_chosen(services, job, image, identity_of(request))) for image in chosen]
        return {"path": ", ".join(paths)}

    @routes.get("/zip-images", response_class=FileResponse, responses=documented(errors={404: NO_JOB})["responses"])
    def zip_images(id_task: str, request: Request) -> FileResponse:
        """All images of a job in one archive: files as they were saved, the others as PNG."""
        job = services.queue.known.get(id_task, identity_of(request))
        images = job.known_images()
        if not images:
            raise InvalidValueError("The job has no images yet; wait until one is done.")
        archive = _archive(images, services.paths.cache_dir)
        name = attached_as(_archive_name(services, job, images))
        headers = {"Content-Disposition": name, "Cache-Control": "no-store"}
        done = BackgroundTask(archive.unlink, missing_ok=True)
        return FileResponse(archive, media_type="application/zip", headers=headers, background=done)

    @routes.post("/delete-image", response_model=DeletedImageReply, **documented(errors={404: NO_JOB, 503: RUNS}))
    def delete(body: ImageBody, request: Request) -> dict[str, Any]:
        """Take an image out of its job and move its file into the folder `trash` of the outputs."""
        job = services.queue.known.get(body.id_task, identity_of(request))
        image = job.image(body.index)
        if not job.status.is_final:
            raise BusyError(f"The job {body.id_task!r} still runs; wait until it is done, or interrupt it.")
        moved = services.history.history.delete_file(image.path) if image.path else None
        services.queue.images.remove(job, image)
        return {"trash": str(moved) if moved else None}

    @routes.post("/hires-image", response_model=HiresImageReply, **documented(errors={404: NO_JOB}))
    def hires_image(body: HiresBody, request: Request) -> dict[str, Any]:
        """Make an image of txt2img again, from its own parameters and seed, with the form's hires fix."""
        job = services.queue.known.get(body.id_task, identity_of(request))
        image = job.image(body.index)
        try:
            wanted = _with_hires(services, job.request, image, body.form)
        except (TypeError, ValueError, OverflowError, KeyError) as error:
            raise InvalidValueError(f"The fields of hires fix cannot be used: {error}. Reload the page.") from error
        return {"task": services.queue.submit(wanted).task_id}

    @routes.post("/open-folder", response_model=OpenedFolderReply, **documented(errors={404: NO_JOB}))
    def open_folder(body: ImageBody, request: Request) -> dict[str, Any]:
        """Open the folder of an image in the file manager of this machine, if the page runs on it."""
        job = services.queue.known.get(body.id_task, identity_of(request))
        folder = folder_of(services, job.image(body.index).path, tab_of(job.request))
        is_local = request.client is not None and request.client.host in LOOPBACK
        return {"folder": str(folder), "opened": is_local and show_folder(folder)}

    return routes


# -- saving ------------------------------------------------------------------------------------------------------------


def _context_of(job: Job, image: GeneratedImage) -> NameContext:
    info = job.result().info if job.has_result else None
    name, short_hash = (info.checkpoint_name, info.checkpoint_hash) if info else ("", "")
    seeds = info.seeds if info else (image.seed,)
    context = name_context(job.request, name, short_hash, seeds, datetime.now().astimezone())
    return replace(context, seed=image.seed)


def _save_chosen(services: Services, job: Job, image: GeneratedImage, identity: Identity) -> Path:
    settings = own_folders(services.settings.current, identity)
    folder = services.paths.data_dir / settings.saving_paths.outdir_save
    context = _context_of(job, image)
    in_subfolders = settings.saving_folders.use_save_to_dirs_for_ui
    path = save_image(image.image, folder, settings.changed(save_to_dirs=in_subfolders), context, image.infotext)
    if settings.saving.save_write_log_csv:
        row = _log_row(job.request, context, image, path.relative_to(folder).as_posix())
        try:
            log_saved(folder / "log.csv", row)
        except OSError as error:
            raise output_error("log.csv", folder, error) from error
    return path


def _log_row(
    request: GenerationRequest, context: NameContext, image: GeneratedImage, filename: str
) -> dict[str, object]:
    """Return what log.csv says of an image; prompts and steps are its own, where its infotext can be read."""
    own = pasted_values(parse_infotext(image.infotext)) if image.infotext else {}
    return {
        "prompt": own.get("prompt", request.prompt),
        "seed": image.seed,
        "width": image.image.width,
        "height": image.image.height,
        "sampler": own.get("sampler", request.sampler),
        "cfgs": own.get("cfg_scale", request.cfg_scale),
        "steps": own.get("steps", request.steps),
        "filename": filename,
        "negative_prompt": own.get("negative_prompt", request.negative_prompt),
        "sd_model_name": context.model_name,
        "sd_model_hash": context.model_hash,
    }


def log_saved(file: Path, row: dict[str, object]) -> None:
    """Append a row. Columns that an older file lacks are added to it, columns that are not ours stay empty.

    Raises OSError.
    """
    rows: list[list[str]] = []
    if file.exists():
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.reader(stream))
    header = [*rows[0]] if rows else list(LOG_COLUMNS)
    missing = [column for column in LOG_COLUMNS if column not in header]
    header += missing
    line = [row.get(column, "") for column in header]
    if rows and not missing:
        with file.open("a", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerow(line)
        return
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows([*old, *[""] * (len(header) - len(old))] for old in rows[1:] if old)
    writer.writerow(line)
    write_atomic(file, text.getvalue().encode())


# -- archives ----------------------------------------------------------------------------------------------------------


def _archive(images: tuple[GeneratedImage, ...], folder: Path) -> Path:
    """A new archive in `folder`, uncompressed, because images are compressed already."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(suffix=".zip", dir=folder)
    path = Path(name)
    taken: set[str] = set()
    try:
        with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for number, image in enumerate(images):
                stem = f"{number:05}-{'grid' if image.role is ImageRole.GRID else image.seed}"
                if image.path is not None and image.path.is_file():
                    own = image.path.name
                    archive.write(image.path, own if own not in taken else f"{stem}{image.path.suffix}")
                    taken.add(own)
                else:
                    archive.writestr(f"{stem}.png", encode_image(image.image, "png", image.infotext))
    except OSError as error:
        path.unlink(missing_ok=True)
        raise output_error("The archive", folder, error) from error
    return path


def _archive_name(services: Services, job: Job, images: tuple[GeneratedImage, ...]) -> str:
    settings = services.settings.current
    pattern = settings.saving.grid_zip_filename_pattern or DEFAULT_ZIP_PATTERN
    first = next((image for image in images if image.role is ImageRole.SAMPLE), images[0])
    source = Source(_context_of(job, first), first.image, settings.saving_folders.directories_max_prompt_words)
    return f"{sanitize_name(apply_pattern(pattern, source)) or 'images'}.zip"


# -- hires fix of one image --------------------------------------------------------------------------------------------


def _with_hires(
    services: Services, made: GenerationRequest, image: GeneratedImage, form: dict[str, Any]
) -> GenerationRequest:
    """The request that made an image, for this image alone: what its infotext says goes before what the job said, since
    scripts may have changed it. The first pass is the image again, because seed and parameters are its own."""
    if isinstance(made.start, FromImage):
        raise InvalidValueError(
            "Hires fix enlarges images of txt2img. Send this image to img2img and choose a larger size there."
        )
    parsed = parse_infotext(image.infotext)
    found = services.catalogue.find(str(parsed.get("Model hash") or ""))
    settings = made.settings.with_changes(override_settings_from(parsed, made.settings))
    values = {
        **pasted_values(parsed),
        "seed": image.seed,
        "subseed": image.subseed,
        "width": made.width if image.role is ImageRole.GRID else image.image.width,
        "height": made.height if image.role is ImageRole.GRID else image.image.height,
    }
    hires = hires_of(form, made.styles, services)
    if made.hires is not None:  # the image has the size of the second pass, the infotext that of the first
        values |= {"width": made.width, "height": made.height}
    return replace(
        made,
        **values,
        batch_size=1,
        batch_count=1,
        hires=hires,
        checkpoint=found.title if found is not None else made.checkpoint,
        settings=settings,
        script=None,
        script_args=(),
    )


# -- folders -----------------------------------------------------------------------------------------------------------


def folder_of(services: Services, path: Path | None, tab: str = "txt2img") -> Path:
    """The folder to open for an image: its own, or as a setting may say the root of the tab's output folder."""
    settings = services.settings.current
    root = samples_folder(settings, services.paths.data_dir, tab)
    return root if path is None or settings.gallery.open_dir_button_choice == "Output Root" else path.parent
