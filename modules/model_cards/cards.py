"""Cards of model files: what the page shows of each file, and what a click puts into the prompt. Knows no page.

A card is found by its key: the number of the model folder and the path below it. Keys are only ever looked up among
the files that a look at the folders has found, never made into paths.
"""

import re
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from modules.errors import UnknownNameError
from modules.model_cards.few_steps import FewSteps, few_steps_json
from modules.model_cards.notes import WEIGHT, NoteBook, Notes
from modules.model_cards.previews import find_preview
from modules.model_cards.training_facts import version_of
from modules.settings.values import Settings
from modules.system.model_folders import Listing


@dataclass(frozen=True)
class ModelFile:
    """A file that gets a card. `reference` is what stands for it in a prompt or setting."""

    path: Path
    name: str
    reference: str
    metadata: Mapping[str, str] = field(default_factory=dict, hash=False)
    version: str = ""  # of the models that it is for, as cards call it
    search: tuple[str, ...] = ()  # more words that find it
    has_embedded_preview: bool = False
    size_bytes: int | None = None  # of a folder that is a model; None: the file's


@dataclass(frozen=True)
class OtherVersions:
    """Which cards are not shown at first next to a loaded model: with `hides`, those of files made for another version
    of Stable Diffusion, and those of unknown versions next to a model of one of the versions `without_unknown`."""

    hides: bool = False
    without_unknown: tuple[str, ...] = ()


def _shows_all(settings: Settings) -> OtherVersions:
    return OtherVersions()


@dataclass(frozen=True)
class CardPage:
    """One page of cards: where its files lie, how to list them, and the tag that uses one.

    `id` stands in element ids: letters, digits and underscores.
    """

    id: str
    title: str
    folders: tuple[Path, ...]
    list_files: Callable[[Listing, Settings], list[ModelFile]]
    suffixes: tuple[str, ...]
    tag: str = ""  # "lora": a click puts <lora:reference:weight> into the prompt; "": the reference alone
    tag_aliases: tuple[str, ...] = ()  # other types of tags that use the same files
    is_for_prompt: bool = True
    notes: tuple[str, ...] = ("description", "notes")  # the keys that the editor shows
    is_of_files_only: bool = True  # whether the list stays the same while the files do
    hash_of: Callable[[ModelFile], str] = lambda file: ""  # as infotexts have it; "" where none is known
    other_versions: Callable[[Settings], OtherVersions] = _shows_all
    few_steps: Callable[[ModelFile], FewSteps | None] = lambda file: None  # what a file asks for that needs few steps


@dataclass(frozen=True)
class Card:
    """One card as the page shows it. Times are seconds since 1970."""

    key: str
    folder: str  # below the model folder, with forward slashes; "" for the model folder itself
    file: ModelFile
    notes: Notes = field(hash=False)
    version: str
    preview: Path | None
    preview_stamp: int  # changes whenever the preview does; 0: there is none
    created: float
    modified: float
    size_bytes: int


@dataclass(frozen=True)
class _Look:
    """Findings in a page's folders, and what they depended on."""

    signature: bytes
    settings: Settings
    cards: tuple[Card, ...]
    by_key: dict[str, Card]


