"""Routes of the cards of models: the list, a preview, what is known of a file, and changes of what is noted.

Files are named by the keys of their cards, and a key is only looked up, so that no request can name a path.
"""

import hashlib
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from modules.adapters.catalogue import EMBEDDED
from modules.api.schema.documentation import documented
from modules.errors import UnknownNameError
from modules.images.encode import encode_image
from modules.model_cards.cards import Card, CardLibrary, card_json
from modules.model_cards.notes import write_notes
from modules.model_cards.previews import Preview, embedded_preview, read_preview, write_preview
from modules.model_cards.training_facts import readable_metadata, training_facts, training_tags
from modules.models.detection.families import adapter_versions
from modules.models.files.header import read_metadata
from modules.services import Services
from modules.settings.values import Settings
from modules.ui.routes.card_replies import CardDetailsReply, CardListReply, CardReply, ChosenCheckpointReply

NO_CARD = "There is no card '0/ink.safetensors' on the page 'lora'. Refresh the cards."
NOT_SAVED = "The notes ink.json could not be saved."
LIST_REPLIES: dict[int | str, dict[str, Any]] = {
    **documented(errors={404: "Unknown page of cards 'x'. Known: lora, checkpoints."})["responses"],
    200: {"description": "The cards.", "model": CardListReply},
}
IMAGE_REPLIES: dict[int | str, dict[str, Any]] = {
    **documented(errors={404: NO_CARD})["responses"],
    200: {"description": "The image.", "content": {"image/png": {"example": "(PNG)"}}},
}
CARD_SETTINGS = (
    *("extra_networks_show_hidden_directories", "extra_networks_dir_button_function", "extra_networks_hidden_models"),
    *("extra_networks_card_width", "extra_networks_card_height", "extra_networks_card_text_scale"),
    *("extra_networks_card_show_desc", "extra_networks_card_description_is_html"),
    *("extra_networks_card_order_field", "extra_networks_card_order"),
    *("extra_networks_tree_view_style", "extra_networks_tree_view_default_enabled"),
    *("extra_networks_tree_view_default_width", "extra_networks_add_text_separator"),
)


class CardBody(BaseModel):
    """One card."""

    page: str = Field(examples=["lora"])
    key: str = Field(examples=["0/styles/ink.safetensors"])


class NotesBody(CardBody):
    """POST /internal/extra-networks/notes."""

    changes: dict[str, Any] = Field(description="by note; null removes one", examples=[{"preferred weight": 0.8}])


class PreviewBody(CardBody):
    """POST /internal/extra-networks/preview: an image of a job."""

    id_task: str = Field(examples=["task(abc)"])
    index: int = 0


@dataclass(frozen=True)
class _Body:
    """A list as it was last sent, and what it was made from."""

    cards: tuple[Card, ...]
    facts: dict[str, Any]
    data: bytes


