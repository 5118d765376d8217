"""Completions of prompts for the page's script: tags of CSV files, LoRA files, hypernetworks, embeddings, styles and
wildcards. The search runs here, so that the page never holds a list of tags."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from modules.prompting.tag_files import TagIndex, read_tags
from modules.prompting.wildcards import WildcardBook
from modules.scripts import program_now, script_callbacks
from modules.settings.group import SettingsGroup, flag, text, whole
from modules.settings.sections.extra_networks import ExtraNetworkSettings
from modules.settings.setting import Section
from modules.system.model_folders import Listing

log = logging.getLogger(__name__)
PROGRAM = program_now()
NO_FILE = "None"
EMBEDDING_SUFFIXES = (".safetensors", ".pt", ".bin")
EXAMPLE = {
    "results": [
        {"text": "long_hair", "kind": "tag", "category": 0, "count": 4350743, "alias": None, "insert": "long hair"}
    ],
    "comma": True,
}


class TagCompletionSettings(SettingsGroup):
    """The keys are those of the tag completion of the reference UI, where it has them."""

    section = Section(id="tac", title="Tag completion", category="Extensions")

    tac_active = flag("Complete tags and names while typing in prompts", True)
    tac_tagFile = text(  # noqa: N815
        "Tag file",
        "danbooru.csv",
        hint="A CSV file in models/tags or in the folder tags of an extension: name,category,count,aliases. Where it "
        "is missing the first file found is used; None: names of LoRA, embeddings, styles and wildcards only.",
    )
    tac_maxResults = whole("Results shown", 8, minimum=1, maximum=50, step=1)  # noqa: N815
    tac_replaceUnderscores = flag("Replace underscores with spaces on insertion", True)  # noqa: N815
    tac_escapeParentheses = flag("Escape parentheses on insertion", True)  # noqa: N815
    tac_appendComma = flag("Append a comma on insertion", True)  # noqa: N815


class TagFiles:
    """The index of the chosen tag file, read when it is asked for first and when the file or the setting changes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._key: tuple[Any, ...] | None = None
        self._index = TagIndex(())

    def index(self, name: str) -> TagIndex:
        """Return the index of this file, or of the first there is; empty for `None` and without files."""
        path = None if name == NO_FILE else chosen_file(name, PROGRAM.folders("tags"))
        with self._lock:
            try:
                stat = path.stat() if path else None
                key = (path, stat.st_mtime_ns, stat.st_size) if stat else None
                if key != self._key:
                    self._index = TagIndex(read_tags(path) if path else ())
                    self._key = key
            except OSError as error:
                log.warning("The tags in %s cannot be read: %s", path, error)
                self._index, self._key = TagIndex(()), None
            return self._index


def chosen_file(name: str, folders: Iterable[Path]) -> Path | None:
    """The tag file of this name, else the first in the order of folders and names."""
    files = [Path(entry.path) for entry in Listing.of(folders).with_suffix((".csv",))]
    return next((file for file in files if file.name.lower() == name.lower()), files[0] if files else None)


FILES = TagFiles()


def completions(wanted: str, settings: TagCompletionSettings) -> list[dict[str, Any]]:
    """Find what the part of a prompt before the cursor can become, the best first.

    After "<" adapters' tags, after "__" wildcards, else tags and names of embeddings and styles.
    """
    most = settings.tac_maxResults
    if wanted.startswith("<"):
        kind, _, name = wanted[1:].rpartition(":")
        return _adapters(kind.lower(), name, most)
    if wanted.startswith("__"):
        names = WildcardBook(PROGRAM.folders("wildcards")).names
        return [_result(f"__{name}__", "wildcard", f"__{name}__") for name in _best(names, wanted[2:], most)]
    return _words(wanted, settings)


def _adapters(kind: str, name: str, most: int) -> list[dict[str, Any]]:
    """Tags of adapters: all of a kind after "<lora:", those whose name or kind begins so after "<in"."""
    adapters = PROGRAM.adapters()
    weight = f"{ExtraNetworkSettings(PROGRAM.settings()).extra_networks_default_multiplier:g}"
    lists = {"lora": adapters.catalogue.entries, "hypernet": adapters.hypernetworks.entries}
    found: list[dict[str, Any]] = []
    for tag, infos in lists.items():
        names = [info.name for info in infos]
        if kind:
            fitting = _best(names, name, most) if kind == tag else []
        else:
            fitting = names[:most] if name and tag.startswith(name.lower()) else _best(names, name, most)
        found += [_result(one, tag, f"<{tag}:{one}:{weight}>") for one in fitting]
    return found[:most]


def _words(wanted: str, settings: TagCompletionSettings) -> list[dict[str, Any]]:
    most = settings.tac_maxResults
    files = Listing.of(PROGRAM.folders("embeddings")).with_suffix(EMBEDDING_SUFFIXES)
    embeddings = [Path(entry.path).stem for entry in files]
    styles = PROGRAM.styles().styles
    found = [_result(name, "embedding", name) for name in _best(embeddings, wanted, most)]
    found += [
        _result(name, "style", " ".join(styles[name].prompt.replace("{prompt}", " ").split()))
        for name in _best(styles, wanted, most)
        if styles[name].prompt.strip()
    ]
    found = found[: max(most // 2, 1)]
    for match in FILES.index(settings.tac_tagFile).find(wanted, most - len(found)):
        tag = match.tag
        found.append(
            {
                **_result(tag.name, "tag", as_inserted(tag.name, settings)),
                **{"category": tag.category, "count": tag.count, "alias": match.alias},
            }
        )
    return found


def as_inserted(name: str, settings: TagCompletionSettings) -> str:
    """A tag as it stands in a prompt, where parentheses would weigh it. Faces such as ^_^ keep their underscores."""
    has_letters = sum(character.isalnum() for character in name) > 2
    if settings.tac_replaceUnderscores and has_letters:
        name = name.replace("_", " ")
    if settings.tac_escapeParentheses:
        name = name.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")
    return name


def _best(names: Iterable[str], part: str, most: int) -> list[str]:
    """The names that hold a text, those that begin with it first."""
    wanted = part.lower()
    holding = [name for name in names if wanted in name.lower()]
    return sorted(holding, key=lambda name: (not name.lower().startswith(wanted), name.lower()))[:most]


def _result(text: str, kind: str, insert: str) -> dict[str, Any]:
    return {"text": text, "kind": kind, "category": 0, "count": 0, "alias": None, "insert": insert}


def add_routes(page: object, app: Any) -> None:
    """Called when page and API are built."""
    from fastapi import APIRouter, Query  # only where there is a server

    from modules.api.schema.documentation import documented

    routes = APIRouter(prefix="/tag-completion", tags=["page"])

    @routes.get("/search", **documented(EXAMPLE))
    @script_callbacks.open_to("user")
    def search(q: str = Query(max_length=200, examples=["long_h"])) -> dict[str, Any]:
        """Find what a part of a prompt can become: tags, and names of adapters, embeddings, styles and wildcards."""
        settings = TagCompletionSettings(PROGRAM.settings())
        wanted = q.strip()
        if not settings.tac_active or not wanted:
            return {"results": [], "comma": settings.tac_appendComma}
        return {"results": completions(wanted, settings), "comma": settings.tac_appendComma}

    app.include_router(routes)


script_callbacks.on_ui_settings(lambda settings: settings.add(TagCompletionSettings))
script_callbacks.on_app_started(add_routes)
