"""What comes from elsewhere comes over one transport: which addresses it asks, how slow the other side may be, and that
a file is what it was when it was looked at. Extensions are installed over it too."""

import gzip
import os
import shutil
import socket
import subprocess
import tarfile
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from threading import Thread

import pytest

from compat.store import store as store_module
from compat.store.origin import origin_of
from compat.store.store import ExtensionStore, read_index
from modules.downloads.about import about_file, read_preview_of
from modules.downloads.downloads import DownloadRequest, Downloads
from modules.downloads.transport import DownloadError, FileTransport, Timeouts, TooSlowError
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.system.paths import resolve_paths
from tests.compat.conftest import write
from tests.downloads.file_server import Behavior, Handler, safetensors, serving

ROOT = Path(__file__).parents[2]
NAME = "x.safetensors"
MODEL = safetensors(
    {"lora_unet_a.lora_down.weight": ("F16", [8, 8192]), "lora_unet_a.lora_up.weight": ("F16", [8192, 8])}
)


@pytest.fixture
def transport() -> Iterator[FileTransport]:
    transport = FileTransport(timeouts=Timeouts(2.0, 2.0, 1024, 0.4))
    yield transport
    transport.close()


@pytest.fixture
def downloads(tmp_path: Path, transport: FileTransport) -> Downloads:
    return Downloads(resolve_paths(Flags(data_dir=str(tmp_path / "data")), ROOT), transport, sleep=lambda s: None)


@pytest.fixture
def store(tmp_path: Path, transport: FileTransport) -> ExtensionStore:
    """Without git, which has a test of its own."""
    return ExtensionStore(tmp_path / "data" / "extensions", tmp_path / "cache", True, git="", transport=transport)


def packed(names: dict[str, bytes]) -> bytes:
    file = BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tape:
        for name, data in names.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tape.addfile(entry, BytesIO(data))
    return file.getvalue()


EXTENSION = packed({"mine-1/scripts/a.py": b"1", "mine-1/x.bin": os.urandom(5000)})


def trickles(handler: Handler, number: int) -> bool:
    """A byte from time to time, of a reply that would never end."""
    handler.send_response(206)
    handler.send_header("Content-Length", "100000")
    handler.send_header("Content-Range", "bytes 0-99999/100000")
    handler.end_headers()
    handler.close_connection = True
    try:
        while True:
            handler.wfile.write(b"x")
            time.sleep(0.02)
    except OSError:
        return True


def test_a_page_does_not_lead_to_another_server_of_this_machine(transport: FileTransport) -> None:
    other = Behavior(b"an image")
    with serving({"/image.png": other}) as inside:
        readme = f"---\nwidget:\n- output: {{url: '{inside}/image.png'}}\n---\n"
        with serving({"/o/dog/resolve/main/README.md": Behavior(readme.encode())}) as page:
            found = about_file("0" * 64, f"{page}/o/dog/resolve/main/dog.safetensors", transport)
            assert found.preview_url == f"{inside}/image.png"
            with pytest.raises(InvalidValueError, match="over http"):
                read_preview_of(found, transport)
    assert not other.requests


def test_only_what_a_person_typed_may_be_this_machine(transport: FileTransport) -> None:
    with serving({"/a": Behavior(b"a")}) as address:
        with pytest.raises(InvalidValueError, match="over http"), transport.get(f"{address}/a"):
            pass
        with transport.get(f"{address}/a", may_be_local=True) as reply:
            assert reply.read(10) == b"a" and reply.url == f"{address}/a"


