"""The server: builds the objects, wires page and API onto one FastAPI app, serves. No logic."""

import logging
import socket
import sys
import threading
import webbrowser

import uvicorn
from fastapi import FastAPI

from modules.assembly import build_services
from modules.cli.browser import opens_browser
from modules.devices import freeze_gc
from modules.errors import FeatherweightError, InvalidValueError
from modules.flags.flags import Flags
from modules.processing.engine.chosen_checkpoint import stored_checkpoint
from modules.scripts.callbacks import Moment
from modules.services import Services

log = logging.getLogger("featherweight")


def main(flags: Flags) -> int:
    """Serve until stopped; returns the exit code."""
    logging.basicConfig(level=flags.loglevel or "INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        listener = bind(flags)
        services = build_services(flags)
    except FeatherweightError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 1
    try:
        return serve(services, listener)
    finally:
        listener.close()
        services.scripts.callbacks.call(Moment.SCRIPT_UNLOADED)
        services.tasks.close()
        services.queue.close()


def bind(flags: Flags) -> socket.socket:
    """The listening socket, before anything slow happens; `InvalidValueError` when the port is taken."""
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((flags.host, flags.port))
    except OSError as error:
        listener.close()
        raise InvalidValueError(
            f"Port {flags.port} on {flags.host} cannot be used ({error.strerror}). Perhaps Featherweight runs already: "
            f"look at http://{flags.host}:{flags.port}, or choose another port with --port."
        ) from error
    return listener


def serve(services: Services, listener: socket.socket) -> int:
    """Run uvicorn on the socket; the model loads behind the page."""
    flags = services.flags
    stop = threading.Event()
    server = uvicorn.Server(
        uvicorn.Config(
            build_app(services, stop),
            log_level="info" if flags.api_log else "warning",
            timeout_keep_alive=flags.timeout_keep_alive,
            ssl_keyfile=flags.tls_keyfile,
            ssl_certfile=flags.tls_certfile,
            root_path=f"/{flags.subpath.strip('/')}" if flags.subpath else "",
        )
    )
    freeze_gc()
    threading.Thread(target=_stop_when, args=(stop, server), daemon=True).start()
    services.queue.start()
    if not (flags.skip_load_model_at_start or flags.ui_debug_mode):
        wanted = stored_checkpoint(services.settings.current, services.catalogue)
        if wanted.notice:
            log.warning("%s", wanted.notice)
        services.engine.request_load(wanted.name)
    for notice in services.settings.notices:
        log.warning("%s", notice)
    scheme = "https" if flags.tls_certfile else "http"
    address = f"{scheme}://{'127.0.0.1' if flags.host in ('0.0.0.0', '::') else flags.host}:{flags.port}"
    print(f"Featherweight is at {address}", flush=True)
    if opens_browser(flags, services.settings.current.system.auto_launch_browser):
        webbrowser.open(address)
    server.run(sockets=[listener])
    return 0


def build_app(services: Services, stop: threading.Event) -> FastAPI:
    """API and page on one app; API routes come first, because the page answers every other path."""
    from modules.api.app import build_api
    from modules.api.extensions import add_extension_routes

    app = build_api(services, on_stop=stop.set)
    if services.flags.nowebui:
        add_extension_routes(app, services.scripts.callbacks, None)
        return app
    from modules.ui.app import mount_page

    return mount_page(app, services)


def _stop_when(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True
