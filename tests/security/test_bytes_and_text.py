"""Bytes and texts that a stranger may send: each is refused with a sentence, early, and breaks nothing."""

import base64
import http.client
import io
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from modules.api.access import limits
from modules.api.access.limits import SlowHeadProtocol
from modules.images.metadata import read_metadata
from modules.services import Services
from modules.settings.store import SettingsStore
from modules.ui.routes.routes import page_routes
from tests.api.test_generation import SMALL
from tests.fakes import fake_services, whole_api

JSON = {"Content-Type": "application/json"}
UNREADABLE = "/sdapi/v1/png-info"


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    services = fake_services(tmp_path_factory.mktemp("data"))
    yield services
    services.dispatcher.close()


@pytest.fixture(scope="module")
def app(services: Services) -> FastAPI:
    app = whole_api(services)
    app.include_router(page_routes(services))
    return app


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture(scope="module")
def port(app: FastAPI) -> Iterator[int]:
    listener = socket.socket(proto=socket.IPPROTO_TCP)  # as webui.py's: replies are sent at once
    listener.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", http=SlowHeadProtocol))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join(10)


def nested(depth: int) -> bytes:
    return b'{"script_args": ' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b'{"prompt": "\\ud800"}', "prompt holds half of a surrogate pair"),
        (b'{"force_task_id": "a\\uDFFFb"}', "force_task_id holds half of a surrogate pair"),
        (b'{"alwayson_scripts": {"\\udbff": {"args": []}}}', "surrogate pair"),
        (nested(900), "nested deeper than 64"),
        (nested(100_000), "nested deeper than 64"),
        (b'{"prompt": "\xff"}', "not UTF-8 at byte 12"),
        (b'{"prompt": "\xed\xa0\x80"}', "not UTF-8"),
        ('{"prompt": "a"}'.encode("utf-16-le"), "may be UTF-16"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "a number of 5000 digits"),
        (b"{nope", "JSON"),
    ],
    ids=["prompt", "task", "name", "deep", "deeper", "latin", "bytes", "utf-16", "digits", "no-json"],
)
def test_json_that_is_no_clean_text_gets_a_sentence(client: TestClient, body: bytes, sentence: str) -> None:
    reply = client.post("/sdapi/v1/txt2img", content=body, headers=JSON)
    assert 400 <= reply.status_code < 500, reply.text
    assert sentence in reply.json()["errors"] and "error parsing the body" not in reply.text
    assert set(reply.json()) == {"error", "detail", "body", "errors"}


def test_paired_surrogates_and_harmless_depth_are_fine(client: TestClient) -> None:
    body = json.dumps({**SMALL, "prompt": "a \U0001f408 [a:b:0.5] " + "[" * 40, "comments": json.loads(nested(40))})
    reply = client.post("/sdapi/v1/txt2img", content=body.encode(), headers=JSON)
    assert reply.status_code == 200, reply.text
    assert "\\ud83d" in body  # json.dumps writes pairs of escapes


@pytest.mark.parametrize("text", ["\ud800", "a\0b"])
def test_settings_refuse_what_no_file_or_path_can_hold(client: TestClient, text: str) -> None:
    for key in ("outdir_txt2img_samples", "samples_filename_pattern"):
        reply = client.post("/sdapi/v1/options", content=json.dumps({key: text}), headers=JSON)
        assert reply.status_code == 422 and key in reply.json()["errors"], reply.text
    overrides = {"override_settings": {"outdir_samples": text}}
    reply = client.post("/sdapi/v1/txt2img", content=json.dumps({**SMALL, **overrides}), headers=JSON)
    assert reply.status_code == 422 and "outdir_samples" in reply.json()["errors"]
    assert client.get("/sdapi/v1/options").status_code == 200


