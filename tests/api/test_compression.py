"""HTML is sent compressed to those who take it, and nothing else is touched."""

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, PlainTextResponse, StreamingResponse
from fastapi.testclient import TestClient

from modules.api.compression import CompressHtml

LONG = "<p>words and words</p>" * 500


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.add_api_route("/page", lambda: HTMLResponse(LONG))
    app.add_api_route("/short", lambda: HTMLResponse("<p>x</p>"))
    app.add_api_route("/text", lambda: PlainTextResponse(LONG))
    app.add_api_route("/parts", lambda: StreamingResponse(iter([LONG, LONG]), media_type="text/html"))
    app.add_middleware(CompressHtml)
    return TestClient(app)


@pytest.mark.parametrize(("path", "text"), [("/page", LONG), ("/parts", LONG * 2)])
def test_html_is_compressed(client: TestClient, path: str, text: str) -> None:
    reply = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip" and reply.headers["vary"] == "Accept-Encoding"
    assert int(reply.headers.get("content-length", 0)) < len(text) // 10
    assert reply.text == text


@pytest.mark.parametrize("path", ["/short", "/text"])
def test_short_pages_and_other_types_are_not(client: TestClient, path: str) -> None:
    assert "content-encoding" not in client.get(path, headers={"Accept-Encoding": "gzip"}).headers


def test_nobody_gets_what_they_do_not_take(client: TestClient) -> None:
    reply = client.get("/page", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in reply.headers and reply.text == LONG