def card_routes(services: Services) -> APIRouter:
    """The routes below /internal/extra-networks."""
    routes = APIRouter(prefix="/extra-networks")
    library = services.cards
    bodies: dict[str, _Body] = {}

    def card_of(page: str, key: str) -> Card:
        return library.card(page, key, services.settings.current)

    def changed(page: str, key: str) -> dict[str, Any]:
        """The card after a change, from a new look at the folders."""
        settings = services.settings.current
        library.cards(page, settings)
        return card_json(library.page(page), card_of(page, key), settings, services.engine.tiny_vaes.decoders)

    @routes.get("", response_class=Response, responses=LIST_REPLIES)
    def cards(page: str, request: Request) -> Response:
        """All cards of a page, from a look at its folders. An ETag saves sending the list while it is the same."""
        settings = services.settings.current
        found = library.cards(page, settings)
        facts = _page_json(services, library, page, settings)
        known = bodies.get(page)
        if known is None or known.cards is not found or known.facts != facts:
            shown = [card_json(library.page(page), card, settings, facts["tiny_vaes"]) for card in found]
            known = bodies[page] = _Body(found, facts, json.dumps({**facts, "cards": shown}).encode())
        return _cached(known.data, "application/json", request, "private, no-cache")

    @routes.get("/preview", response_class=Response, responses=IMAGE_REPLIES)
    def preview(page: str, key: str, request: Request) -> Response:
        """The image of a card."""
        card = card_of(page, key)
        shown = _preview(card, library)
        return _cached(shown.data, shown.media_type, request, "private, max-age=604800")

    @routes.get("/details", response_model=CardDetailsReply, **documented(errors={404: NO_CARD}))
    def details(page: str, key: str) -> dict[str, Any]:
        """Return what is known of a file: its metadata, the words it was trained on, what the user noted."""
        card = card_of(page, key)
        metadata = _metadata(card)
        return {
            "name": card.file.name,
            "path": str(card.file.path),
            "facts": {**_file_facts(card, library.page(page).hash_of(card.file)), **training_facts(metadata)},
            "tags": [list(item) for item in training_tags(metadata)],
            "metadata": readable_metadata(metadata),
            "fields": list(library.page(page).notes),
            "notes": card.notes,
            "vaes": services.engine.vaes.choices(),
            "versions": ["Unknown", *adapter_versions()],
        }

    @routes.post("/notes", response_model=CardReply, **documented(errors={404: NO_CARD, 507: NOT_SAVED}))
    def notes(body: NotesBody) -> dict[str, Any]:
        """Change what is noted in NAME.json next to a file; answers the card as it is now."""
        write_notes(card_of(body.page, body.key).file.path, body.changes)
        return changed(body.page, body.key)

    @routes.post("/preview", response_model=CardReply, **documented(errors={404: NO_CARD, 507: NOT_SAVED}))
    def replace_preview(body: PreviewBody) -> dict[str, Any]:
        """Make an image of a job the preview of a file; answers the card as it is now."""
        card = card_of(body.page, body.key)
        image = services.queue.known.get(body.id_task).image(body.index)
        write_preview(card.file.path, encode_image(image.image, "png", image.infotext))
        return changed(body.page, body.key)

    @routes.post("/checkpoint", response_model=ChosenCheckpointReply, **documented(errors={404: NO_CARD}))
    def checkpoint(body: CardBody) -> dict[str, str]:
        """Choose the checkpoint of a card; it is loaded in the background, after the job that runs now."""
        title = card_of(body.page, body.key).file.reference
        services.settings.update({"sd_model_checkpoint": services.catalogue.get(title).title})
        return {"title": title}

    return routes


def _page_json(services: Services, library: CardLibrary, page_id: str, settings: Settings) -> dict[str, Any]:
    page = library.page(page_id)
    model = services.models.status.model
    values = settings.to_json()
    return {
        "page": page.id,
        "version": model.adapter_version if model else "",
        "others": asdict(page.other_versions(settings)),
        "folders": [str(folder) for folder in page.folders],
        "suffixes": list(page.suffixes),
        "tiny_vaes": services.engine.tiny_vaes.decoders,
        "settings": {key: values[key] for key in CARD_SETTINGS},
    }


def _cached(data: bytes, media_type: str, request: Request, cache_control: str) -> Response:
    """The bytes, or 304 without them where the browser has exactly these."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": cache_control, "X-Content-Type-Options": "nosniff"}
    known = [item.strip().removeprefix("W/") for item in request.headers.get("if-none-match", "").split(",")]
    if tag in known:
        return Response(status_code=304, headers=headers)
    return Response(data, media_type=media_type, headers=headers)


def _preview(card: Card, library: CardLibrary) -> Preview:
    if card.preview is not None:
        return read_preview(card.preview, library.folders)
    shown = embedded_preview(read_metadata(card.file.path)) if card.file.has_embedded_preview else None
    if shown is None:
        raise UnknownNameError(f"{card.file.name} has no preview.")
    return shown


def _metadata(card: Card) -> dict[str, str]:
    metadata = dict(card.file.metadata) or read_metadata(card.file.path)
    return {key: value for key, value in metadata.items() if key not in EMBEDDED}


def _file_facts(card: Card, short_hash: str) -> dict[str, str]:
    facts = {
        "File": card.file.path.name,
        "Size": f"{card.size_bytes / 1e6:,.1f} MB",
        "Modified": time.strftime("%Y-%m-%d %H:%M", time.localtime(card.modified)),
    }
    return {**facts, "Hash": short_hash} if short_hash else facts
