import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services, whole_api

ADDRESSES = count(1)
PATHS = ("/sdapi/v1/options", "/sdapi/v1/samplers", "/internal/ping", "/internal/engine", "/docs", "/openapi.json")


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    services = fake_services(tmp_path_factory.mktemp("data"), start=False, api_auth="me:secret,you:other")
    app = whole_api(services)
    app.include_router(page_routes(services))
    yield app
    services.dispatcher.close()


@pytest.fixture
def guarded(closed: FastAPI) -> Iterator[TestClient]:
    """A client with an address of its own: guesses from the others do not count for it."""
    with TestClient(closed, client=(f"10.0.0.{next(ADDRESSES)}", 1)) as client:
        yield client


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("header", [None, "", "Basic", "Basic !!!", "Bearer x", "Basic bWU6d3Jvbmc="])
def test_without_the_right_password_every_route_is_closed(guarded: TestClient, path: str, header: str | None) -> None:
    reply = guarded.get(path, headers={} if header is None else {"Authorization": header})
    assert reply.status_code == 401
    assert reply.headers["WWW-Authenticate"] == "Basic"
    assert "secret" not in reply.text


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("user", [("me", "secret"), ("you", "other")])
def test_with_the_right_password_it_opens(guarded: TestClient, path: str, user: tuple[str, str]) -> None:
    assert guarded.get(path, auth=user).status_code == 200


@pytest.mark.parametrize("header", ["", "Basic ", "Basic Og==", "Bearer x"])
def test_without_a_password_any_header_is_fine(client: TestClient, header: str) -> None:
    assert client.get("/sdapi/v1/options", headers={"Authorization": header}).status_code == 200


def test_a_route_behind_a_password_is_closed_for_posts_too(guarded: TestClient, tmp_path: Path) -> None:
    assert guarded.post("/sdapi/v1/txt2img", json={}).status_code == 401


def test_every_route_that_is_described_is_closed(guarded: TestClient) -> None:
    described = guarded.get("/openapi.json", auth=("me", "secret")).json()["paths"]
    routes = [(method, path) for path, operations in described.items() for method in operations]
    assert len(routes) > 40
    for method, path in routes:
        assert guarded.request(method, path).status_code == 401, (method, path)


def test_images_record_who_asked_for_them_where_the_settings_say_so(tmp_path: Path) -> None:
    services = fake_services(tmp_path, api_auth="me:secret,you:other")
    services.settings.update({"add_user_name_to_info": True})
    body = {"steps": 1, "width": 64, "height": 64}
    with TestClient(whole_api(services)) as client:
        reply = client.post("/sdapi/v1/txt2img", json=body, auth=("you", "other")).json()
    services.dispatcher.close()
    assert json.loads(reply["info"])["infotexts"][0].endswith(", User: you")
