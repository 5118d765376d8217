"""Files that user extensions bring for the page: their scripts, loaded by address after the page's own, and
what these ask for as `file=extensions/NAME/...`. Nothing outside of an extension's folder is given."""

import re
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from modules.api.access.auth import user_of
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import Nothing
from modules.errors import InvalidValueError, UnknownNameError
from modules.scripts.extension import MAX_FAULTS, Fault
from modules.scripts.library import ScriptLibrary
from modules.services import Services
from modules.system.file_names import lies_in, without_controls

HIDDEN = (".py", ".pyc", ".env", ".ini", ".db", ".sqlite", ".pem", ".key")
"""Files that no page needs, and that may hold secrets."""
FOLDER = "extensions"
NOTES = "tmp"
WITH_FRAMES = ("javascript/*js", "scripts/*.py", "scripts/*/*.py", "*.py")
MAX_FILES_READ, MAX_BYTES_READ, MAX_SITES = 100, 1 << 20, 20
_SITE = re.compile(r"https://[A-Za-z0-9](?:[A-Za-z0-9-]*\.)+[A-Za-z]{2,}")
NOT_THERE = "There is no file 'extensions/mine/a.png' of an extension."


class FaultBody(BaseModel):
    """Fault of an extension's script in the browser."""

    extension: str = Field(examples=["sd-webui-mine"], max_length=200)
    reason: str = Field(examples=["x is not defined"], max_length=400)


def extension_scripts(library: ScriptLibrary) -> list[dict[str, str]]:
    """Return the addresses of their scripts, in their order; a changed file has another one."""
    found = []
    for file in library.page_scripts:
        extension = library.extension_of(file)
        if not extension.is_built_in:
            path = file.relative_to(extension.folder).as_posix()
            url = f"file={FOLDER}/{quote(extension.name)}/{quote(path)}?{file.stat().st_mtime_ns}"
            found.append({"url": url, "extension": extension.name})
    return found


PLACES = {
    "img2img": ("img2",),
    "img2img_modes": ("img2mask", "inpaint", "sketch"),
    "extras": ("extras",),
    "pnginfo": ("pnginfo",),
}
PLACES |= {"settings": ("setting_", "settings"), "controlnet": ("controlnet",)}
"""Parts of the page that are put in only once they are opened, with words of scripts that look for them at once."""


def places_wanted(library: ScriptLibrary) -> list[str]:
    """The parts of the page that scripts of user extensions name."""
    files = (file for file in library.page_scripts if not library.extension_of(file).is_built_in)
    texts = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    return [place for place, words in PLACES.items() if any(word in text for text in texts for word in words)]


def frame_hosts(library: ScriptLibrary) -> tuple[str, ...]:
    """The sites that the user's extensions show in frames of the page: those that their own files with the word
    `iframe` name. No other site can be shown."""
    found: dict[str, None] = {}
    for extension in library.extensions.values():
        if extension.is_built_in or not extension.is_enabled or extension.faults or extension.replaced_by:
            continue
        files = [file for pattern in WITH_FRAMES for file in sorted(extension.folder.glob(pattern))]
        for file in files[:MAX_FILES_READ]:
            text = file.read_bytes()[:MAX_BYTES_READ].decode("utf-8", "replace")
            if "iframe" in text:
                found |= dict.fromkeys(_SITE.findall(text))
    return tuple(found)[:MAX_SITES]


def extension_files(services: Services) -> APIRouter:
    """The routes of these files."""
    routes = APIRouter(tags=["page"])

    @routes.get("/file={path:path}", **documented("(the file)", errors={404: NOT_THERE}))
    def file(path: str) -> FileResponse:
        """A file in the folder of an extension that is switched on, by its path from the program's folder or whole."""
        found = _file_of(services.scripts, path, services.paths.root)
        if found is None:
            raise UnknownNameError(f"There is no file {path!r} of an extension.")
        kind = guess_type(found.name)[0] or "application/octet-stream"
        kind = "text/javascript" if found.suffix in (".js", ".mjs") else kind
        return FileResponse(found, media_type=kind, headers={"X-Content-Type-Options": "nosniff"})

    @routes.post("/internal/extension-fault", **documented(errors={404: "Unknown extension 'none'. Known: Lora."}))
    def extension_fault(body: FaultBody, request: Request) -> Nothing:
        """A script of an extension failed in the browser: it is named among what failed, with whose page says so."""
        extension = services.scripts.extensions.get(body.extension)
        if extension is None:
            raise UnknownNameError.of("extension", body.extension, services.scripts.extensions)
        if not any(services.scripts.extension_of(file) is extension for file in services.scripts.page_scripts):
            raise InvalidValueError(f"The extension {extension.name!r} has no script on the page that could fail.")
        user = user_of(request)
        fault = Fault(
            f"javascript, on {user}'s page" if user else "javascript", without_controls(" ".join(body.reason.split()))
        )
        if fault not in extension.faults and len(extension.faults) < MAX_FAULTS:
            extension.faults.append(fault)
        return Nothing()

    return routes


def _note_of(root: Path, name: str) -> Path | None:
    """A text that an extension left for its script on the page in the program's folder `tmp`, which some use."""
    place = root / NOTES / name
    is_text = place.suffix.lower() in (".txt", ".csv", ".json") and not name.startswith(".")
    return place if is_text and place.is_file() and not place.is_symlink() else None


def _file_of(library: ScriptLibrary, path: str, root: Path) -> Path | None:
    """The file that an address means; None for what lies elsewhere, links followed, or is hidden."""
    parts = Path(path).parts
    if len(parts) == 2 and parts[0] == NOTES:
        return _note_of(root, parts[1])
    candidates: list[tuple[Any, Path]] = []
    for extension in library.extensions.values():
        if len(parts) > 2 and parts[0] in (FOLDER, "extensions-builtin") and parts[1] == extension.name:
            candidates.append((extension, extension.folder.joinpath(*parts[2:])))
        for folder in {extension.folder, extension.folder.resolve()}:  # extensions may be links, and follow them
            if Path(path).is_absolute() and Path(path).is_relative_to(folder):
                candidates.append((extension, extension.folder / Path(path).relative_to(folder)))
    for extension, place in candidates:
        inside = place.resolve() if lies_in(place, (extension.folder,)) else None
        if inside is None or not extension.is_enabled:
            continue
        is_hidden = inside.suffix.lower() in HIDDEN or any(
            part.startswith(".") for part in place.relative_to(extension.folder).parts
        )
        if not is_hidden and inside.is_file():
            return inside
    return None
