"""Presets of the forms, by name in presets.json of the data folder. The page decides what a preset holds, and the form
checks each value when one is put in (`modules.ui.form.filling.restored`)."""

import json
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel, Field

from modules.api.schema.documentation import documented
from modules.errors import InvalidValueError
from modules.services import Services
from modules.ui.form.ui_config import MAX_FILE_BYTES, UiConfig, read_ui_config

PRESET = {"featherweight_preset": 1, "family": "SD 1.x", "tab": "txt2img", "fields": {"steps": 30}, "scripts": {}}


class PresetBody(BaseModel):
    """POST /internal/presets."""

    name: str = Field(min_length=1, max_length=80, examples=["portraits"])
    preset: dict[str, Any] | None = Field(default=None, description="null deletes it", examples=[PRESET])


def preset_routes(services: Services) -> APIRouter:
    """Routes below the page's own; all users share the presets."""
    routes = APIRouter()
    file = services.paths.data_dir / "presets.json"

    @routes.get("/presets", **documented({"presets": {"portraits": PRESET}}))
    def presets() -> dict[str, Any]:
        """Return all presets by name."""
        found, faults = read_ui_config(file)
        if faults:
            raise InvalidValueError(" ".join(faults))
        return {"presets": found}

    @routes.post("/presets", **documented({"presets": {"portraits": PRESET}}))
    def keep(body: PresetBody) -> dict[str, Any]:
        """Save a preset under a name, or delete it; returns all."""
        entries = {**presets()["presets"], body.name: body.preset}
        if len(json.dumps(entries)) > MAX_FILE_BYTES // 2:
            raise InvalidValueError("The presets would take more than 2 MB: delete some, or save one with less in it.")
        UiConfig(file).save({body.name: body.preset})
        return presets()

    return routes
