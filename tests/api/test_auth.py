from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.api.app import build_api
from modules.ui.routes import page_routes
from tests.fakes import fake_services

PATHS = ("/sdapi/v1/options", "/sdapi/v1/samplers", "/internal/ping", "/internal/engine", "/docs", "/openapi.json")


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    services = fake_services(tmp_path_factory.mktemp("data"), start=False, api_auth="me:secret,you:other")
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:
        yield client
    services.queue.close()


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
