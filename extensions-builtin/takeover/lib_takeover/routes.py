"""Taking over a folder of the reference UI or of Forge, over HTTP; the page's button does the same."""

from pathlib import Path

from fastapi import APIRouter
from pydantic import Field

from lib_takeover.takeover import Report, Target, take_over
from modules.access.roles import Role, open_to
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Reply
from modules.api.schema.schemas import Tolerant
from modules.errors import InvalidValueError, OutputError
from modules.images.saving import check_folder
from modules.services import Services
from modules.system.file_names import given_path


class TakeoverBody(Tolerant):
    """A folder of the server's machine."""

    folder: str = Field(min_length=1, max_length=4096, examples=["/home/me/stable-diffusion-webui"])


class TakeoverReply(Reply):
    """Record of what was taken over from another program's folder, in sentences."""

    taken: list[str] = Field(examples=[["Lora: 12 files in /home/me/webui/models/Lora, read after the next start"]])
    kept: list[str] = Field(examples=[["defaults of your own: txt2img/Width/value"]])
    without: list[str] = Field(examples=[["extensions, which have to be ones for this program: some-extension"]])


def takeover_routes(services: Services) -> APIRouter:
    """The route below /featherweight/v1."""
    routes = APIRouter(prefix="/featherweight/v1", tags=["server"])

    @routes.post("/import-folder", **documented(errors={422: "/old is not a folder on this machine."}))
    @open_to(Role.ADMIN)
    def import_folder(body: TakeoverBody) -> TakeoverReply:
        """Take over models (by path), styles, settings, defaults and outputs of another program; nothing there changes,
        and nothing here is overwritten."""
        report = taken_over(services, body.folder)
        return TakeoverReply(taken=report.taken, kept=report.kept, without=report.without)

    return routes


def taken_over(services: Services, folder: str) -> Report:
    """Take over a folder into the running program. Raises `InvalidValueError`, also for a folder that this server may
    not read."""
    path = given_path(folder)
    history = services.history

    def check(place: Path) -> None:
        try:
            check_folder(place, services.history_folders)
        except OutputError as error:
            raise InvalidValueError(f"{place} may not be imported. {error}") from error

    def import_images(place: Path) -> None:
        check(place)
        history.importer.add(place)

    check(path)
    return take_over(path, Target(services.paths, services.settings, history.history, import_images))
