"""One list of users for page and API: whoever may open the page may call the API, and nobody else."""

from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.access import Access, Users, access_of
from modules.api.app import build_api
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.ui.routes.routes import page_routes
from tests.fakes import fake_services, mounted_page

PATHS = ("/sdapi/v1/options", "/internal/ping", "/internal/engine", "/docs", "/openapi.json")


@pytest.mark.parametrize("way", ["--gradio-auth", "--gradio-auth-path"])
def test_users_of_the_page_guard_the_api_too(tmp_path: Path, way: str) -> None:
    file = tmp_path / "users.txt"
    file.write_text("me:secret\n\nyou:other, third:pass\n", encoding="utf-8")
    flag = {"gradio_auth": "me:secret"} if way == "--gradio-auth" else {"gradio_auth_path": str(file)}
    services = fake_services(tmp_path / "data", start=False, **flag)
    app = build_api(services)
    app.include_router(page_routes(services))
    with TestClient(app) as client:
        for path in PATHS:
            assert client.get(path).status_code == 401
            assert client.get(path, auth=("me", "wrong")).status_code == 401
            assert client.get(path, auth=("me", "secret")).status_code == 200
        shown = client.get("/sdapi/v1/cmd-flags", auth=("me", "secret"))
        assert "secret" not in shown.text
    services.dispatcher.close()


def test_a_login_on_the_page_opens_the_api(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, gradio_auth="me:secret")
    app = mounted_page(services)
    with TestClient(app) as client:
        assert client.post("/login", data={"username": "me", "password": "wrong"}).status_code == 400
        assert client.get("/internal/engine").status_code == 401
        assert client.post("/login", data={"username": "me", "password": "secret"}).status_code == 200
        assert all(client.get(path).status_code == 200 for path in PATHS)
        client.cookies.clear()
        assert client.get("/internal/engine", headers={"Cookie": "access-token-x=y"}).status_code == 401
    services.dispatcher.close()


def test_users_of_the_page_do_not_get_an_api_with_its_own_users(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, gradio_auth="me:secret", api_auth="robot:key")
    app = mounted_page(services)
    with TestClient(app) as client:
        assert client.get("/sdapi/v1/options", auth=("me", "secret")).status_code == 401
        assert client.get("/sdapi/v1/options", auth=("robot", "key")).status_code == 200
        client.post("/login", data={"username": "me", "password": "secret"})
        assert client.get("/internal/engine").status_code == 200
        assert client.get("/sdapi/v1/options").status_code == 401
        assert client.get("/sdapi/v1/loras").status_code == 401  # an extension's, among the API's
        assert client.get("/sdapi/v1/loras", auth=("robot", "key")).status_code == 200
    services.dispatcher.close()


def test_a_path_before_every_route_opens_nothing(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, api_auth="me:secret")
    with TestClient(build_api(services), root_path="/sub") as client:
        assert client.get("/sub/sdapi/v1/options").status_code == 401
        assert client.get("/sdapi/v1/options").status_code == 401
        assert client.get("/sub/sdapi/v1/options", auth=("me", "secret")).status_code == 200
    services.dispatcher.close()


@pytest.mark.parametrize("text", ["", "\n", "nobody\n", ":secret\n"])
def test_a_file_without_users_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "users.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidValueError, match="user"):
        access_of(Flags(gradio_auth_path=str(file)))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="cannot be read"):
        access_of(Flags(gradio_auth_path=str(tmp_path / "nothing.txt")))


def test_passwords_may_hold_colons_and_are_not_printed() -> None:
    users = Users((("me", "se:cret"),))
    assert users.accepts("me", "se:cret") and not users.accepts("me", "se") and not users.accepts("", "")
    assert "cret" not in repr(Access(users, users))
