"""The settings as the Settings tab reads and stores them."""

from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from modules.api.schema.documentation import documented
from modules.services import Services
from modules.settings.definitions import SETTINGS, visible_sections
from modules.system.texts import page_text
from modules.ui.common.messages import note_box
from modules.ui.tabs.settings_form import changed_values, described, refreshed_choices, shown_values

DESCRIBED: dict[str, Any] = {
    "key": "samples_save",
    "id": "setting_samples_save",
    "label": "Always save all generated images",
    "hint": "",
    "type": "bool",
    "choices": [],
    "is_open": False,
    "refreshes": False,
    "minimum": None,
    "maximum": None,
    "step": None,
    "value": True,
    "initial": True,
    "is_locked": False,
}
STORED = {"html": "<div>Nothing was changed.</div>", "values": {"samples_format": "png"}}


class ValuesBody(BaseModel):
    """POST /internal/settings."""

    values: dict[str, Any] = Field(examples=[{"samples_format": "webp"}])


class KeyBody(BaseModel):
    """POST /internal/settings/refresh."""

    key: str = Field(examples=["tac_tagFile"])


def settings_routes(services: Services) -> APIRouter:
    """Routes below the page's own; for admins."""
    routes = APIRouter()

    @routes.get("/settings", **documented({"sections": [{"id": "saving-images", "settings": [DESCRIBED]}]}))
    def settings() -> dict[str, Any]:
        """Return what the page makes the fields of its settings of, by section."""
        sections = visible_sections().items()
        return {
            "sections": [
                {"id": section.id, "settings": [described(setting, services) for setting in found]}
                for section, found in sections
            ]
        }

    @routes.post("/settings/refresh", **documented({"choices": ["a.csv"]}))
    def refresh(body: KeyBody) -> dict[str, list[str]]:
        """Have an extension look again for what a setting shows; its choices, where it has some."""
        return {"choices": refreshed_choices(SETTINGS.get(body.key), services)}

    @routes.post("/settings", **documented(STORED))
    def store(body: ValuesBody) -> dict[str, Any]:
        """Store what these values change, all or nothing; a value that its setting does not take is named."""
        changes = changed_values(body.values, services.settings.current)
        services.settings.update(changes)
        return {"html": _message(changes), "values": shown_values(services.settings.current)}

    return routes


def _message(changes: dict[str, Any]) -> str:
    if not changes:
        return note_box("Nothing was changed.")
    labels = ", ".join(SETTINGS.get(key).label for key in changes)
    restart = any(SETTINGS.get(key).needs_reload for key in changes)
    return note_box(f"Saved: {labels}.{page_text(' Reload the page to see it.') if restart else ''}")
