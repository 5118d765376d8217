"""Page and scripts are sent compressed to those who take it; replies with images are not."""

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.testclient import TestClient

from modules.ui.app import compress

LONG = "<p>words and words</p>" * 500


@pytest.fixture
def client() -> TestClient:
    app = FastAPI()
    app.add_api_route("/page", lambda: HTMLResponse(LONG))
    app.add_api_route("/short", lambda: HTMLResponse("<p>x</p>"))
    app.add_api_route("/json", lambda: JSONResponse({"images": [LONG]}))
    app.add_api_route("/parts", lambda: StreamingResponse(iter([LONG, LONG]), media_type="text/html"))
    compress(app)
    return TestClient(app)


@pytest.mark.parametrize(("path", "text"), [("/page", LONG), ("/parts", LONG * 2)])
def test_html_is_compressed(client: TestClient, path: str, text: str) -> None:
    reply = client.get(path, headers={"Accept-Encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip" and reply.headers["vary"] == "Accept-Encoding"
    assert reply.num_bytes_downloaded < len(text) // 10
    assert reply.text == text


@pytest.mark.parametrize("path", ["/short", "/json"])
def test_short_pages_and_other_types_are_not(client: TestClient, path: str) -> None:
    assert "content-encoding" not in client.get(path, headers={"Accept-Encoding": "gzip"}).headers


def test_nobody_gets_what_they_do_not_take(client: TestClient) -> None:
    reply = client.get("/page", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in reply.headers and reply.text == LONG
