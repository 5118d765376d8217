"""The history over HTTP: searching, thumbnails, stars, tags, the trash, imports, and how far two images are apart."""

from io import BytesIO

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse
from pydantic import Field

from modules.access import is_loopback
from modules.api.access.auth import identity_of
from modules.api.history.history_access import MEDIA_TYPES, NO_IMAGE, HistoryAccess, item
from modules.api.schema.documentation import documented, documented_image
from modules.api.schema.reply_models import DifferenceReply, HistoryItem, HistoryPage, ImportItem, OpenedFolderReply
from modules.api.schema.schemas import Tolerant
from modules.errors import InvalidValueError, OutputError
from modules.history.difference import Difference, difference
from modules.history.store import PAGE
from modules.history.thumbnails import media_type_of
from modules.images.reading import read_image
from modules.images.saving import check_folder
from modules.services import Services
from modules.system.file_names import given_path
from modules.system.show_folder import show_folder

MAX_CHOSEN = 1000
CACHED = {"Cache-Control": "private, max-age=86400", "X-Content-Type-Options": "nosniff"}


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


class FolderBody(Tolerant):
    """A folder of the server's machine."""

    folder: str = Field(min_length=1, max_length=4096, examples=["/home/me/old-images"])


def history_routes(services: Services) -> APIRouter:
    """GET /featherweight/v1/history and what belongs to it."""
    routes = APIRouter(prefix="/featherweight/v1/history", tags=["history"])
    history, thumbnails, importer = services.history.history, services.history.thumbnails, services.history.importer
    access = HistoryAccess(history)
    allowed = services.history_folders

    def compared(first: int, second: int, request: Request) -> Difference:
        paths = [access.file_of(access.entry(entry_id, request)) for entry_id in (first, second)]
        return difference(*(read_image(path, path.name) for path in paths))

    @routes.get("", **documented(errors={422: "'yesterday' is no date; write 2026, 2026-11 or 2026-11-22."}))
    def search(
        request: Request,
        q: str = "",
        before: int | None = None,
        limit: int = PAGE,
        user: str | None = None,
        board: int | None = None,
    ) -> HistoryPage:
        """The newest images that a search finds: words, "phrases", `steps:>20 model:foo lora:bar fp8:on
        date:2026-11 tag:x is:starred`, each with a minus sign in front for the opposite. `before` is the last number
        of the page before. `user`: whose images, `*` for everybody's that one may see; without it one's own. `board`:
        those on a board, 0 for those on none."""
        limit = max(1, min(limit, 500))
        found = history.search(q, before, limit + 1 if limit < 500 else limit, access.whose(request, user), board)
        more = len(found) > limit
        return HistoryPage(images=[item(entry) for entry in found[:limit]], more=more)

    @routes.get("/count", **documented(120))
    def count(request: Request, q: str = "", user: str | None = None, board: int | None = None) -> int:
        """How many images a search finds."""
        return history.count(q, access.whose(request, user), board)

    @routes.get("/users", **documented(["", "anna"]))
    def users(request: Request) -> list[str]:
        """Whose images one may see; "" stands for images of nobody's job."""
        identity = identity_of(request)
        return [user for user in history.users() if identity.may_see(user)]

    @routes.get("/values", **documented(["featherweight-scenes", "other"]))
    def values(key: str, request: Request, user: str | None = None) -> list[str]:
        """The values that images have for a key of the search, such as model or tag."""
        return history.values_of(key, user=access.whose(request, user))

    @routes.get("/of-job")
    def of_job(task_id: str, request: Request) -> list[HistoryItem]:
        """The images of a job, in the order in which they were made."""
        identity = identity_of(request)
        return [item(entry) for entry in history.of_task(task_id) if identity.may_see(entry.user)]

    @routes.get("/one", **documented(errors={404: NO_IMAGE}))
    def one(id: int, request: Request) -> HistoryItem:
        """All that is known of an image."""
        return item(access.entry(id, request))

    @routes.get("/thumbnail", response_class=Response, **documented_image("jpeg", errors={404: NO_IMAGE}))
    def thumbnail(id: int, request: Request) -> Response:
        """A small JPEG of an image; a WebP of one that is transparent."""
        entry = access.entry(id, request)
        data = thumbnails.kept(entry.fingerprint)
        if data is None:
            data = thumbnails.of(entry.fingerprint, access.file_of(entry))
        return Response(data, media_type=media_type_of(data), headers=CACHED)

    @routes.get("/image", response_class=FileResponse, **documented_image("png", errors={404: NO_IMAGE}))
    def image(id: int, request: Request) -> FileResponse:
        """The file of an image."""
        path = access.file_of(access.entry(id, request))
        return FileResponse(path, media_type=f"image/{MEDIA_TYPES[path.suffix.lower()]}", headers=CACHED)

    @routes.post("/star", **documented(errors={404: NO_IMAGE}))
    def star(body: StarBody, request: Request) -> list[HistoryItem]:
        """Mark images, or take the mark away."""
        chosen = [access.own_entry(entry_id, request) for entry_id in body.ids]
        return [item(history.star(entry.id, body.starred)) for entry in chosen]

    @routes.post("/tags", **documented(errors={404: NO_IMAGE}))
    def tag(body: TagBody, request: Request) -> list[HistoryItem]:
        """Give images tags instead of those they have."""
        chosen = [access.own_entry(entry_id, request) for entry_id in body.ids]
        return [item(history.tag(entry.id, body.tags)) for entry in chosen]

    @routes.post("/delete", **documented(errors={404: NO_IMAGE}))
    def delete(body: Chosen, request: Request) -> list[HistoryItem]:
        """Move images to the folder outputs/trash, and out of the history; `restore` brings them back."""
        chosen = [access.own_entry(entry_id, request) for entry_id in body.ids]
        return [item(history.delete(entry.id)) for entry in chosen]

    @routes.post("/restore", **documented(errors={404: NO_IMAGE}))
    def restore(body: Chosen, request: Request) -> list[HistoryItem]:
        """Bring deleted images back to where they were."""
        chosen = [access.own_entry(entry_id, request) for entry_id in body.ids]
        return [item(history.restore(entry.id)) for entry in chosen]

    @routes.post("/show", **documented(errors={404: NO_IMAGE}))
    def show(body: OneBody, request: Request) -> OpenedFolderReply:
        """Open the folder of an image in the file manager of this machine, if the page runs on it."""
        folder = access.entry(body.id, request).path.parent
        is_local = request.client is not None and is_loopback(request.client.host)
        return OpenedFolderReply(folder=str(folder), opened=is_local and show_folder(folder))

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
        return [ImportItem(**found) for found in history.imports.all()]

    @routes.post("/import", **documented(errors={422: "/old is not a folder on this machine."}))
    def import_folder(body: FolderBody) -> list[ImportItem]:
        """Take the images of a folder and all below into the history, in the background."""
        folder = given_path(body.folder)
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
