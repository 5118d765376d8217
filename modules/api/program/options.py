"""Settings and flags over HTTP."""

from typing import Any

from fastapi import APIRouter, Body

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import FlagsReply, OptionsReply
from modules.flags.flags import public_flags
from modules.services import Services

UNKNOWN_MODEL = "Unknown checkpoint 'gone'. Known: featherweight-scenes.safetensors [5fe1d58aba]."
UNKNOWN_KEY = "Nothing was changed: there is no setting 'jpg_quality'; did you mean jpeg_quality?"


def option_routes(services: Services) -> APIRouter:
    """GET and POST /sdapi/v1/options, GET /sdapi/v1/cmd-flags."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["options"])

    @routes.get("/options")
    def read_options() -> OptionsReply:
        """Every setting with its value; the checkpoint is the one that would be used, also when none was chosen."""
        options = services.settings.current.to_json()
        entries = services.catalogue.entries
        chosen = services.catalogue.find(str(options["sd_model_checkpoint"] or "")) or (entries[0] if entries else None)
        if chosen is not None:
            options |= {"sd_model_checkpoint": chosen.title, "sd_checkpoint_hash": chosen.sha256 or ""}
        return OptionsReply(options)

    @routes.post("/options", **documented(errors={404: UNKNOWN_MODEL, 422: UNKNOWN_KEY}))
    def write_options(
        changes: dict[str, Any] = Body(examples=[{"samples_format": "png"}]),  # noqa: B008 - FastAPI's way
    ) -> None:
        """Change settings; all or none. A whole GET body may be sent back.

        A new checkpoint or precision loads in the background.
        """
        wanted = changes.get("sd_model_checkpoint")
        if wanted and wanted != services.settings.current.stable_diffusion.sd_model_checkpoint:
            info = services.catalogue.get(str(wanted))
            changes = {**changes, "sd_model_checkpoint": info.title}
        services.settings.update(changes, from_api=True)

    @routes.get("/cmd-flags")
    def flags() -> FlagsReply:
        """The command line; passwords and keys are hidden."""
        return FlagsReply(public_flags(services.flags, services.paths.as_flags()))

    return routes
