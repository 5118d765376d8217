"""Page and scripts are sent compressed to those who take it; replies with images are not. The page stays small."""

import urllib.request

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from fastapi.testclient import TestClient

from modules.ui.page.compression import compress
from modules.ui.page.page_styles import ROOT, below_root
from modules.ui.page.plain_events import KEEP_PLAIN, PageStart, PlainEventsMiddleware

MAX_PAGE_BYTES = 60_000
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


@pytest.mark.parametrize(
    ("accepted", "coding"), [("gzip", "gzip"), ("gzip, deflate, br, zstd", "br"), ("gzip;q=0.5, br;q=0", "gzip")]
)
@pytest.mark.parametrize(("path", "text"), [("/page", LONG), ("/parts", LONG * 2)])
def test_html_is_compressed(client: TestClient, path: str, text: str, accepted: str, coding: str) -> None:
    reply = client.get(path, headers={"Accept-Encoding": accepted})
    assert reply.headers["content-encoding"] == coding and reply.headers["vary"] == "Accept-Encoding"
    assert reply.num_bytes_downloaded < len(text) // 10
    assert reply.text == text


@pytest.mark.parametrize("path", ["/short", "/json"])
def test_short_pages_and_other_types_are_not(client: TestClient, path: str) -> None:
    assert "content-encoding" not in client.get(path, headers={"Accept-Encoding": "gzip"}).headers


def test_nobody_gets_what_they_do_not_take(client: TestClient) -> None:
    reply = client.get("/page", headers={"Accept-Encoding": "identity"})
    assert "content-encoding" not in reply.headers and reply.text == LONG


def test_files_that_are_named_by_their_content_are_made_once() -> None:
    asked: list[str] = []
    app = FastAPI()

    def reply(path: str) -> HTMLResponse:
        asked.append(path)
        headers = {"Cache-Control": "immutable"} if path == "said" else {}
        return HTMLResponse(LONG, 404 if path == "assets/missing-aaaaaaaa.js" else 200, headers)

    app.add_api_route("/{path:path}", reply)
    compress(app)
    client = TestClient(app)
    kept, again = ("assets/Index-a_b-c123.js", "said"), ("assets/index.js", "assets/missing-aaaaaaaa.js", "page")
    for coding in ("br", "gzip", "identity"):
        asked.clear()
        for _ in range(3):
            for path in (*kept, *again):
                found = client.get(f"/{path}", headers={"Accept-Encoding": coding})
                assert found.text == LONG
                assert found.headers.get("content-encoding", "identity") == coding
                assert ("immutable" in found.headers.get("cache-control", "")) == (path in kept)
        assert sorted(asked) == sorted([*kept, *again * 3])


def test_the_events_of_the_page_are_kept_out_of_proxies_before_its_script_runs() -> None:
    app = FastAPI()
    data, more = "<script>window.gradio_config = {};</script>", "<script>window.gradio_api_info = {};</script>é"
    page = data + more
    app.add_api_route("/page", lambda: HTMLResponse(page))
    app.add_api_route("/other", lambda: HTMLResponse(LONG))
    app.add_api_route("/parts", lambda: StreamingResponse(iter([page, page]), media_type="text/html"))
    app.add_api_route("/head", lambda: HTMLResponse(f"<style></style>{page}"))
    app.add_middleware(PlainEventsMiddleware, start=PageStart("<script>first</script>"))
    client = TestClient(app)
    reply = client.get("/page")
    assert reply.text == data + KEEP_PLAIN.decode() + more
    assert int(reply.headers["content-length"]) == len(reply.content)
    assert client.get("/head").text.startswith("<script>first</script><style></style><script>window")
    assert client.get("/other").text == LONG and client.get("/parts").text == page * 2
    assert client.get("/missing").status_code == 404


@pytest.mark.parametrize("coding", ["gzip", "br"])
def test_the_page_itself_is_small(address: str, coding: str) -> None:
    request = urllib.request.Request(f"{address}/", headers={"Accept-Encoding": coding})
    with urllib.request.urlopen(request) as reply:
        assert reply.headers["Content-Encoding"] == coding
        assert len(reply.read()) <= MAX_PAGE_BYTES


def test_styles_go_before_gradios_own_and_follow_the_theme() -> None:
    css = "/* {said} */ a, b { x: y }\n.dark i { p: q }\n"
    css += "@media (max-width: 9px) { u { v: w } }\n@keyframes k { to { o: 0 } }"
    assert below_root(css).splitlines() == [
        "a, b{x: y}",
        f"{ROOT}a, {ROOT}b{{x: y}}",
        ".dark i{p: q}",
        f".dark {ROOT}i{{p: q}}",
        f"@media (max-width: 9px){{{ROOT}u{{v: w}}}}",
        "@keyframes k{to { o: 0 }}",
    ]
