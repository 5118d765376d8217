"""The page's scripts and looks as files of their own: a browser keeps them, and the page itself stays small."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from fastapi.responses import Response

from modules.api.schema.documentation import documented
from modules.errors import UnknownNameError
from modules.plots.drawing import SCRIPT as PLOT_SCRIPT
from modules.plots.drawing import STYLE as PLOT_STYLE
from modules.scripts.library import ScriptLibrary
from modules.ui.form.tooltips import tooltips
from modules.ui.page.compression import KEPT
from modules.ui.page.page_styles import below_root

ASSETS = Path(__file__).parents[1] / "assets"
SCRIPTS = (
    *("localization.js", "panels.js", "form.js", "attention.js", "progress.js", "send.js", "gallery.js", "lightbox.js"),
    *("prompt_text.js", "prompt.js", "hotkeys.js"),
    *("safe_html.js", "card_prompt.js", "cards.js", "card_editor.js", "retention.js"),
    *("canvas.js", "canvas_store.js", "img2img.js", "upload_list.js", "references.js", "batch.js"),
    *("layers_document.js", "layers_strokes.js", "layers_picture.js", "layers_view.js", "layers_tools.js"),
    *("layers_panel.js", "layers_results.js", "layers_sending.js", "layers_tab.js"),
    *("uploads.js", "memory.js", "notices.js", "queue.js", "line.js"),
    *("history.js", "history_image.js", "history_again.js", "history_compare.js", "extensions.js", "get_models.js"),
    *("settings_fields.js", "settings.js", "tooltips.js", "tour.js", "start.js", "session.js"),
    *("find.js", "presets.js"),
)
FOR_EXTENSIONS = "extensions_page.js"
"""The names that scripts of users' extensions call; only where there are such scripts."""
STYLES = (
    *("style.css", "extra_networks.css", "memory.css", "canvas.css", "layers.css", "extras.css"),
    *("queue.css", "extensions.css", "models.css"),
)
LOOKS = ("shell.css", "icons.css", "work.css", "looks.css", "layers_place.css")
"""Styles that follow a class of the body, or replace what Gradio says of its own elements: not put below the page's
root as the others are."""
FOLDER = "page-files"
SAFE = {"X-Content-Type-Options": "nosniff"}


def page_scripts(known: Mapping[str, Any], library: ScriptLibrary, is_extended: bool) -> str:
    """Return what the page's scripts read, and their addresses in their order: for the document itself, where they run
    before Gradio's, so that no button is there without them. With `is_extended`, the names are there that scripts of
    users' extensions call."""
    addresses = [_address(*file) for file in _files(library, is_extended).items() if not file[0].endswith(".css")]
    facts = json.dumps(dict(known)).replace("</", "<\\/")
    links = "".join(f'<script defer src="{address}"></script>' for address in addresses)
    return f"<script>window.featherweightPage = {facts};</script>{links}"


def page_looks(library: ScriptLibrary) -> str:
    """The addresses of the page's looks, for Gradio, which puts them behind its own."""
    addresses = [_address(*file) for file in _files(library, False).items() if file[0].endswith(".css")]
    links = "".join(f'<link rel="stylesheet" href="{address}">' for address in addresses)
    return f'<meta name="viewport" content="width=device-width, initial-scale=1">{links}'


def page_files(library: ScriptLibrary) -> APIRouter:
    """The route of these files. Their addresses hold a hash of the contents, so a browser asks for each once."""
    routes = APIRouter(tags=["page"])

    @routes.get(
        f"/{FOLDER}/{{digest}}/{{name}}", **documented("(the file)", errors={404: "The page has no file 'a.js'."})
    )
    def file(digest: str, name: str) -> Response:
        """A script or a style sheet of the page as it is now."""
        text = {**_files(library, True), **_files(library, False)}.get(name)
        if text is None:
            raise UnknownNameError(f"The page has no file {name!r}.")
        kind = "text/css" if name.endswith(".css") else "text/javascript"
        is_same = _address(name, text) == f"{FOLDER}/{digest}/{name}"
        return Response(text, media_type=kind, headers={**SAFE, "Cache-Control": KEPT if is_same else "no-store"})

    return routes


def _files(library: ScriptLibrary, is_extended: bool) -> dict[str, str]:
    """Name and text of each file, in the order in which the page loads them. Scripts of built-in extensions stand each
    by itself, so that a mistake in one costs no other."""
    ours = [ASSETS / "core.js", PLOT_SCRIPT, *(ASSETS / name for name in SCRIPTS)]
    ours += [ASSETS / FOR_EXTENSIONS] if is_extended else []
    styles = below_root(_text(PLOT_STYLE, *(ASSETS / name for name in STYLES)))
    looks = _text(*(ASSETS / name for name in LOOKS))
    help_texts = f"window.featherweightHelp = {json.dumps(tooltips())};\n"
    found = {"page.css": styles, "looks.css": looks, f"page{is_extended:d}.js": help_texts + _text(*ours)}
    for file in library.page_scripts:
        extension = library.extension_of(file)
        if extension.is_built_in:
            found[f"{extension.name}-{file.name}"] = _text(file)
    return found


def _text(*files: Path) -> str:
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def _address(name: str, text: str) -> str:
    return f"{FOLDER}/{hashlib.sha256(text.encode()).hexdigest()[:16]}/{quote(name)}"
