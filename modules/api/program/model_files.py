"""The model files on disk over HTTP: what lies where, what their source says of them, moving, deleting, doubles."""

import asyncio
from io import BytesIO

from fastapi import APIRouter
from pydantic import ConfigDict, Field

from modules.api.program.downloads import detected_item
from modules.api.program.tasks import task_reply
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import (
    AboutReply,
    KnownModelItem,
    ModelFileItem,
    ModelFilesReply,
    TaskItem,
    TrashedItem,
)
from modules.api.schema.schemas import Tolerant
from modules.downloads.about import About, about_file, read_preview_of, source_sha256_of
from modules.images.reading import open_image
from modules.jobs.tasks import Outcome, Task, TaskSpec
from modules.jobs.workers.host import refresh_files
from modules.model_cards.notes import write_notes
from modules.model_cards.previews import write_preview
from modules.model_shelf.shelf import Shelf, ShelfFile
from modules.model_shelf.trash import Trashed
from modules.services import Services

KEY = "Stable-diffusion/0/finetunes/some.safetensors"
UNKNOWN = f"There is no model file {KEY!r}; look again, it may have been moved."
UNTRASHED = "There is nothing '20260101-120000-abcdef' in the trash of models."
TAKEN = "some.safetensors is in finetunes already."
PREVIEW_SIDE_PX = 768
DOUBLES_TYPE = "doubles"


class FileBody(Tolerant):
    """POST /featherweight/v1/models/delete and models/about."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"key": KEY}})

    key: str = Field(max_length=4096)


class MoveBody(FileBody):
    """POST /featherweight/v1/models/move."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"key": KEY, "folder": "finetunes"}})

    folder: str = Field(default="", max_length=512)


class TrashBody(Tolerant):
    """POST /featherweight/v1/models/restore and models/forget."""

    model_config = ConfigDict(extra="ignore", json_schema_extra={"example": {"id": "20260101-120000-abcdef"}})

    id: str = Field(max_length=200)


def model_routes(services: Services) -> APIRouter:
    """The routes below /featherweight/v1/models."""
    routes = APIRouter(prefix="/featherweight/v1/models", tags=["models"])
    downloads = services.downloads
    assert downloads is not None, "this server was built without downloads"
    shelf = Shelf(
        services.paths,
        services.catalogue.cache,
        services.history.history.last_uses,
        lambda: refresh_files(services.engine),
    )

    @routes.get("")
    def files() -> ModelFilesReply:
        """The model files on disk, the largest first, and the trash. `used_at` is when the newest image of the history
        was made with it, null where there is none; `doubles` are keys of files with the same bytes; `missing` are parts
        that it needs and that are not here; `found` is what its header says; `saves_bytes` is what storing it in 8 bits
        would save."""
        return ModelFilesReply(
            files=[_item(one) for one in shelf.files()], trash=[_trashed(one) for one in shelf.trash.entries()]
        )

    @routes.post("/doubles")
    def doubles() -> TaskItem:
        """Take the hashes of files that have the size of another one, as a task: afterwards the list has the
        doubles."""
        return task_reply(services.queue.submit_spec(doubles_spec(shelf)))

    @routes.post("/move", **documented(errors={404: UNKNOWN, 422: TAKEN}))
    def move(body: MoveBody) -> ModelFileItem:
        """Move a file, with its notes and previews, into a folder below the folder of its kind."""
        return _item(shelf.move(body.key, body.folder))

    @routes.post("/delete", **documented(errors={404: UNKNOWN}))
    def delete(body: FileBody) -> TrashedItem:
        """Put a file into the trash of models, from where it can be restored."""
        return _trashed(shelf.delete(body.key))

    @routes.post("/restore", **documented({"file": "some.safetensors"}, {404: UNTRASHED}))
    def restore(body: TrashBody) -> dict[str, str]:
        """Put a file back where it was."""
        return {"file": shelf.restore(body.id).name}

    @routes.post("/forget", **documented(errors={404: UNTRASHED}))
    def forget(body: TrashBody) -> TrashedItem:
        """Delete a file of the trash for good."""
        return _trashed(shelf.trash.forget(body.id))

    @routes.post("/about", **documented(errors={404: UNKNOWN, 424: "Civitai does not know this file."}))
    async def about(body: FileBody) -> AboutReply:
        """Ask the source of a file (Civitai by its hash, the Hub by the repository that it came from) for trigger
        words, base model, description and preview, and put them onto its card. What the user wrote there stays."""

        def asked() -> AboutReply:
            one = shelf.file(body.key)
            sha256 = source_sha256_of(one.path) or shelf.sha256(body.key)
            came_from = shelf.noted(body.key, "source")
            found = about_file(sha256, came_from, downloads.transport)
            has_preview = bool(found.preview_url) and not any(
                one.path.with_name(one.path.stem + ending).exists() for ending in (".preview.png", ".png")
            )
            put_notes(one, found)  # first: they stay where the preview is refused
            if has_preview:
                write_preview(one.path, preview_png(read_preview_of(found, downloads.transport)))
            return AboutReply.of(found, has_preview=has_preview)

        return await asyncio.to_thread(asked)

    return routes


def put_notes(one: ShelfFile, about: About) -> None:
    """Write what a source says into the notes of a file, without replacing what they say."""
    said = {"activation text": ", ".join(about.triggers), "sd version": about.base, "description": about.description}
    write_notes(one.path, {key: text for key, text in said.items() if text}, keeps=True)


def preview_png(data: bytes) -> bytes:
    """An image of any format as a PNG of a card's size. Raises `InvalidValueError` for what is none."""
    image = open_image(data, "The preview of the source").convert("RGB")
    image.thumbnail((PREVIEW_SIDE_PX, PREVIEW_SIDE_PX))
    written = BytesIO()
    image.save(written, "PNG")
    return written.getvalue()


def doubles_spec(shelf: Shelf) -> TaskSpec:
    """Looking for doubles, as a task."""

    def work(task: Task) -> Outcome:
        count = shelf.take_hashes(lambda done, total: task.progress(done, total, f"{done / 1e9:.1f} GB read"))
        return {"hashed": count}

    return TaskSpec(DOUBLES_TYPE, "Looking for doubles among the models", work)


def _item(one: ShelfFile) -> ModelFileItem:
    missing = [KnownModelItem.of(part) for part in one.missing]
    return ModelFileItem.of(one, missing=missing, found=detected_item(one.found))


def _trashed(one: Trashed) -> TrashedItem:
    return TrashedItem(id=one.id, name=one.path.name, kind=one.kind, size_bytes=one.size_bytes, at=one.at)
