"""The history over HTTP: searching, thumbnails, stars, tags, the trash, imports, and an image in another precision."""

import asyncio
from dataclasses import replace
from io import BytesIO
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field

from modules.access import is_loopback
from modules.access.roles import NotAllowedError, Role, Sees
from modules.api.auth import identity_of
from modules.api.documentation import documented, documented_image
from modules.api.reply_models import (
    DifferenceReply,
    HistoryItem,
    HistoryPage,
    ImportItem,
    OpenedFolderReply,
    TaskIdReply,
)
from modules.api.requests import request_from
from modules.api.schemas import Tolerant, Txt2ImgBody
from modules.errors import FeatherweightError, InvalidValueError, OutputError, UnknownNameError
from modules.history.difference import Difference, difference
from modules.history.store import PAGE, HistoryEntry
from modules.history.thumbnails import media_type_of
from modules.images.reading import read_image
from modules.images.saving import check_folder
from modules.jobs.ownership import claimed
from modules.jobs.repeats import UNREADABLE
from modules.memory.formats.catalog import chosen_formats
from modules.processing.request.request import GenerationRequest, request_from_json
from modules.services import Services
from modules.show_folder import show_folder

MAX_CHOSEN = 1000
EVERYBODY = "*"
NOT_THERE = "The history has no image {}; it may have been deleted."
NO_IMAGE = "The history has no image 1767225600000000; it may have been deleted."
MEDIA_TYPES = {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".avif": "avif"}
PRECISIONS = (*chosen_formats(), "fp16")
CACHED = {"Cache-Control": "private, max-age=86400", "X-Content-Type-Options": "nosniff"}
GONE = "{}: the file is no longer at {}. Import its new folder in the History tab to have it found again."


class Chosen(Tolerant):
    """Images by their numbers."""

    ids: list[int] = Field(max_length=MAX_CHOSEN, examples=[[1767225600000000]])


class StarBody(Chosen):
    """Mark or unmark."""

    starred: bool = True


class TagBody(Chosen):
    """The tags that the images have from now on."""

    tags: list[str] = Field(max_length=100, examples=[["best of", "night"]])


class OneBody(Tolerant):
    """One image."""

    id: int = Field(examples=[1767225600000000])


class AgainBody(OneBody):
    """`precision`: fp16 for full precision, or a storage format."""

    precision: str = Field(examples=["fp8_e4m3fn_row"])


class FolderBody(Tolerant):
    """A folder of the server's machine."""

    folder: str = Field(min_length=1, max_length=4096, examples=["/home/me/old-images"])