def test_extensions_and_their_index_come_over_the_transport(store: ExtensionStore, transport: FileTransport) -> None:
    index = Behavior(b'{"extensions": [{"name": "A", "url": "https://e/a"}]}')
    behaviors = {
        "/mine.tar.gz": Behavior(EXTENSION),
        "/index.json": index,
        "/moved": Behavior(b"", redirect="/index.json"),
    }
    behaviors["/inside"] = Behavior(b"", redirect="https://10.0.0.7/index.json")
    behaviors["/inside.tar.gz"] = Behavior(b"", redirect="http://169.254.169.254/mine.tar.gz")
    with serving(behaviors) as address:
        place = store.install(f"{address}/mine.tar.gz", agreed=True)
        assert (place / "scripts" / "a.py").is_file() and origin_of(place).address == f"{address}/mine.tar.gz"
        assert [one.name for one in read_index(f"{address}/moved", transport=transport)] == ["A"]
        with pytest.raises(InvalidValueError, match="its network, which is not allowed"):
            read_index(f"{address}/inside", transport=transport)
        with pytest.raises(InvalidValueError, match="over http"):
            store.install(f"{address}/inside.tar.gz", agreed=True)
    assert [one.name for one in store.folder.iterdir()] == ["mine"]


def test_an_archive_is_bounded_while_it_comes(store: ExtensionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "MAX_ARCHIVE_BYTES", 2000)
    with (
        serving({"/mine.tar.gz": Behavior(EXTENSION)}) as address,
        pytest.raises(InvalidValueError, match="larger than"),
    ):
        store.install(f"{address}/mine.tar.gz", agreed=True)


def test_a_server_that_sends_next_to_nothing_is_given_up(
    store: ExtensionStore, downloads: Downloads, transport: FileTransport
) -> None:
    behaviors = {path: Behavior(b"", fault=trickles) for path in ("/mine.tar.gz", "/index.json", f"/{NAME}")}
    looked = Behavior(MODEL, fault=lambda handler, number: number > 1 and trickles(handler, number))
    with serving({**behaviors, "/looked.safetensors": looked}) as address:
        with pytest.raises(TooSlowError, match="less than 1024 bytes per second"):
            store.install(f"{address}/mine.tar.gz", agreed=True)
        with pytest.raises(TooSlowError):
            read_index(f"{address}/index.json", transport=transport)
        with pytest.raises(TooSlowError):
            downloads.find(DownloadRequest(f"{address}/{NAME}"))
        url = f"{address}/{NAME}"
        with (
            pytest.raises(TooSlowError, match="took too long"),
            transport.get(url, may_be_local=True, within_s=0.1) as reply,
        ):
            reply.read(1000)


def test_headers_that_trickle_are_given_up(transport: FileTransport) -> None:
    def slow_headers(handler: Handler, number: int) -> bool:
        try:
            handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            while True:
                handler.wfile.write(b"X-More: 1\r\n"[:3])
                time.sleep(0.02)
        except OSError:
            handler.close_connection = True
            return True

    with (
        serving({"/a": Behavior(b"", fault=slow_headers)}) as address,
        pytest.raises(TooSlowError),
        transport.get(f"{address}/a", may_be_local=True),
    ):
        pass


def test_a_handshake_that_trickles_is_given_up(transport: FileTransport) -> None:
    """The record that a TLS server begins with is announced with 16 kB, of which a byte comes from time to time."""
    listening = socket.create_server(("127.0.0.1", 0))

    def trickle() -> None:
        connection, _ = listening.accept()
        with connection:
            try:
                connection.sendall(b"\x16\x03\x03\x40\x00")
                while True:
                    connection.sendall(b"\x02")
                    time.sleep(0.02)
            except OSError:
                return

    thread = Thread(target=trickle, daemon=True)
    thread.start()
    url = f"https://127.0.0.1:{listening.getsockname()[1]}/a"
    with pytest.raises(TooSlowError, match="less than 1024 bytes"), transport.get(url, may_be_local=True):
        pass
    thread.join(5)
    listening.close()
    assert not thread.is_alive(), "the connection is closed"


