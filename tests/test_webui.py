"""The server process as a whole: its port, how soon it answers, how it ends."""

import asyncio
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import webui
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from tests.ports import reserved_port
from tests.recordings import TINY

ROOT = Path(__file__).parent.parent
SSL = ssl.create_default_context()


def test_a_taken_port_is_an_error_that_names_the_way_out() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(InvalidValueError, match=rf"Port {port} .*--port"):
            webui.bind(Flags(port=port))


def test_replies_are_sent_at_once() -> None:
    """Else the body of each waits until the browser has acknowledged its headers, which it puts off by 40 ms."""

    async def served_option() -> int:
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def look(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            found.set_result(writer.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = webui.bind(Flags(port=reserved_port()))
        async with await asyncio.start_server(look, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            try:
                return await found
            finally:
                writer.close()

    with ThreadPoolExecutor(1) as thread:  # where no other loop runs, as that of a browser's tests does here
        assert thread.submit(lambda: asyncio.run(served_option())).result() != 0


def certificate(folder: Path) -> Path:
    """A certificate for this machine, its key next to it."""
    made = folder / "cert.pem"
    words = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(folder / "key.pem"), "-out", str(made)]
    words += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    return made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, "subprocess.Popen[bytes]"]]:
    port = reserved_port()
    data = tmp_path_factory.mktemp("data")
    words = ["--port", str(port), "--data-dir", str(data), "--ckpt", str(TINY), "--no-half", "--use-cpu", "all"]
    words += ["--tls-keyfile", str(data / "key.pem"), "--tls-certfile", str(certificate(data)), "--subpath", "sd"]
    process = subprocess.Popen(
        [sys.executable, "launch.py", "--skip-install", "--api", *words],
        cwd=ROOT,
        env={
            **os.environ,
            "DISPLAY": "",
            "WAYLAND_DISPLAY": "",
            "OMP_NUM_THREADS": "1",
            "FEATHERWEIGHT_PREPARED": str(ROOT / ".venv"),
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    SSL.load_verify_locations(data / "cert.pem")
    yield f"https://127.0.0.1:{port}", process
    process.kill()
    process.wait(10)


def get(address: str, body: object = None) -> tuple[int, str]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=60, context=SSL) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def wait_for(address: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        try:
            if get(f"{address}/internal/ping")[0] == 200:
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.2)
    raise AssertionError("the server does not answer")


def test_page_and_api_answer_and_an_image_is_made(server: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    address, _ = server
    wait_for(address)
    status, page = get(f"{address}/")
    assert status == 200 and "Featherweight" in page
    state = json.loads(get(f"{address}/internal/engine")[1])["state"]
    assert state in ("empty", "loading", "ready")
    body = {"prompt": "a cat", "steps": 2, "width": 64, "height": 64, "seed": 5, "sampler_name": "Euler"}
    status, reply = get(f"{address}/sdapi/v1/txt2img", body)
    assert status == 200, reply
    assert len(json.loads(reply)["images"]) == 1
    assert get(f"{address}/sdapi/v1/nothing")[0] == 404
    assert get(f"{address}/sd/sdapi/v1/txt2img/", {**body, "steps": "many"})[0] in (307, 422)
    assert get(f"{address}/sd/internal/ping")[0] == 200


def test_a_signal_ends_the_server(server: tuple[str, "subprocess.Popen[bytes]"]) -> None:
    address, process = server
    wait_for(address)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) in (0, 130, -signal.SIGINT)