class CardLibrary:
    """The cards of all pages. Safe to use from any thread."""

    def __init__(self, pages: tuple[CardPage, ...]) -> None:
        self.pages = {page.id: page for page in pages}
        self._book = NoteBook()
        self._lock = threading.Lock()
        self._looks: dict[str, _Look] = {}

    def page(self, page_id: str) -> CardPage:
        """Raises `UnknownNameError` with the known ones."""
        if page_id not in self.pages:
            raise UnknownNameError.of("page of cards", page_id, self.pages)
        return self.pages[page_id]

    @property
    def folders(self) -> tuple[Path, ...]:
        """The folders of all pages: where previews may lie."""
        return tuple(folder for page in self.pages.values() for folder in page.folders)

    def cards(self, page_id: str, settings: Settings) -> tuple[Card, ...]:
        """Look at the page's folders now, sorted by path; the same tuple as before while nothing has changed."""
        page = self.page(page_id)
        with self._lock:
            listing = Listing.of(page.folders)
            signature = listing.signature()
            known = self._looks.get(page_id)
            if known and page.is_of_files_only and (known.signature, known.settings) == (signature, settings):
                return known.cards
            found = (self._card(page, file, listing) for file in page.list_files(listing, settings))
            cards = {card.key: card for card in sorted(filter(None, found), key=_by_path)}
            self._looks[page_id] = _Look(signature, settings, tuple(cards.values()), cards)
            return self._looks[page_id].cards

    def card(self, page_id: str, key: str, settings: Settings) -> Card:
        """One card, as of the last look at its page; looks again for one that is not known.

        Raises `UnknownNameError`.
        """
        self.page(page_id)
        look = self._looks.get(page_id)
        known = look.by_key.get(key) if look else None
        if known is None:
            known = next((card for card in self.cards(page_id, settings) if card.key == key), None)
        if known is None:
            raise UnknownNameError(f"There is no card {key!r} on the page {page_id!r}. Refresh the cards.")
        return known

    def _card(self, page: CardPage, file: ModelFile, listing: Listing) -> Card | None:
        place = listing.place_of(file.path)
        if place is None:  # named on the command line, outside of the folders
            return None
        number, way = place
        near = listing.near(file.path)
        try:
            entry = near.files.get(file.path.name)
            stat = entry.stat() if entry else file.path.stat()
            preview = find_preview(near)
            stamp = preview.stat().st_mtime_ns if preview else stat.st_mtime_ns * file.has_embedded_preview
        except OSError:  # gone since the folder was listed
            return None
        notes = self._book.notes_of(near)
        return Card(
            key=f"{number}/{way}",
            folder=way.rpartition("/")[0],
            file=file,
            notes=notes,
            version=version_of(file.metadata, notes.get("sd version", "")) or file.version,
            preview=Path(preview.path) if preview else None,
            preview_stamp=stamp,
            created=getattr(stat, "st_birthtime", stat.st_ctime),
            modified=stat.st_mtime,
            size_bytes=stat.st_size if file.size_bytes is None else file.size_bytes,
        )


def _by_path(card: Card) -> list[tuple[int, str]]:
    """Numbers in names by their value: 9 before 10."""
    parts = re.split(r"(\d+)", card.key.lower())
    return [(int(part), "") if part.isdecimal() and part.isascii() else (-1, part) for part in parts]


def card_json(page: CardPage, card: Card, settings: Settings, tiny_vaes: Collection[str] = ()) -> dict[str, Any]:
    """Describe a card for the page's script: what it shows, what finds it, and what a click adds. `tiny_vaes`: the
    names of the tiny decoders that are here."""
    file, notes = card.file, card.notes
    few_steps = page.few_steps(file)
    if few_steps and few_steps.sampler in settings.sampler.hide_samplers:
        few_steps = replace(few_steps, sampler="")  # the form's list does not have it
    words = (file.name, file.path.name, file.reference, *file.search, notes.get("description", ""))
    return {
        "key": card.key,
        "name": file.name,
        "folder": card.folder,
        "description": notes.get("description", ""),
        "prompt": prompt_of(page, card, settings),
        "tag": f"<{page.tag}:{file.reference}:" if page.tag else "",
        "tag_types": [page.tag, *page.tag_aliases] if page.tag else [],
        "activation": notes.get("activation text", "") if page.tag else "",
        "negative": notes.get("negative text", "") if page.is_for_prompt else "",
        "version": card.version,
        "few_steps": few_steps_json(few_steps, tiny_vaes),
        "stamp": str(card.preview_stamp),  # more digits than a number of the script holds
        "created": card.created,
        "modified": card.modified,
        "search": "\n".join(dict.fromkeys(word.lower() for word in words if word)),
    }


def prompt_of(page: CardPage, card: Card, settings: Settings) -> str:
    """Return what a click puts into the prompt, the activation text aside; for checkpoints the title."""
    if not page.tag:
        return card.file.reference
    weight = card.notes.get(WEIGHT) or settings.extra_networks.extra_networks_default_multiplier
    return f"<{page.tag}:{card.file.reference}:{weight:g}>"
