"""The server: builds the objects, wires page and API onto one FastAPI app, serves. No logic."""

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from urllib.parse import quote

import uvicorn
from fastapi import FastAPI

from modules.access import check_protected
from modules.api.access.limits import SlowHeadProtocol
from modules.assembly import ROOT, build_services
from modules.cli.browser import opens_browser
from modules.errors import FeatherweightError, InvalidValueError
from modules.flags.flags import Flags
from modules.jobs.dispatch import Dispatcher
from modules.jobs.restart import Restart
from modules.jobs.when_done import DoneActions
from modules.processing.engine.chosen_checkpoint import store_first_loaded, stored_checkpoint
from modules.scripts.callbacks import Moment
from modules.services import ForeignProgram, Services
from modules.system.devices import freeze_gc
from modules.system.folder_lock import FolderLock
from modules.system.lean_imports import import_when_used, without_garbage_collection
from modules.system.paths import resolve_paths

log = logging.getLogger("featherweight")

JOB_ENDS_S = 2.5  # how long the running job may take to notice that it shall stop
REQUESTS_END_S = 1
END_S = 4.5
DEFAULT_WORKERS = 1


def main(flags: Flags, foreign: ForeignProgram | None = None) -> int:
    """Serve until stopped; returns the exit code. `foreign`: what loads extensions of another program."""
    logging.basicConfig(level=flags.loglevel or "INFO", format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with ExitStack() as opened:
        try:
            check_protected(flags)
            listener = opened.enter_context(bind(flags))
            lock = FolderLock(resolve_paths(flags, ROOT).data_dir, f"port {flags.port}")
            opened.callback(lock.close)
            began = time.monotonic()
            services = build_services(with_workers(flags), foreign=foreign)
            services.startup_s["settings, folders and scripts"] = time.monotonic() - began
        except FeatherweightError as error:
            print(f"Error: {error}", file=sys.stderr)
            return 1
        opened.callback(services.history.close)
        opened.callback(services.spool.close)
        opened.callback(services.dispatcher.close)
        opened.callback(services.scripts.callbacks.call, Moment.SCRIPT_UNLOADED)
        return serve(services, listener)


def with_workers(flags: Flags) -> Flags:
    """The flags with as many workers as a server has where nothing else is said."""
    return flags if flags.workers is not None else replace(flags, workers=DEFAULT_WORKERS)


def bind(flags: Flags) -> socket.socket:
    """The listening socket, before anything slow happens; `InvalidValueError` when the port is taken."""
    family = socket.AF_INET6 if ":" in flags.host else socket.AF_INET
    # asyncio sends at once (TCP_NODELAY) only where the socket says that it is TCP. Else the body of each reply on a
    # connection that is kept waits 40 ms for the browser to acknowledge the headers.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
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
    began = time.monotonic()
    import_when_used("pandas")  # Gradio names it, for values that the page has none of
    with without_garbage_collection():
        app = build_app(services, stop)
    services.startup_s["page and API"] = time.monotonic() - began
    config = uvicorn.Config(
        app,
        log_level="info" if flags.api_log else "warning",
        http=SlowHeadProtocol,
        proxy_headers=False,  # the guard hears those of trusted proxies
        timeout_keep_alive=flags.timeout_keep_alive,
        timeout_graceful_shutdown=REQUESTS_END_S,
        ssl_keyfile=flags.tls_keyfile,
        ssl_certfile=flags.tls_certfile,
        root_path=f"/{flags.subpath.strip('/')}" if flags.subpath else "",
    )
    server = Server(config, services.dispatcher)
    freeze_gc()
    threading.Thread(target=_stop_when, args=(stop, server), daemon=True).start()
    restored = Restart(services.queue).restore()
    if restored:
        log.warning("%d jobs of the last start wait in line%s.", restored, ", paused" * services.queue.is_paused)
    services.engine.on_loaded(lambda model: store_first_loaded(services.settings, services.catalogue, model.info))
    services.dispatcher.on_done(
        DoneActions(
            unload=services.models.unload,
            exit=stop.set,
            command=lambda: services.settings.current.system.queue_done_command,
        )
    )
    services.workers.start()
    services.dispatcher.start()
    services.history.importer.start()
    services.spool.start()
    if not (flags.skip_load_model_at_start or flags.ui_debug_mode):
        wanted = stored_checkpoint(services.settings.current, services.catalogue)
        if wanted.notice:
            log.warning("%s", wanted.notice)
        services.models.request_load(wanted.name)
    for notice in services.notices:
        log.warning("%s", notice)
    scheme = "https" if flags.tls_certfile else "http"
    host = "127.0.0.1" if flags.host in ("0.0.0.0", "::") else flags.host
    address = f"{scheme}://{f'[{host}]' if ':' in host else host}:{flags.port}"
    if services.access.token:
        address += f"/?token={quote(services.access.token)}"
    print(f"Featherweight is at {address}", flush=True)
    if opens_browser(flags, services.settings.current.system.auto_launch_browser):
        webbrowser.open(address)
    server.run(sockets=[listener])
    return 0


def build_app(services: Services, stop: threading.Event) -> FastAPI:
    """API and page on one app; API routes come first, because the page answers every other path."""
    from modules.api.access.guard import install_guard
    from modules.api.app import build_api
    from modules.api.program.extensions import add_extension_routes

    app = build_api(services, on_stop=stop.set)
    if services.flags.nowebui:
        add_extension_routes(app, services.scripts.callbacks, None)
    else:
        from modules.ui.app import mount_page

        app = mount_page(app, services)
    install_guard(app, services.flags, services.access)
    return app


class Server(uvicorn.Server):
    """Ends within seconds: first the queue, so that requests that wait for their jobs are answered, then the rest.

    Whatever still computes after that is cut off; what was finished is saved by then, and the record names the rest.
    """

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher) -> None:
        super().__init__(config)
        self._dispatcher = dispatcher

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals end the server in order; unlike uvicorn's own, they are not sent again afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the queue, then the connections; a step that takes longer than all of that is cut off."""
        cut_off = threading.Timer(END_S, os._exit, [0])
        cut_off.daemon = True
        cut_off.start()
        await asyncio.to_thread(self._dispatcher.close, JOB_ENDS_S)
        await super().shutdown(sockets)


def _stop_when(stop: threading.Event, server: uvicorn.Server) -> None:
    stop.wait()
    server.should_exit = True


def __getattr__(name: str) -> object:
    """What extensions import from here, as the reference UI had it: `webui.wrap_gradio_gpu_call`."""
    if name.startswith("__"):  # asked by Python itself while it imports
        raise AttributeError(name)
    from compat.facades import call_queue

    return getattr(call_queue, name)
