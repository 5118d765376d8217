"""`modules.ui_extra_networks`: the pages of cards by their names, and what is on them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from compat.facades.refusal import refusing
from compat.host import host_now, services_now
from modules.model_cards.cards import Card, CardLibrary, prompt_of
from modules.model_cards.previews import MEDIA_TYPES
from modules.model_cards.training_facts import readable_metadata

_CARDS = "`from modules.extra_networks import CardPage, register_page` adds a page of cards."


def _library() -> CardLibrary:
    """The server's cards; a worker has none."""
    services = services_now()
    return services.cards if services is not None else CardLibrary(())


class ExtraNetworksPage:
    """A page of cards. Those that there are have an `id`; an own one cannot be added by this class."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.name = title.lower()
        self.id_page = self.name.replace(" ", "_")
        self.allow_prompt = True
        self.allow_negative_prompt = self.id_page == "textual_inversion"

    @property
    def items(self) -> dict[str, dict[str, Any]]:
        """List what is on it by name."""
        return {item["name"]: item for item in self.list_items()}

    @property
    def metadata(self) -> dict[str, dict[str, Any]]:
        """Return what stands in the files, by name."""
        return {item["name"]: item["metadata"] for item in self.list_items() if item["metadata"]}

    def refresh(self) -> None:
        """The folders are looked at whenever the cards are asked for."""

    def list_items(self) -> Iterator[dict[str, Any]]:
        """The cards, each with what the reference UI's have."""
        library, settings = _library(), host_now().settings.current
        page = library.page(self.id_page)
        for place, card in enumerate(library.cards(self.id_page, settings)):
            file = card.file
            yield {
                "name": file.name,
                "filename": str(file.path),
                "shorthash": page.hash_of(file),
                "preview": self.find_preview(str(file.path.with_suffix(""))),
                "description": card.notes.get("description", ""),
                "search_terms": [card.key.partition("/")[2], file.reference, *file.search],
                "prompt": json.dumps(prompt_of(page, card, settings)),
                "negative_prompt": json.dumps(card.notes.get("negative text", "")),
                "local_preview": f"{file.path.with_suffix('')}.{settings.saving.samples_format}",
                "metadata": readable_metadata(file.metadata),
                "sd_version": card.version or "Unknown",
                "sort_keys": {"default": place, **_times(card)},
            }

    def create_item(self, name: str, index: int | None = None, enable_filter: bool = True) -> dict[str, Any] | None:
        """The card of a name; None where there is none."""
        return self.items.get(name)

    def find_preview(self, path: str) -> str | None:
        """The address of the preview of a file, whose path is given without suffix; None where it has none."""
        settings = host_now().settings.current
        for card in _library().cards(self.id_page, settings):
            if card.preview is not None and str(card.file.path.with_suffix("")) == path:
                return f"./sd_extra_networks/thumb?filename={quote(str(card.preview))}&mtime={card.preview_stamp}"
        return None

    def find_description(self, path: str) -> str | None:
        """Return what is noted of a file, whose path is given without suffix."""
        found = (item for item in self.list_items() if str(Path(item["filename"]).with_suffix("")) == path)
        return next((item["description"] or None for item in found), None)

    def allowed_directories_for_previews(self) -> list[str]:
        """The folders of its files."""
        return [str(folder) for folder in _library().page(self.id_page).folders]


def _times(card: Card) -> Mapping[str, Any]:
    return {
        "date_created": int(card.created),
        "date_modified": int(card.modified),
        "name": card.file.name.lower(),
        "path": str(card.file.path.parent).lower(),
    }


class _Pages(Sequence[ExtraNetworksPage]):
    """The pages that there are, looked up each time."""

    def _now(self) -> list[ExtraNetworksPage]:
        return [ExtraNetworksPage(page.title) for page in _library().pages.values() if _id_of(page.title) == page.id]

    def __getitem__(self, place: Any) -> Any:
        return self._now()[place]

    def __len__(self) -> int:
        return len(self._now())


def _id_of(title: str) -> str:
    return ExtraNetworksPage(title).id_page


extra_pages = _Pages()


def allowed_preview_extensions() -> list[str]:
    """Suffixes of previews, without their dot."""
    return [suffix.removeprefix(".") for suffix in MEDIA_TYPES]


def quote_js(text: str) -> str:
    """Return a text as a literal of JavaScript."""
    return json.dumps(text)


def get_metadata(page: str = "", item: str = "") -> dict[str, Any]:
    """Return what stands in the file of a card."""
    found = next((one for one in extra_pages if one.name == page), None)
    return {} if found is None else found.metadata.get(item, {})


__getattr__ = refusing(
    "ui_extra_networks",
    dict.fromkeys(
        ("register_page", "register_default_pages", "initialize", "create_ui", "setup_ui", "ExtraNetworksUi"), _CARDS
    )
    | dict.fromkeys(("ExtraNetworksItem", "get_single_card", "fetch_file", "add_pages_to_demo", "allowed_dirs"), _CARDS)
    | dict.fromkeys(("pages_in_preferred_order", "default_allowed_preview_extensions", "tab_name_score"), _CARDS),
)
