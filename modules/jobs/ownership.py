"""A request as its user's: with their name, saved in their folder, with the settings that they may choose."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from modules.access.roles import Identity, NotAllowedError
from modules.processing.request.request import GenerationRequest
from modules.settings.definitions import SETTINGS
from modules.settings.values import Settings

FOR_ADMINS = ("saving-paths", "saving-to-dirs", "system", "API")
"""Sections of settings that only admins change, for one job too: where files go, and what the program does."""
FOR_ADMINS_TOO = ("font",)  # names a file of the server's machine
FOLDERS = (
    *("outdir_samples", "outdir_txt2img_samples", "outdir_img2img_samples", "outdir_extras_samples"),
    *("outdir_grids", "outdir_txt2img_grids", "outdir_img2img_grids", "outdir_init_images", "outdir_save"),
)


def claimed(request: GenerationRequest, identity: Identity, current: Settings | None = None) -> GenerationRequest:
    """The request as this user's: with their name, and into their folder. Raises `NotAllowedError` for settings of
    their own that only admins change. `current`: the settings now, for a request from a record, which was somebody's
    already."""
    check_overrides(request.override_settings, identity)
    settings = request.settings
    if current is not None and identity.has_folder:
        settings = settings.with_changes({key: current[key] for key in FOLDERS})
    settings = own_folders(settings, identity)
    return replace(request, user=identity.name, settings=settings)


def check_overrides(overrides: Mapping[str, Any], identity: Identity) -> None:
    """Raise `NotAllowedError` for settings of one job that this user may not change."""
    if identity.is_admin:
        return
    for key in overrides:
        if key in FOR_ADMINS_TOO or (key in SETTINGS and SETTINGS.get(key).section.id in FOR_ADMINS):
            raise NotAllowedError(
                f"The setting {key} is for admins, in override_settings too. Leave it out; everything else of the "
                "request may stay."
            )


def own_folders(settings: Settings, identity: Identity) -> Settings:
    """The settings with all output folders ending in this user's name, where users have folders of their own."""
    if not identity.has_folder:
        return settings
    found = {key: str(settings[key]).rstrip("/\\") for key in FOLDERS}
    return settings.with_changes({key: f"{folder}/{identity.name}" for key, folder in found.items() if folder})