def test_no_proxy_of_the_environment_no_cookie_and_no_line_in_the_log(
    transport: FileTransport, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A proxy would connect to an address that was not checked; an address may hold a secret."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    cookies: list[str | None] = []

    def gives_a_cookie(handler: Handler, number: int) -> bool:
        cookies.append(handler.headers.get("Cookie"))
        handler.answer(200, b"a", Set_Cookie="who=me")
        return True

    with serving({"/a": Behavior(b"", fault=gives_a_cookie), "/b": Behavior(b"", redirect="/a")}) as address:
        for path in ("a", "b"):
            with caplog.at_level("INFO"), transport.get(f"{address}/{path}?key=secret", may_be_local=True) as reply:
                assert reply.read(10) == b"a"
    assert cookies == [None, None] and "secret" not in caplog.text


@pytest.mark.parametrize(
    ("location", "path"),
    [("/b%20c%2Fd?x=%41", "/b%20c%2Fd?x=%41"), ("/b c?x=ü", "/b%20c?x=%C3%BC"), ("?y=[1]&z=a+b/=", "/a?y=[1]&z=a+b/=")],
)
def test_a_redirect_is_asked_for_as_it_is_written(transport: FileTransport, location: str, path: str) -> None:
    """What is escaped stays so: signatures of storage servers count each sign."""
    asked: list[str] = []

    def moves(handler: Handler, number: int) -> bool:
        asked.append(handler.path)
        if number:
            handler.answer(200, b"a")
        else:
            handler.answer(302, b"", Location=location.encode().decode("latin-1"))
        return True

    behavior = Behavior(b"", fault=moves)
    behaviors = {path.partition("?")[0]: behavior, "/a": behavior}
    with serving(behaviors) as address, transport.get(f"{address}/a", may_be_local=True) as reply:
        assert reply.read(10) == b"a" and reply.url == f"{address}{path}"
    assert asked == ["/a", path]


@pytest.mark.parametrize("begins", [b"PK\x03\x04", b"\x80\x02}q", b"\x80\x05\x95"])
def test_a_pickle_does_not_come_under_another_name(downloads: Downloads, begins: bytes) -> None:
    with (
        serving({f"/{NAME}": Behavior(begins + bytes(1000))}) as address,
        pytest.raises(InvalidValueError, match="is a pickle, which can hold code"),
    ):
        downloads.find(DownloadRequest(f"{address}/{NAME}"))


@pytest.mark.parametrize("length", [0x0280, 0x4B50])
def test_a_header_of_an_unlucky_length_is_no_pickle(downloads: Downloads, length: int) -> None:
    """Its length begins with the bytes that pickles and archives begin with."""
    size = int.from_bytes(MODEL[:8], "little")
    body = length.to_bytes(8, "little") + MODEL[8 : 8 + size].ljust(length) + MODEL[8 + size :]
    with serving({f"/{NAME}": Behavior(body)}) as address:
        assert downloads.find(DownloadRequest(f"{address}/{NAME}")).header.format == "safetensors"


@pytest.mark.parametrize("dates", [("Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"), ("", "")])
def test_a_file_that_changes_between_two_parts_is_begun_again(downloads: Downloads, dates: tuple[str, str]) -> None:
    """It has the same size, and no ETag or hash tells the two versions apart."""
    size = int.from_bytes(MODEL[:8], "little") + 8
    other = MODEL[:size] + bytes([1]) * (len(MODEL) - size)
    behavior = Behavior(MODEL, etag="", sha256="", last_modified=dates[0])

    def changes(handler: Handler, number: int) -> bool:
        if number == 1:
            handler.give(behavior, cut=150_000)
            behavior.body, behavior.last_modified = other, dates[1]
            return True
        return False

    behavior.fault = changes
    with serving({f"/{NAME}": behavior}) as address:
        done = downloads.get(DownloadRequest(f"{address}/{NAME}"), lambda done, total: None)
    assert done.path.read_bytes() == other


def test_what_comes_begins_as_what_was_looked_at(downloads: Downloads) -> None:
    """A server may show a harmless file to whoever asks for its first bytes only."""
    behavior = Behavior(MODEL, etag="", sha256="")
    pickled = Behavior(b"PK\x03\x04".ljust(len(MODEL)), etag="", sha256="")

    def lies(handler: Handler, number: int) -> bool:
        if number:
            handler.give(pickled)
        return bool(number)

    behavior.fault = lies
    with serving({f"/{NAME}": behavior}) as address, pytest.raises(DownloadError, match="does not begin as it did"):
        downloads.get(DownloadRequest(f"{address}/{NAME}"), lambda done, total: None)
    assert not list(downloads.folders["Lora"].glob("*"))


# -- sources that are folders ------------------------------------------------------------------------------------------


def test_a_folder_that_holds_the_extensions_or_no_extension_is_not_copied(
    store: ExtensionStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        {"data/scripts/a.py": "", "data/other.txt": "", "large/scripts/a.py": "x" * 4000, "pipe/style.css": ""},
    )
    os.mkfifo(tmp_path / "pipe" / "fifo")
    monkeypatch.setattr(store_module, "MAX_ARCHIVE_BYTES", 3000)
    reasons = {
        "data": "holds the folder of extensions",
        "large": "too large",
        "pipe": "a device, a pipe",
        "empty": "no",
    }
    (tmp_path / "empty").mkdir()
    (store.folder).mkdir(parents=True)
    for name, reason in reasons.items():
        with pytest.raises(InvalidValueError, match=reason):
            store.install(str(tmp_path / name), agreed=True)
    assert not list(store.folder.iterdir())


@pytest.mark.parametrize("source", ["https://[::1", "~nobody-here/x", "a\0b", "-x", "x" * 1900, "/dev/null", ""])
def test_a_source_that_is_none_is_said(store: ExtensionStore, source: str) -> None:
    with pytest.raises(InvalidValueError):
        store.install(source, agreed=True, name="mine")
    with pytest.raises(InvalidValueError):
        read_index(source)


# -- git ---------------------------------------------------------------------------------------------------------------


class GitHandler(BaseHTTPRequestHandler):
    """Serves the repositories of a folder through git's own server; /moved leads to /mine.git."""

    root: Path

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        if path.startswith("/moved/"):
            self.send_response(301)
            self.send_header("Location", self.path.replace("/moved/", "/mine.git/"))
            self.end_headers()
            return
        length = int(self.headers.get("Content-Length", "0"))
        environ = {"GIT_PROJECT_ROOT": str(self.root), "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path}
        environ |= {"QUERY_STRING": query, "REQUEST_METHOD": self.command, "PATH": os.environ["PATH"]}
        environ |= {"CONTENT_TYPE": self.headers.get("Content-Type", ""), "CONTENT_LENGTH": str(length)}
        environ |= {"GIT_PROTOCOL": self.headers.get("Git-Protocol", ""), "HOME": str(self.root)}
        environ |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
        data = self.rfile.read(length)
        if self.headers.get("Content-Encoding") == "gzip":
            data = gzip.decompress(data)
            environ["CONTENT_LENGTH"] = str(len(data))
        done = subprocess.run(["git", "http-backend"], input=data, env=environ, capture_output=True, check=True)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.do_GET()


@pytest.fixture
def repositories(tmp_path: Path) -> Iterator[str]:
    """The address of a server with the repository mine.git."""
    write(tmp_path, {"work/scripts/a.py": "1"})
    git = ["git", "-C", str(tmp_path / "work"), "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(tmp_path / "work"), str(tmp_path / "mine.git")], check=True)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (GitHandler,), {"root": tmp_path}))
    thread = Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(5)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")
def test_git_asks_only_the_address_that_was_checked(tmp_path: Path, repositories: str) -> None:
    """`inside.example` exists for the transport alone: git reaches it by what it was told."""
    find = {"models.example": ["127.0.0.1"], "inside.example": ["10.0.0.7"], "127.0.0.1": ["127.0.0.1"]}
    transport = FileTransport(find_addresses=lambda host, port: find[host])
    made = ExtensionStore(tmp_path / "extensions", tmp_path / "cache", True, transport=transport)
    place = made.install(f"{repositories}/moved", agreed=True, name="mine")
    assert (place / "scripts" / "a.py").read_text() == "1" and origin_of(place).address == f"{repositories}/moved"
    assert origin_of(place).branch == "main" and origin_of(place).commit
    write(tmp_path, {"work/scripts/a.py": "2"})
    made.update("mine")
    url, pinned = made._pinned(repositories.replace("127.0.0.1", "models.example") + "/mine.git")
    subprocess.run(["git", *pinned, "clone", "-q", "--", url, str(tmp_path / "cloned")], check=True)
    with pytest.raises(InvalidValueError, match="is not allowed"):
        made.install("https://inside.example/other", agreed=True)
    transport.close()
