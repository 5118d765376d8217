"""Servers over a real socket, one open and one behind a password."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import uvicorn

from modules.services import Services
from tests.fakes import fake_services, whole_api


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def port(services: Services) -> Iterator[int]:
    with serving(services) as port:
        yield port


@pytest.fixture(scope="module")
def guarded_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    services = fake_services(tmp_path_factory.mktemp("guarded"), gradio_auth="me:secret")
    with serving(services) as port:
        yield port
    services.dispatcher.close()


@contextmanager
def serving(services: Services) -> Iterator[int]:
    """The port of a server that runs while the context does."""
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(whole_api(services), log_level="error"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)
