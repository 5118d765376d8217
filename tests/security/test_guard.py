"""What a stranger's web page can do with a server that the user's browser reaches: nothing."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from modules.access.throttle import OF_PAIR
from modules.api.access.guard import Names, Origins, install_guard, page_policy
from modules.api.access.proxies import Proxies
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.services import Services
from tests.cases import for_each
from tests.fakes import fake_services, mounted_page, whole_api

EVIL = "http://evil.example"
READING = (
    "/sdapi/v1/cmd-flags",
    "/sdapi/v1/options",
    "/internal/engine",
    "/config",
    "/openapi.json",
    "/gradio_api/info",
)
BODYLESS = ("/sdapi/v1/interrupt", "/sdapi/v1/skip", "/sdapi/v1/unload-checkpoint", "/internal/clear-queue")
CORS = "access-control-allow-origin"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def page(services: Services) -> Iterator[TestClient]:
    """Page and API behind the guard, called as on this machine."""
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)
    with TestClient(app, base_url="http://127.0.0.1:7860") as client:
        yield client


def guarded(data: Path, **flags: object) -> tuple[TestClient, Services]:
    services = fake_services(data, start=False, **flags)
    app = whole_api(services)
    install_guard(app, services.flags, services.access)
    return TestClient(app, base_url="http://127.0.0.1:7860"), services


def test_a_proxy_may_leave_the_subpath_on(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, api_auth="me:secret")
    app = whole_api(services)
    install_guard(app, services.flags, services.access)
    # The server puts its own path before what a proxy asks for.
    with TestClient(app, root_path="/a/sd", base_url="http://127.0.0.1:7860", follow_redirects=False) as client:
        for path in ("/a/sd/sdapi/v1/options", "/a/sd/a/sd/sdapi/v1/options"):
            assert client.get(path).status_code == 401
            assert client.get(path, auth=("me", "secret")).status_code == 200
            reply = client.get(f"{path}/", auth=("me", "secret"))
            assert (reply.status_code, reply.headers["Location"]) == (307, "../options")
        reply = client.get("/a/sd/a/sd")
        assert (reply.status_code, reply.headers["Location"]) == (307, "sd/")
        assert client.get("/a/sd/a/sdapi/v1/options", auth=("me", "secret")).status_code == 404
    services.dispatcher.close()


@for_each("path", READING)
@for_each("host", ["evil.example", "evil.example:7860", "192.168.1.5", "127.0.0.1.evil.example", ""])
def test_after_dns_rebinding_nothing_is_told(page: TestClient, path: str, host: str) -> None:
    reply = page.get(path, headers={"Host": host})
    assert reply.status_code == 403 and "--allow-host" in reply.json()["errors"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:7860", "[::1]:7860", "LOCALHOST:1", "127.9.9.9"])
def test_loopback_names_are_this_server(page: TestClient, host: str) -> None:
    assert page.get("/internal/ping", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("path", BODYLESS)
@pytest.mark.parametrize(
    "headers",
    [{"Origin": EVIL}, {"Origin": "null"}, {"Origin": "http://127.0.0.1:3000"}, {"Sec-Fetch-Site": "cross-site"}],
)
def test_foreign_pages_change_nothing(page: TestClient, path: str, headers: dict[str, str]) -> None:
    assert page.post(path, headers=headers).status_code == 403


@for_each("path", [*READING, "/internal/image?id_task=x&index=0"])
@for_each("dest", ["image", "script", "iframe", "empty"])
def test_foreign_pages_embed_nothing(page: TestClient, path: str, dest: str) -> None:
    mode = "navigate" if dest == "iframe" else "no-cors"
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
    assert page.get(path, headers=headers).status_code == 403


def test_a_link_to_the_page_may_be_followed(page: TestClient) -> None:
    headers = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert page.get("/", headers=headers).status_code == 200


@for_each("path", ["/sdapi/v1/options", "/sdapi/v1/txt2img", "/gradio_api/run/predict", "/config", "/"])
@for_each("host", ["127.0.0.1:7860", "localhost:7860", "[::1]:7860"])
@for_each("origin", [EVIL, "null"])
def test_no_cors_answer_is_given(page: TestClient, path: str, host: str, origin: str) -> None:
    asking = {"Host": host, "Origin": origin, "Access-Control-Request-Method": "POST"}
    for reply in (page.options(path, headers=asking), page.get(path, headers={"Host": host, "Origin": origin})):
        assert reply.status_code == 403
        assert CORS not in reply.headers and "access-control-allow-credentials" not in reply.headers


def test_gradio_gives_no_cors_answer_to_the_page_itself_either(page: TestClient) -> None:
    reply = page.get("/config", headers={"Origin": "http://127.0.0.1:7860"})
    assert reply.status_code == 200
    assert not [name for name in reply.headers if name.startswith("access-control")]


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"])
@pytest.mark.parametrize("path", ["/sdapi/v1/options", "/sdapi/v1/interrupt", "/gradio_api/run/predict"])
def test_form_bodies_are_refused_where_json_is_expected(page: TestClient, kind: str, path: str) -> None:
    reply = page.post(path, content=b'{"jpeg_quality": 1}', headers={"Content-Type": kind})
    assert reply.status_code == 415 and "application/json" in reply.json()["errors"]


def test_the_page_and_programs_work_as_before(page: TestClient, services: Services) -> None:
    browser = {"Origin": "http://127.0.0.1:7860", "Sec-Fetch-Site": "same-origin"}
    assert page.post("/sdapi/v1/options", json={"jpeg_quality": 77}, headers=browser).status_code == 200
    assert services.settings.current.saving.jpeg_quality == 77
    body = {"steps": 1, "width": 64, "height": 64}
    assert len(page.post("/sdapi/v1/txt2img", json=body).json()["images"]) == 1
    assert page.post("/sdapi/v1/interrupt").status_code == 200
    upload = page.post("/gradio_api/upload", files={"files": ("a.txt", b"x")}, headers=browser)
    assert upload.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("queue/join", {"data": [], "fn_index": -1, "session_hash": "a"}),
        ("queue/join", {"data": [], "fn_index": 10**30, "session_hash": "a"}),
        ("run/predict", {"data": [], "fn_index": 10**9}),
        ("run/predict", {"data": []}),
        ("api/predict", {"data": [], "fn_index": 10**9}),
        ("call/no-such-name", {"data": []}),
        ("call/v2/no-such-name", {}),
        ("call/v2/choose", {"no such argument": 1}),
        ("component_server", {"data": {}, "fn_name": "x", "component_id": 10**9, "session_hash": "a"}),
    ],
)
def test_calls_of_the_page_that_name_no_function_are_told_so(page: TestClient, path: str, body: object) -> None:
    reply = page.post(f"/gradio_api/{path}", json=body)
    assert reply.status_code == 404 and "reload the page" in reply.json()["errors"]


@pytest.mark.parametrize("path", ["call/x/x", "call/v2/x/x", "call/choose/0"])
def test_the_stream_of_a_call_that_nobody_made_is_not_found(page: TestClient, path: str) -> None:
    reply = page.get(f"/gradio_api/{path}")
    assert reply.status_code == 404 and "reload the page" in reply.json()["errors"]


def test_origins_of_the_flag_may_call(tmp_path: Path) -> None:
    client, services = guarded(tmp_path, cors_allow_origins="http://friend.example, http://other.example/")
    for origin, status in (("http://friend.example", 200), ("http://other.example", 200), (EVIL, 403)):
        reply = client.get("/sdapi/v1/options", headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})
        assert reply.status_code == status
        assert reply.headers.get(CORS) == (origin if status == 200 else None)
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        assert client.options("/sdapi/v1/txt2img", headers=asked).status_code == status
    services.dispatcher.close()


def test_a_name_of_the_flag_is_this_server_and_its_origin(tmp_path: Path) -> None:
    client, services = guarded(tmp_path, allow_host=("Pictures.example",))
    headers = {"Host": "pictures.example", "Origin": "https://pictures.example"}
    assert client.post("/sdapi/v1/interrupt", headers=headers).status_code == 200
    proxied = {"Host": "127.0.0.1:7860", "Origin": "https://pictures.example"}
    assert client.post("/sdapi/v1/interrupt", headers=proxied).status_code == 200
    services.dispatcher.close()


@pytest.mark.parametrize(
    ("listen", "host", "is_ours"),
    [
        (True, "192.168.1.5:7860", True),
        (True, "[fe80::1]:7860", True),
        (True, "evil.example", False),
        (False, "192.168.1.5", False),
        (False, "user@127.0.0.1", True),
        (False, "127.0.0.1@evil.example", False),
        (False, "::1]", False),
    ],
)
def test_addresses_cannot_be_rebound_but_names_can(listen: bool, host: str, is_ours: bool) -> None:
    assert Names.of(Flags(listen=listen)).includes(host) is is_ours


def test_cookies_are_strict(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, gradio_auth="me:secret")
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)
    with TestClient(app, base_url="http://127.0.0.1:7860") as client:
        reply = client.post("/login", data={"username": "me", "password": "secret"})
        cookies = reply.headers.get_list("set-cookie")
        assert len(cookies) == 1
        assert all(re.findall("(?i)samesite=[a-z]*", cookie) == ["SameSite=Strict"] for cookie in cookies), cookies
        assert client.get("/internal/engine").status_code == 200
    services.dispatcher.close()


def test_guesses_are_throttled(tmp_path: Path) -> None:
    client, services = guarded(tmp_path, api_auth="me:secret")
    for _ in range(OF_PAIR.free):
        assert client.get("/sdapi/v1/options", auth=("me", "wrong")).status_code == 401
    reply = client.get("/sdapi/v1/options", auth=("me", "secret"))
    assert reply.status_code == 429 and int(reply.headers["Retry-After"]) == 1
    assert client.get("/sdapi/v1/options").status_code == 401  # who guesses nothing is only told
    services.dispatcher.close()


def test_guesses_at_the_login_page_are_throttled(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, gradio_auth="me:secret")
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)
    with TestClient(app, base_url="http://127.0.0.1:7860") as client:
        for _ in range(OF_PAIR.free):
            assert client.post("/login", data={"username": "me", "password": "wrong"}).status_code == 400
        assert client.post("/login", data={"username": "me", "password": "secret"}).status_code == 429
    services.dispatcher.close()


def test_the_token_opens_and_nothing_else_does(tmp_path: Path) -> None:
    client, services = guarded(tmp_path, listen=True, access_token="sesame")
    assert client.get("/internal/ping").status_code == 401
    assert client.get("/internal/ping?token=wrong").status_code == 401
    assert client.get("/internal/ping", headers={"Authorization": "Bearer sesame"}).status_code == 200
    assert client.get("/internal/ping?token=sesame").status_code == 200
    visit = client.get("/docs?token=sesame&x=1", headers={"Accept": "text/html"})
    assert "url=?x=1" in visit.text and "sesame" not in visit.text
    assert "HttpOnly" in visit.headers["set-cookie"] and "SameSite=strict" in visit.headers["set-cookie"]
    assert client.get("/internal/ping").status_code == 200  # the cookie
    assert "sesame" not in json.dumps(client.get("/sdapi/v1/cmd-flags").json())
    services.dispatcher.close()


def test_a_token_that_is_not_given_is_drawn(tmp_path: Path) -> None:
    services = fake_services(tmp_path, start=False, listen=True, access_token="")
    assert len(services.access.token) >= 20 and services.access.token not in repr(services.access)
    services.dispatcher.close()


# -- proxies and pages -------------------------------------------------------------------------------------------------


def heard(peer: str, *trusted: str, **headers: str) -> tuple[str, str, dict[str, str]]:
    """Client, scheme and forwarded headers of a request from `peer`, as what lies behind the guard sees them."""
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "scheme": "http", "client": (peer, 1), "headers": pairs}
    found = Proxies(trusted).heard(scope, lambda host: host == "own.example")
    left = {name.decode(): value.decode() for name, value in found["headers"]}
    return found["client"][0], found["scheme"], left


def test_forwarded_headers_count_only_from_addresses_that_a_flag_names() -> None:
    sent = {"x_forwarded_for": "1.2.3.4", "x_forwarded_proto": "https", "x_forwarded_host": "own.example"}
    assert heard("127.0.0.1", **sent, forwarded="for=1.2.3.4") == ("127.0.0.1", "http", {})
    address, scheme, left = heard("127.0.0.1", "127.0.0.1", **sent)
    assert (address, scheme, left["x-forwarded-host"]) == ("1.2.3.4", "https", "own.example")
    # What the sender put before the proxy's own entry is not believed.
    assert heard("10.0.0.9", "10.0.0.0/8", x_forwarded_for="9.9.9.9, 1.2.3.4, 10.0.0.3")[0] == "1.2.3.4"
    assert heard("10.0.0.9", "10.0.0.0/8", x_forwarded_host="evil.example")[2] == {}
    with pytest.raises(InvalidValueError, match="--trusted-proxy nonsense is no address"):
        Proxies(("nonsense",))


def test_guesses_with_other_forwarded_addresses_are_throttled(tmp_path: Path) -> None:
    client, services = guarded(tmp_path, api_auth="me:secret")
    codes = [
        client.get(
            "/sdapi/v1/options", auth=("me", "wrong"), headers={"X-Forwarded-For": f"1.2.3.{number}"}
        ).status_code
        for number in range(OF_PAIR.free + 1)
    ]
    assert codes == [401] * OF_PAIR.free + [429]
    services.dispatcher.close()


def test_a_forwarded_host_is_not_the_pages_root(page: TestClient) -> None:
    root = page.get("/config", headers={"X-Forwarded-Host": "evil.example", "X-Forwarded-Proto": "https"}).json()[
        "root"
    ]
    assert root == "http://127.0.0.1:7860"


def test_pages_say_what_they_load_and_who_may_show_them(page: TestClient, tmp_path: Path) -> None:
    reply = page.get("/", headers={"Accept": "text/html"})
    assert reply.headers["x-frame-options"] == "SAMEORIGIN"
    policy = reply.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "frame-ancestors 'self'" in policy and "object-src 'none'" in policy
    assert "content-security-policy" not in page.get("/sdapi/v1/samplers").headers
    assert page_policy(Origins(("https://own.example",))).endswith("frame-ancestors 'self' https://own.example")