def history_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/history and what belongs to it."""
    routes = APIRouter(prefix="/featherweight/v1/history", tags=["history"])
    history, thumbnails, importer = services.history.history, services.history.thumbnails, services.history.importer
    allowed = services.history_folders

    def file_of(entry: HistoryEntry) -> Path:
        """Where the image is. Raises `UnknownNameError` where it is not found."""
        is_there = entry.path.is_file() and entry.path.suffix.lower() in MEDIA_TYPES
        if is_there == entry.is_missing:
            history.missing(entry.id, not is_there)
        if not is_there:
            raise UnknownNameError(GONE.format(entry.path.name, entry.path.parent))
        return entry.path

    def whose(request: Request, wanted: str | None = None) -> str | None:
        """Whose images are shown; None: everybody's. By default one's own, where there are users; to viewers, who
        have none, all that they see."""
        identity = identity_of(request)
        if wanted is None:
            sees_all = identity.sees is Sees.ALL and not identity.role.includes(Role.USER)
            return None if sees_all or not identity.name else identity.name
        if wanted == EVERYBODY:
            return None if identity.is_admin or identity.sees is Sees.ALL else identity.name
        if not identity.may_see(wanted):
            raise NotAllowedError(f"The images of {wanted!r} are not shown to you.")
        return wanted

    def entry_of(entry_id: int, request: Request) -> HistoryEntry:
        entry = history.entry(entry_id)
        if not identity_of(request).may_see(entry.user):
            raise UnknownNameError(NOT_THERE.format(entry_id))
        return entry

    def own_entry_of(entry_id: int, request: Request) -> HistoryEntry:
        """One that this user may change."""
        entry = entry_of(entry_id, request)
        if not identity_of(request).may_change(entry.user):
            raise NotAllowedError(f"{entry.path.name} is another user's image; only they and admins may change it.")
        return entry

    def compared(first: int, second: int, request: Request) -> Difference:
        paths = [file_of(entry_of(entry_id, request)) for entry_id in (first, second)]
        return difference(*(read_image(path, path.name) for path in paths))

    @routes.get("", **documented(errors={422: "'yesterday' is no date; write 2026, 2026-11 or 2026-11-22."}))
    def search(
        request: Request, q: str = "", before: int | None = None, limit: int = PAGE, user: str | None = None
    ) -> HistoryPage:
        """The newest images that a search finds: words, "phrases", `steps:>20 model:foo lora:bar fp8:on
        date:2026-11 tag:x is:starred`, each with a minus sign in front for the opposite. `before` is the last number
        of the page before. `user`: whose images, `*` for everybody's that one may see; without it one's own."""
        limit = max(1, min(limit, 500))
        found = history.search(q, before, limit + 1 if limit < 500 else limit, whose(request, user))
        more = len(found) > limit
        return HistoryPage(images=[item(entry) for entry in found[:limit]], more=more)

    @routes.get("/count", **documented(120))
    def count(request: Request, q: str = "", user: str | None = None) -> int:
        """How many images a search finds."""
        return history.count(q, whose(request, user))

    @routes.get("/users", **documented(["", "anna"]))
    def users(request: Request) -> list[str]:
        """Whose images one may see; "" stands for images of nobody's job."""
        identity = identity_of(request)
        return [user for user in history.users() if identity.may_see(user)]

    @routes.get("/values", **documented(["featherweight-scenes", "other"]))
    def values(key: str, request: Request, user: str | None = None) -> list[str]:
        """The values that images have for a key of the search, such as model or tag."""
        return history.values_of(key, user=whose(request, user))

    @routes.get("/of-job")
    def of_job(task_id: str, request: Request) -> list[HistoryItem]:
        """The images of a job, in the order in which they were made."""
        identity = identity_of(request)
        return [item(entry) for entry in history.of_task(task_id) if identity.may_see(entry.user)]

    @routes.get("/one", **documented(errors={404: NO_IMAGE}))
    def one(id: int, request: Request) -> HistoryItem:
        """All that is known of an image."""
        return item(entry_of(id, request))

    @routes.get("/thumbnail", response_class=Response, **documented_image("jpeg", errors={404: NO_IMAGE}))
    def thumbnail(id: int, request: Request) -> Response:
        """A small JPEG of an image; a WebP of one that is transparent."""
        entry = entry_of(id, request)
        data = thumbnails.kept(entry.fingerprint)
        if data is None:
            data = thumbnails.of(entry.fingerprint, file_of(entry))
        return Response(data, media_type=media_type_of(data), headers=CACHED)

    @routes.get("/image", response_class=FileResponse, **documented_image("png", errors={404: NO_IMAGE}))
    def image(id: int, request: Request) -> FileResponse:
        """The file of an image."""
        path = file_of(entry_of(id, request))
        return FileResponse(path, media_type=f"image/{MEDIA_TYPES[path.suffix.lower()]}", headers=CACHED)

    @routes.post("/star", **documented(errors={404: NO_IMAGE}))
    def star(body: StarBody, request: Request) -> list[HistoryItem]:
        """Mark images, or take the mark away."""
        chosen = [own_entry_of(entry_id, request) for entry_id in body.ids]
        return [item(history.star(entry.id, body.starred)) for entry in chosen]

    @routes.post("/tags", **documented(errors={404: NO_IMAGE}))
    def tag(body: TagBody, request: Request) -> list[HistoryItem]:
        """Give images tags instead of those they have."""
        chosen = [own_entry_of(entry_id, request) for entry_id in body.ids]
        return [item(history.tag(entry.id, body.tags)) for entry in chosen]

    @routes.post("/delete", **documented(errors={404: NO_IMAGE}))
    def delete(body: Chosen, request: Request) -> list[HistoryItem]:
        """Move images to the folder outputs/trash, and out of the history; `restore` brings them back."""
        chosen = [own_entry_of(entry_id, request) for entry_id in body.ids]
        return [item(history.delete(entry.id)) for entry in chosen]

    @routes.post("/restore", **documented(errors={404: NO_IMAGE}))
    def restore(body: Chosen, request: Request) -> list[HistoryItem]:
        """Bring deleted images back to where they were."""
        chosen = [own_entry_of(entry_id, request) for entry_id in body.ids]
        return [item(history.restore(entry.id)) for entry in chosen]

    @routes.post("/show", **documented(errors={404: NO_IMAGE}))
    def show(body: OneBody, request: Request) -> OpenedFolderReply:
        """Open the folder of an image in the file manager of this machine, if the page runs on it."""
        folder = entry_of(body.id, request).path.parent
        is_local = request.client is not None and is_loopback(request.client.host)
        return OpenedFolderReply(folder=str(folder), opened=is_local and show_folder(folder))

    @routes.post("/again", **documented(errors={404: NO_IMAGE, 422: "There is no precision 'fp9'."}))
    async def again(body: AgainBody, request: Request) -> TaskIdReply:
        """Make an image once more, with its seed and in another precision. Answers with the task id; compare the two
        with `difference` when it is done."""
        entry = entry_of(body.id, request)
        wanted = await asyncio.to_thread(in_precision, entry, body.precision, services)
        wanted = claimed(wanted, identity_of(request), services.settings.current)
        return TaskIdReply(task_id=(await asyncio.to_thread(services.queue.submit, wanted)).task_id)

    @routes.get("/difference", response_class=Response, **documented_image("png", errors={404: NO_IMAGE}))
    def difference_image(first: int, second: int, request: Request) -> Response:
        """The absolute difference of two images, eight times amplified."""
        data = BytesIO()
        compared(first, second, request).image.save(data, "PNG")
        return Response(data.getvalue(), media_type="image/png", headers=CACHED)

    @routes.get("/compare", **documented(errors={404: NO_IMAGE}))
    def compare(first: int, second: int, request: Request) -> DifferenceReply:
        """How far two images are apart."""
        found = compared(first, second, request)
        return DifferenceReply(
            psnr_db=found.psnr_db, largest_level=found.largest_level, mean_level=round(found.mean_level, 4)
        )

    @routes.get("/imports")
    def imports() -> list[ImportItem]:
        """Folders that are or were imported: state and counts of files."""
        return [ImportItem(**found) for found in history.imports()]

    @routes.post("/import", **documented(errors={422: "/old is not a folder on this machine."}))
    def import_folder(body: FolderBody) -> list[ImportItem]:
        """Take the images of a folder and all below into the history, in the background."""
        folder = Path(body.folder).expanduser()
        try:
            check_folder(folder, allowed)
        except OutputError as error:
            raise InvalidValueError(f"{folder} may not be imported. {error}") from error
        importer.add(folder)
        return imports()

    @routes.post("/stop-import")
    def stop_import() -> list[ImportItem]:
        """Stop importing; what was taken in stays."""
        importer.stop()
        return imports()

    return routes


