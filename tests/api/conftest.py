"""A server with the fake executor, in process and over a real socket."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.services import Services
from modules.ui.extras_routes import extras_routes
from modules.ui.routes import page_routes
from tests.fakes import fake_services, whole_api


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def app(services: Services) -> FastAPI:
    app = whole_api(services)
    app.include_router(page_routes(services))
    app.include_router(extras_routes(services))
    return app


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
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
