"""The reference UI's routes for model cards: preview, embedded cover, metadata, one card. The page has its own."""

import json
from html import escape
from pathlib import Path

from fastapi import APIRouter, Response

from modules.adapters.catalogue import EMBEDDED
from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import CardHtmlReply, CardMetadataReply
from modules.errors import UnknownNameError
from modules.model_cards.cards import Card
from modules.model_cards.previews import Preview, embedded_preview, read_preview
from modules.models.files.header import read_metadata
from modules.services import Services

NO_PREVIEW = "There is no preview 'ink.png' of a model."
NO_COVER = "There is no cover image in 'ink'."
IMAGE = {200: {"description": "The image.", "content": {"image/png": {"example": "(image)"}}}}


def extra_network_routes(services: Services) -> APIRouter:
    """The routes below /sd_extra_networks. A file is only looked up among those that have cards, never opened by a
    path from outside."""
    routes = APIRouter(prefix="/sd_extra_networks", tags=["page"])
    library = services.cards

    def card_of(page: str, name: str) -> Card | None:
        if page not in library.pages:
            return None
        found = library.cards(page, services.settings.current)
        return next((card for card in found if card.file.name == name), None)

    @routes.get("/thumb", response_class=Response, responses=_image_replies(NO_PREVIEW))
    def thumb(filename: str) -> Response:
        """The preview of a model, by the preview's own path."""
        settings = services.settings.current
        previews = {card.preview for page in library.pages for card in library.cards(page, settings)}
        if "\0" in filename or Path(filename) not in previews:
            raise UnknownNameError(f"There is no preview {filename!r} of a model.")
        return _image(read_preview(Path(filename), library.folders))

    @routes.get("/cover-images", response_class=Response, responses=_image_replies(NO_COVER))
    def cover_image(page: str, item: str, index: int = 0) -> Response:
        """The cover image inside of a file; there is one at most, so `index` is 0."""
        card = card_of(page, item)
        found = embedded_preview(read_metadata(card.file.path)) if card is not None and index == 0 else None
        if found is None:
            raise UnknownNameError(f"There is no cover image {index} in {item!r}.")
        return _image(found)

    @routes.get("/metadata", response_model_exclude_unset=True)
    def metadata(page: str, item: str) -> CardMetadataReply:
        """The metadata in a file as a JSON text; an empty object where there is none."""
        card = card_of(page, item)
        found = {} if card is None else dict(card.file.metadata) or read_metadata(card.file.path)
        shown = {key: value for key, value in found.items() if key not in EMBEDDED}
        if not shown:
            return CardMetadataReply()
        return CardMetadataReply(metadata=json.dumps(shown, indent=4, ensure_ascii=False))

    @routes.get("/get-single-card", response_model_exclude_unset=True)
    def single_card(page: str, name: str, tabname: str = "") -> CardHtmlReply:
        """A card as HTML for the tab `tabname`; an empty object where there is no such model."""
        card = card_of(page, name)
        return CardHtmlReply() if card is None else CardHtmlReply(html=_html(card, tabname))

    return routes


def _image_replies(missing: str) -> dict[int | str, dict[str, object]]:
    return {**documented(errors={404: missing})["responses"], **IMAGE}


def _image(preview: Preview) -> Response:
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "private, no-cache"}
    return Response(preview.data, media_type=preview.media_type, headers=headers)


def _html(card: Card, tab: str) -> str:
    name, note = escape(card.file.name), escape(str(card.notes.get("description", "")))
    return (
        f'<div class="card" data-name="{name}" data-tab="{escape(tab)}"><div class="actions">'
        f'<span class="name">{name}</span><span class="description">{note}</span></div></div>'
    )
