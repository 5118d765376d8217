"""The server itself: memory, the loaded model, stopping."""

from collections.abc import Callable

from fastapi import APIRouter
from starlette.exceptions import HTTPException

from modules.api.schema.documentation import documented
from modules.api.schema.reply_models import MemoryReply, Nothing
from modules.services import Services

NO_MODEL = "There is no checkpoint. Put a .safetensors file into models/Stable-diffusion."
NO_RESTART = "This server cannot restart itself: stop it and start it again."


def server_routes(services: Services, on_stop: Callable[[], None] | None) -> APIRouter:
    """Memory and model routes; the stop routes only with --api-server-stop."""
    routes = APIRouter(prefix="/sdapi/v1", tags=["server"])

    @routes.get("/memory")
    def memory() -> MemoryReply:
        """Bytes of main memory and of the GPU."""
        return MemoryReply.model_validate(services.models.memory())

    @routes.post("/unload-checkpoint")
    def unload() -> Nothing:
        """Free the model; waits for a running image."""
        services.models.unload()
        return Nothing()

    @routes.post("/reload-checkpoint", **documented(errors={404: NO_MODEL}))
    def reload() -> Nothing:
        """Load the model again; waits until it is there."""
        services.models.reload()
        return Nothing()

    if services.flags.api_server_stop or services.flags.add_stop_route:

        def stop() -> str:
            """Stop the server after this reply."""
            if on_stop is not None:
                on_stop()
            return "Stopping."

        routes.post("/server-stop", **documented("Stopping."))(stop)
        routes.post("/server-kill", **documented("Stopping."))(stop)

        @routes.post("/server-restart", **documented(errors={501: NO_RESTART}))
        def restart() -> None:
            """Not built: restarting needs a supervisor, which this program is not."""
            raise HTTPException(501, NO_RESTART)

    return routes