def test_a_stored_half_character_is_repaired_and_named(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(b'{"samples_filename_pattern": "a\\ud800", "not ours": ["\\udc00", 1]}')
    store = SettingsStore(path)
    assert store.current["samples_filename_pattern"] == "a\ufffd"
    assert store.current.foreign == {"not ours": ["\ufffd", 1]}
    assert "samples_filename_pattern, not ours" in store.notices[0]
    store.update({"jpeg_quality": 70})
    assert json.loads(path.read_text(encoding="utf-8"))["samples_filename_pattern"] == "a\ufffd"


@pytest.mark.parametrize("name", ["红色 circle", 'quote " back \\ slash %41', "plain", "\udcff broken"])
def test_images_are_served_under_names_in_any_script(client: TestClient, services: Services, name: str) -> None:
    task = f"task({abs(hash(name))})"
    assert client.post("/sdapi/v1/txt2img", json={**SMALL, "force_task_id": task}).status_code == 200
    job = services.queue.known.get(task)
    image = job.result().images[0]
    object.__setattr__(image, "path", Path(f"/nowhere/{name}.png"))  # frozen, and made by the fake executor
    reply = client.get("/internal/image", params={"id_task": task, "index": 0})
    assert reply.status_code == 200, reply.text
    shown = reply.headers["content-disposition"]
    plain, _, encoded = shown.partition("; filename*=UTF-8''")
    assert unquote(encoded) == f"{name}.png".replace("\udcff", "?")
    assert plain.count('"') == 2 and plain.isascii() and "\\" not in plain


def test_a_prompt_of_too_many_parts_is_refused_at_once(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/txt2img", json={**SMALL, "prompt": " AND ".join(["a"] * 3001)})
    assert reply.status_code == 422 and "3001 parts joined by AND; allowed are 64" in reply.json()["errors"]


@pytest.mark.parametrize("parameters", ["a: b, " * 3_500_000, "x" * 21_000_000])
def test_texts_in_an_image_have_a_limit(client: TestClient, parameters: str) -> None:
    chunks = PngInfo()
    for part in range(0, len(parameters), 900_000):
        chunks.add_text("parameters" if part == 0 else f"more{part}", parameters[part : part + 900_000])
    stream = io.BytesIO()
    Image.new("RGB", (8, 8)).save(stream, "png", pnginfo=chunks)
    began = time.monotonic()
    reply = client.post(UNREADABLE, json={"image": to_base64_bytes(stream.getvalue())})
    assert reply.status_code == 422 and "21,000,000 characters of text" in reply.json()["errors"]
    assert time.monotonic() - began < 60
    assert read_metadata(Image.new("RGB", (8, 8))) == (None, {})


def to_base64_bytes(data: bytes) -> str:

    return base64.b64encode(data).decode()


def test_an_infotext_field_has_a_limit(client: TestClient) -> None:
    reply = client.post("/sdapi/v1/txt2img", json={"infotext": "a: b, " * 800_000})
    assert reply.status_code == 422 and "4,800,000 characters" in reply.json()["errors"]


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "multipart/form-data; boundary=x"])
def test_a_chunked_body_is_stopped_where_the_limit_is(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(limits, "MAX_BODY_BYTES", 1024**2)
    sent = 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(64):
            sent += 2**16
            yield b" " * 2**16

    reply = client.post(UNREADABLE, content=chunks(), headers={"Content-Type": kind})
    assert reply.status_code == 413, reply.text
    assert "goes on; allowed are 1 MB" in reply.json()["errors"] and reply.headers["connection"] == "close"


def exchange(port: int, head: bytes, drip: bytes, every_s: float, at_most_s: float) -> tuple[bytes, float]:
    """Send `head`, then one byte of `drip` again and again; what came back, and after how long the server closed."""
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", port), timeout=every_s) as connection:
        connection.sendall(head)
        received = b""
        while time.monotonic() - began < at_most_s:
            try:
                if not received:  # what is sent to a closed connection takes the rest of the reply away
                    connection.sendall(drip)
                part = connection.recv(65536)
            except TimeoutError:
                continue
            except OSError:
                return received, time.monotonic() - began
            if not part:
                return received, time.monotonic() - began
            received += part
    raise AssertionError(f"the connection is still open after {at_most_s} s; it got {received[:200]!r}")


@pytest.mark.parametrize("kind", [b"application/json", b"text/plain"])
def test_a_slow_body_is_given_up(port: int, monkeypatch: pytest.MonkeyPatch, kind: bytes) -> None:
    monkeypatch.setattr(limits, "BODY_WAIT_S", 0.3)
    head = b"POST /sdapi/v1/png-info HTTP/1.1\r\nHost: localhost\r\nContent-Type: " + kind
    reply, _ = exchange(port, head + b"\r\nContent-Length: 1000\r\n\r\n", b" ", 0.05, 60)
    assert reply.startswith(b"HTTP/1.1 408") and b"too slowly" in reply


def test_a_slow_head_is_given_up_and_quick_ones_are_not(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_WAIT_S", 0.3)
    assert exchange(port, b"GET /internal/ping HTTP/1.1\r\n", b"x", 0.05, 60)[0] == b""
    assert exchange(port, b"", b"", 0.05, 60)[0] == b""  # a connection that says nothing
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for _ in range(3):
        connection.request("GET", "/internal/ping")
        assert connection.getresponse().read() == b"{}"
        time.sleep(0.2)
    connection.close()


def test_a_long_job_outlives_the_limits_of_slow_senders(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEAD_WAIT_S", 0.2)
    monkeypatch.setattr(limits, "BODY_WAIT_S", 0.2)
    body: dict[str, Any] = {**SMALL, "prompt": "slow", "steps": 20}
    data = json.dumps(body).encode()
    head = "POST /sdapi/v1/txt2img HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(head.encode() + data)
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
