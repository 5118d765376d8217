"""The route that gives the page its translation, and the texts for those who write one."""

from typing import Any

from fastapi import APIRouter, Query

from modules.api.schema.documentation import documented
from modules.services import Services
from modules.ui.common.localization import (
    LANGUAGES,
    NONE,
    chosen,
    find_localizations,
    localization_folders,
    read_localization,
)

EXAMPLE = {
    "name": "de",
    "texts": {"Generate": "Erzeugen"},
    "is_rtl": False,
    "faults": [],
    "available": [["None", "English"], ["de", "Deutsch"]],
}


def localization_routes(services: Services) -> APIRouter:
    """The files are looked up on each call, so that a new one needs only a reload of the page."""
    routes = APIRouter()

    @routes.get("/localization", **documented(EXAMPLE))
    def localization(
        choice: str = Query("", description="what the page's header says; empty: never chosen"),
        languages: str = Query("", description="the browser's languages, separated by commas", examples=["de-AT,en"]),
    ) -> dict[str, Any]:
        """The translation that a page is shown in, and all that are there."""
        files = find_localizations(localization_folders(services.paths))
        setting = services.settings.current.interface.localization
        name = chosen(choice, setting, languages.split(","), files)
        found = read_localization(name, files.get(name, ()))
        return {
            "name": name,
            "texts": found.texts,
            "is_rtl": found.is_rtl,
            "faults": found.faults,
            "available": [[NONE, "English"], *([one, LANGUAGES.get(one, one)] for one in files)],
        }

    return routes
