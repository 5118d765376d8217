"""One server with the fake executor for all files of a process, in process and over a real socket."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.services import Services
from modules.ui.routes.extras_routes import extras_routes
from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services, settings_kept, whole_api


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()
    services.history.close()


@pytest.fixture(scope="module")
def services(program: Services) -> Iterator[Services]:
    """The shared program; settings and line are put back for the next file."""
    with settings_kept(program):
        yield program
    program.queue.clear()
    program.queue.pause(False)


@pytest.fixture(scope="session")
def app(program: Services) -> FastAPI:
    app = whole_api(program)
    app.include_router(page_routes(program))
    app.include_router(extras_routes(program))
    return app


@pytest.fixture(scope="session")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="session")
def port(app: FastAPI) -> Iterator[int]:
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