def item(entry: HistoryEntry) -> HistoryItem:
    """An entry as the API shows it."""
    return HistoryItem(
        id=entry.id,
        created_at=entry.created_at,
        path=str(entry.path),
        name=entry.path.name,
        width=entry.width,
        height=entry.height,
        size_bytes=entry.size_bytes,
        infotext=entry.infotext,
        task_id=entry.task_id,
        role=entry.role,
        user=entry.user,
        starred=entry.is_starred,
        tags=list(entry.tags),
        missing=entry.is_missing,
        trashed=entry.trashed_from is not None,
    )


def in_precision(entry: HistoryEntry, precision: str, services: Services) -> GenerationRequest:
    """The request that makes an image once more, in another precision: from the record of its job while there is one,
    else from its infotext. Raises `InvalidValueError` where neither says enough."""
    if precision not in PRECISIONS:
        raise UnknownNameError.of("precision", precision, PRECISIONS)
    changes: dict[str, object] = {"fp8_storage": "Disable"}
    if precision != "fp16":
        changes = {"fp8_storage": "Enable", "fp8_format": precision}
    recorded = _recorded(entry, services)
    if recorded is not None:
        overrides = {**recorded.override_settings, **changes}
        return replace(recorded, settings=recorded.settings.with_changes(changes), override_settings=overrides)
    if not entry.infotext:
        raise InvalidValueError(f"{entry.path.name} does not say how it was made, so it cannot be made again.")
    if "Denoising strength:" in entry.infotext and "Hires up" not in entry.infotext:
        raise InvalidValueError(
            f"{entry.path.name} was made from another image, which is no longer recorded. Send it to img2img instead."
        )
    return request_from(Txt2ImgBody(infotext=entry.infotext, override_settings=changes, save_images=True), services)


def _recorded(entry: HistoryEntry, services: Services) -> GenerationRequest | None:
    """The request of this one image, from the record of its job; None where that is missing."""
    record = services.queue.store.get(entry.task_id) if entry.task_id else None
    if record is None:
        return None
    images = (record.outcome or {}).get("images", [])
    made = next((image for image in images if isinstance(image, dict) and image.get("path") == str(entry.path)), None)
    if made is None or made.get("role", made.get("kind")) != "sample":  # "kind": older records
        return None
    try:
        request = request_from_json(record.request, services.queue.store.inputs.image_of)
        if request.script is not None:
            return None
        seed, subseed = int(made["seed"]), int(made["subseed"])
        return replace(request, batch_size=1, batch_count=1, save_images=True, seed=seed, subseed=subseed)
    except (*UNREADABLE, FeatherweightError):
        return None
