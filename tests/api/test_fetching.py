"""Images by URL: only where a setting allows it, only from public addresses, with limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO

import pytest
from PIL import Image

from modules.api.generation.fetching import FetchLimits, fetch
from modules.errors import InvalidValueError
from modules.settings.values import Settings
from modules.system.public_addresses import is_public

PUBLIC = "93.184.215.14"
ON = Settings().changed(api_enable_requests=True)
LOCAL = ON.changed(api_forbid_local_requests=False)


def png() -> bytes:
    file = BytesIO()
    Image.new("RGB", (8, 8), "red").save(file, "PNG")
    return file.getvalue()


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        agents.append(self.headers["User-Agent"])
        match self.path.partition("?")[0]:
            case "/a.png":
                self._send(png())
            case "/moved":
                self._redirect("/a.png")
            case "/round":
                self._redirect("/round")
            case "/inside":
                self._redirect("http://inside.example/a.png")
            case "/file":
                self._redirect("file:///etc/passwd")
            case "/large":
                self._send(b"x" * 4096)
            case "/slow":
                self.send_response(200)
                self.end_headers()
                for _ in range(50):
                    try:
                        self.wfile.write(b"x")
                        self.wfile.flush()
                    except OSError:
                        return
                    time.sleep(0.05)
            case _:
                self.send_error(404)

    def _send(self, body: bytes) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, to: str) -> None:
        self.send_response(302)
        self.send_header("Location", to)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


agents: list[str] = []


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


def to_server(host: str, port: int) -> list[str]:
    """Every name is the test's server."""
    return ["127.0.0.1"]


def refused(url: str, settings: Settings = LOCAL, limits: FetchLimits | None = None) -> str:
    with pytest.raises(InvalidValueError) as caught:
        fetch(url, "init_images[0]", settings, to_server, limits)
    assert str(caught.value).startswith("init_images[0]")
    return str(caught.value)


def test_nothing_is_fetched_unless_a_setting_allows_it(port: int) -> None:
    agents.clear()
    assert "switch on api_enable_requests" in refused(f"http://example.org:{port}/a.png", Settings())
    assert not agents


def test_an_image_is_fetched_and_redirects_are_followed(port: int) -> None:
    agents.clear()
    assert fetch(f"http://example.org:{port}/a.png?x=1", "mask", LOCAL, to_server) == png()
    assert fetch(f" http://example.org:{port}/moved", "mask", LOCAL, to_server) == png()
    assert all(agent.startswith("Featherweight") for agent in agents)
    named = LOCAL.changed(api_useragent="mine/1")
    fetch(f"http://example.org:{port}/a.png", "mask", named, to_server)
    assert agents[-1] == "mine/1"


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("gone", "answer 404"),
        ("round", "redirects more than 5 times"),
        ("file", "is no address of a file"),
        ("large", "sends more than 1000 bytes"),
    ],
)
def test_what_goes_wrong_is_said(port: int, path: str, sentence: str) -> None:
    assert sentence in refused(f"http://example.org:{port}/{path}", limits=FetchLimits(1000, 5.0))


def test_a_slow_answer_ends_in_time(port: int) -> None:
    began = time.monotonic()
    assert "took too long" in refused(f"http://example.org:{port}/slow", limits=FetchLimits(1000, 0.3))
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "url", ["ftp://example.org/a", "http://", "http://user:word@example.org/a", "http://a b/c", "http://x:99999/a"]
)
def test_other_addresses_are_refused(url: str) -> None:
    refused(url)


def test_a_host_of_this_network_is_refused_also_behind_a_redirect(port: int) -> None:
    assert "leads to this machine or its network" in refused(f"http://example.org:{port}/a.png", ON)
    asked: list[str] = []

    def first_public(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["10.0.0.1"] if host == "inside.example" else ["127.0.0.1"]

    with pytest.raises(InvalidValueError, match=r"cannot be fetched|inside\.example"):
        fetch(f"http://example.org:{port}/inside", "mask", LOCAL, first_public, FetchLimits(1000, 0.5))
    assert asked == ["example.org", "inside.example"]  # looked up again, by the same rules


def test_every_address_of_a_name_must_be_public() -> None:
    with pytest.raises(InvalidValueError, match="leads to this machine or its network"):
        fetch("http://two.example/a.png", "mask", ON, lambda host, port: [PUBLIC, "192.168.1.1"])


def test_a_host_that_is_not_found() -> None:
    def missing(host: str, port: int) -> list[str]:
        raise OSError("Name or service not known")

    with pytest.raises(InvalidValueError, match="host nowhere"):
        fetch("http://nowhere.example/a.png", "mask", ON, missing)


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.0.1", "169.254.169.254", "100.64.0.1"),
        *("224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1"),
        *("::ffff:10.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::1", "2001:db8::1", "localhost", ""),
        *("64:ff9b:1::808:808", "fec0::1", "::8.8.8.8", "5f00::1"),
    ],
)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", [PUBLIC, "8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"])
def test_addresses_that_are_public(address: str) -> None:
    assert is_public(address)
