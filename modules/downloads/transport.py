"""HTTP for files: only to addresses that may be reached, in ranges, with errors that say what to do.

The host of each hop is resolved once, all of its addresses are checked, and the connection goes to one that was
checked, so that a name which changes its address in between (DNS rebinding) gains nothing. Only https, except where a
person typed an address of this machine; a redirect never leads from the Internet to a private address.
"""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email.message import Message
from functools import cache
from pathlib import Path
from urllib.parse import SplitResult, quote, urljoin, urlsplit

import certifi

from modules.errors import BusyError, FeatherweightError, InvalidValueError
from modules.public_addresses import Resolve, is_loopback, is_public, resolve
from modules.threads import start_loop
from modules.version import PROGRAM_VERSION

CHUNK_BYTES = 256 << 10
"""Of a body at once: what has come of it by then. Larger ones cost no less time for each byte."""
MAX_REDIRECTS = 5
MAX_URL_CHARS = 4096
PORTS = {"http": 80, "https": 443}
KEPT_SIGNS = "/%:@!$&'()*+,;=~?"
"""Of a path or query, which stay as they are: what is escaped already is not escaped again."""
REDIRECTS = (301, 302, 303, 307, 308)
TOKEN_VARIABLES = {"huggingface.co": "HF_TOKEN", "civitai.com": "CIVITAI_TOKEN"}
"""The environment variables that hold the tokens of a host."""
BY_HAND = (
    "Without a network, get the file on another machine and put it into models/Stable-diffusion, models/VAE, "
    "models/text_encoder or models/Lora."
)
CERTIFICATES_VARIABLE = "SSL_CERT_FILE"
"""The environment variable with a file of more certificates to trust, in PEM form."""
TOKENS_FILE = "tokens.txt"
"""In the data folder: lines of a host and its token."""


class DownloadError(FeatherweightError):
    """The other side does not give the file; the message says why and what to do."""

    status = 424  # what the request depends on has failed


class GoneAwayError(DownloadError):
    """The connection broke or stalled; what came is kept, and another try goes on from there."""


class TooSlowError(GoneAwayError):
    """The other side sends next to nothing, or not all in the time that there was."""


@dataclass(frozen=True)
class Tokens:
    """Tokens for files that ask for one, by host; they go to that host alone, and never into logs or replies."""

    by_host: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, file: Path, environ: Mapping[str, str]) -> Tokens:
        """From the environment, and from a file with lines of a host and its token. Raises `InvalidValueError` where
        others can read the file."""
        found: dict[str, str] = {}
        if file.is_file():
            if os.name != "nt" and stat.S_IMODE(file.stat().st_mode) & 0o077:
                raise InvalidValueError(f"{file.name} holds tokens and others can read it: chmod 600 {file}")
            for line in file.read_text(encoding="utf-8").splitlines():
                host, _, token = line.strip().partition(" ")
                if token.strip() and not host.startswith("#"):
                    found[host.lower()] = token.strip()
        found |= {host: environ[name] for host, name in TOKEN_VARIABLES.items() if environ.get(name)}
        return cls(found)

    def of(self, host: str) -> str | None:
        """The token of a host, or of the host that it is part of."""
        return next((token for name, token in self.by_host.items() if host == name or host.endswith(f".{name}")), None)


@dataclass(frozen=True)
class Timeouts:
    """Seconds until connected, and without a byte; and the floor on speed: bytes per second, over so many seconds of
    waiting for the other side."""

    connect_s: float = 15.0
    silent_s: float = 30.0
    least_bytes_per_s: int = 1024
    window_s: float = 60.0


@dataclass(frozen=True)
class AskOptions:
    """How a transport asks. `plain_http`: the Internet over http too; `own_network`: private addresses too; `remedy`:
    what to do where nothing is reached."""

    plain_http: bool = False
    own_network: bool = False
    agent: str = PROGRAM_VERSION
    remedy: str = BY_HAND


@dataclass(frozen=True, eq=False)
class Reply:
    """An answer whose body has not been read; `url` is where it came from in the end, `address` its host's, `hops` are
    the headers of the redirects before it."""

    status: int
    headers: Message
    hops: tuple[Message, ...]
    host: str
    url: str
    address: str
    _connection: _Connection

    def header(self, name: str) -> str | None:
        """A header of the answer or of a redirect before it, the first that has it."""
        return next((found[name] for found in (*self.hops, self.headers) if name in found), None)

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes. Raises `GoneAwayError`, also where it ends before its announced length."""
        response, pace = self._connection.response, self._connection.pace
        left = response.length  # None: it has its own marks
        try:
            while left is None or left > 0:
                with pace.waiting():
                    chunk = response.read1(CHUNK_BYTES if left is None else min(CHUNK_BYTES, left))
                if not chunk:
                    break
                pace.received += len(chunk)
                left = None if left is None else left - len(chunk)
                yield chunk
        except (OSError, http.client.HTTPException) as error:
            raise pace.error(self.host) or GoneAwayError(
                f"The connection to {self.host} broke off ({_reason(error)})."
            ) from error
        if pace.is_ended:  # the end of the body may be that of our patience
            raise pace.error(self.host) or AssertionError("ended for a reason")
        if left:
            raise GoneAwayError(f"The connection to {self.host} broke off ({left} bytes were still to come).")

    def read(self, limit_bytes: int) -> bytes:
        """The whole body. Raises `InvalidValueError` for one that is larger, and as `chunks`."""
        kept = bytearray()
        for chunk in self.chunks():
            kept += chunk
            if len(kept) > limit_bytes:
                limit = f"{limit_bytes >> 20} MB" if limit_bytes >= 1 << 20 else f"{limit_bytes} bytes"
                raise InvalidValueError(f"{self.host} sends more than {limit}; so much is not read here.")
        return bytes(kept)


class _Pace:
    """How fast a connection is: a thread looks at it, so that no read is waited for longer than allowed, however the
    bytes trickle. Time in which the caller works on what came does not count."""

    def __init__(self, limits: Timeouts, deadline: float | None) -> None:
        self.received = 0
        self.is_ended = False
        self._limits, self._deadline = limits, deadline
        self._waited_s, self._since = 0.0, 0.0
        self._seen_bytes, self._seen_s = 0, 0.0
        self._done = threading.Event()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of this block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._waited_s, self._since = self._waited_s + time.monotonic() - self._since, 0.0

    @contextmanager
    def watched(self, break_off: Callable[[], None]) -> Iterator[None]:
        """Call `break_off` once the connection is too slow, in a thread that ends with the block."""

        def watch() -> bool:
            tick = min(self._limits.window_s / 4, 5.0)
            if self._done.wait(0.5 if self.is_ended else min(tick, max(self._left(), 0.0))):
                return False
            if self.is_ended or self._left() <= 0 or self._is_too_slow():
                self.is_ended = True
                break_off()  # again, where it was not yet connected
            return True

        thread = start_loop("featherweight-download-pace", watch)
        try:
            yield
        finally:
            self._done.set()
            thread.join()

    def error(self, host: str) -> TooSlowError | None:
        """Why it was broken off; None: it was not, or for another reason."""
        if not self.is_ended:
            return None
        if self._left() <= 0:
            return TooSlowError(f"{host} took too long; try again later.")
        return TooSlowError(
            f"{host} sends less than {self._limits.least_bytes_per_s} bytes per second; try again later."
        )

    def _left(self) -> float:
        return threading.TIMEOUT_MAX if self._deadline is None else self._deadline - time.monotonic()

    def _is_too_slow(self) -> bool:
        since = self._since
        waited_s = self._waited_s + (time.monotonic() - since if since else 0.0)
        if waited_s - self._seen_s < self._limits.window_s:
            return False
        enough = self.received - self._seen_bytes >= self._limits.least_bytes_per_s * self._limits.window_s
        self._seen_bytes, self._seen_s = self.received, waited_s
        return not enough


class _Connection(http.client.HTTPConnection):
    """A connection to one address of a host that was checked; the certificate is checked for the host's name."""

    response: http.client.HTTPResponse

    def __init__(self, place: SplitResult, address: str, limits: Timeouts, pace: _Pace) -> None:
        super().__init__(place.hostname or "", _port(place))
        self.pace = pace
        self._address, self._limits = address, limits
        self._is_secure = place.scheme == "https"
        self._own: socket.socket | None = None  # of an answer that ends with its connection, the rest is the answer's
        self._has_answer = False

    def connect(self) -> None:
        self._own = self.sock = socket.create_connection((self._address, self.port), self._limits.connect_s)
        if self._is_secure:
            context = _certificates(os.environ.get(CERTIFICATES_VARIABLE, ""))
            secure = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self._own = self.sock = secure  # before the handshake, which can be broken off too
            secure.do_handshake()
        self.sock.settimeout(self._limits.silent_s)

    def answer(self, target: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """Ask for `target`; the answer is closed with the connection. Raises OSError and HTTPException."""
        with self.pace.waiting():
            self.request("GET", target, headers=dict(headers))
            self.response, self._has_answer = self.getresponse(), True
        return self.response

    def break_off(self) -> None:
        """End it while another thread reads from it."""
        with suppress(OSError):  # the other side may have closed it
            if self._own is not None:
                self._own.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        if self._has_answer:
            self.response.close()
        super().close()


@cache
def _certificates(extra: str) -> ssl.SSLContext:
    """Load those that come with the program, as some systems have none that Python finds, and those in the file `extra`
    ("": none). Raises `InvalidValueError` for a file that holds none."""
    context = ssl.create_default_context(cafile=certifi.where())
    if extra:
        try:
            context.load_verify_locations(cafile=extra)
        except OSError as error:  # SSL errors are
            raise InvalidValueError(
                f"{CERTIFICATES_VARIABLE} names {extra}, which holds no certificates that can be read "
                f"({_reason(error)}). Name a file of certificates in PEM form, or unset the variable."
            ) from error
    return context


class FileTransport:
    """Asks servers for files. One for a program; threads may share it. No proxies of the environment: they would
    connect to addresses that were not checked."""

    def __init__(
        self,
        tokens: Tokens | None = None,
        find_addresses: Resolve = resolve,
        timeouts: Timeouts | None = None,
        options: AskOptions | None = None,
    ) -> None:
        self._limits = timeouts or Timeouts()
        self._tokens = tokens or Tokens()
        self._find = find_addresses
        self._options = options or AskOptions()
        self._open: set[_Connection] = set()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Break off what is still under way, in other threads."""
        with self._lock:
            for connection in self._open:
                connection.break_off()

    @contextmanager
    def get(
        self,
        url: str,
        begin: int | None = None,
        end: int | None = None,
        if_range: str | None = None,
        *,
        may_be_local: bool = False,
        within_s: float | None = None,
    ) -> Iterator[Reply]:
        """Ask for a file, or for its bytes from `begin` up to and with `end` (None: to its end), if it is still the one
        with the ETag or date `if_range`. `may_be_local`: a person typed the address, which may be this machine's;
        `within_s`: all of it, redirects and body, has so much time.

        Raises `InvalidValueError` for an address that must not be reached, `BusyError` where the other side asks to
        wait, and `DownloadError` for every other answer than 200, 206 and 416.
        """
        headers = {}
        if begin is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end}"
            headers |= {"If-Range": if_range} if if_range else {}
        with self._answered(url, headers, may_be_local, within_s) as reply:
            _check(reply)
            yield reply

    def last_hop(self, url: str, *, may_be_local: bool = False, within_s: float | None = None) -> tuple[str, str]:
        """Find where an address leads in the end, whatever is answered there, and the checked address of its host, for
        programs that connect on their own. Raises as `get`."""
        with self._answered(url, {}, may_be_local, within_s) as reply:
            return reply.url, reply.address

    @contextmanager
    def _answered(
        self, url: str, headers: dict[str, str], may_be_local: bool, within_s: float | None
    ) -> Iterator[Reply]:
        headers = {"User-Agent": self._options.agent, "Accept": "*/*", "Accept-Encoding": "identity", **headers}
        deadline = None if within_s is None else time.monotonic() + within_s
        hops: list[Message] = []
        while True:
            place = _place(url)
            address, may_be_local = self._address(place, may_be_local)
            with self._connected(place, address, deadline) as connection:
                response = self._answer(connection, place, headers)
                if response.status in REDIRECTS and "Location" in response.headers:
                    hops.append(response.headers)
                    if len(hops) > MAX_REDIRECTS:
                        raise DownloadError(
                            f"{place.hostname} redirects more than {MAX_REDIRECTS} times, in a ring perhaps."
                        )
                    url = _joined(url, response.headers["Location"])
                    continue
                seen = (tuple(hops), place.hostname or "", url, address)
                yield Reply(response.status, response.headers, *seen, connection)
                return

    @contextmanager
    def _connected(self, place: SplitResult, address: str, deadline: float | None) -> Iterator[_Connection]:
        connection = _Connection(place, address, self._limits, _Pace(self._limits, deadline))
        with self._lock:
            self._open.add(connection)
        try:
            with connection.pace.watched(connection.break_off):
                yield connection
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(
        self, connection: _Connection, place: SplitResult, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        host = place.hostname or ""
        token = self._tokens.of(host) if place.scheme == "https" else None
        own = {**headers, "Host": _netloc(place)} | ({"Authorization": f"Bearer {token}"} if token else {})
        query = f"?{quote(place.query, safe=KEPT_SIGNS)}" if place.query else ""
        try:
            response = connection.answer((quote(place.path, safe=KEPT_SIGNS) or "/") + query, own)
            if connection.pace.is_ended:
                raise ConnectionError("headers that were cut off look like whole ones")
            return response
        except ssl.SSLCertVerificationError as error:
            raise DownloadError(
                f"The certificate of {host} is not trusted ({error.verify_message}), so nothing is taken from it. "
                f"Where a proxy of your network has a certificate of its own, name its file in {CERTIFICATES_VARIABLE}."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise connection.pace.error(host) or GoneAwayError(
                f"{host} cannot be reached ({_reason(error)}): is this machine connected to the Internet? "
                f"{self._options.remedy}"
            ) from error

    def _address(self, place: SplitResult, may_be_local: bool) -> tuple[str, bool]:
        """The address to connect to, and whether it is this machine's, so that a redirect may lead there too."""
        host = place.hostname or ""
        try:
            found = self._find(host, _port(place))
        except (OSError, UnicodeError) as error:
            raise GoneAwayError(
                f"The host {host} is not found ({error}): is this machine connected to the Internet? "
                f"{self._options.remedy}"
            ) from error
        if found and all(is_loopback(address) for address in found) and may_be_local:
            return found[0], True
        if place.scheme != "https" and not self._options.plain_http:
            raise InvalidValueError(f"{host} is asked for over http; allowed is https, and http on this machine alone.")
        if not found or not (self._options.own_network or all(is_public(address) for address in found)):
            raise InvalidValueError(f"{host} leads to this machine or its network, which is not allowed.")
        return found[0], False


def _place(url: str) -> SplitResult:
    """A URL taken apart. Raises `InvalidValueError` for all but http(s) with a host and without a password."""
    try:
        place = urlsplit(url.strip())
        _ = place.port
    except ValueError as error:
        raise InvalidValueError(f"{url[:80]!r} is no address that can be read: {error}.") from error
    if place.scheme not in PORTS or not place.hostname or len(url) > MAX_URL_CHARS:
        raise InvalidValueError(f"{url[:80]!r} is no address of a file; it begins with https://.")
    if place.username is not None or any(ord(sign) <= 32 or ord(sign) == 127 for sign in url.strip()):
        raise InvalidValueError("The address has a user name or blanks in it; leave them out.")
    return place


def _joined(url: str, location: str) -> str:
    """Where a redirect leads. Raises `InvalidValueError`."""
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise InvalidValueError(f"The redirect to {location[:80]!r} cannot be read: {error}.") from error


def _port(place: SplitResult) -> int:
    return place.port or PORTS[place.scheme]


def _netloc(place: SplitResult) -> str:
    """Host and port as headers have them: in ASCII."""
    host, port = (place.hostname or "").encode("idna").decode("ascii"), place.port
    host = f"[{host}]" if ":" in host else host
    return f"{host}:{port}" if port else host


def _check(reply: Reply) -> None:
    status, host = reply.status, reply.host
    if status in (200, 206, 416):
        return
    if status in (401, 403):
        variable = next((name for known, name in TOKEN_VARIABLES.items() if host.endswith(known)), None)
        remedy = f"set {variable} to a token of your account" if variable else "add its token to tokens.txt"
        raise DownloadError(
            f"{host} gives this file to known users only (answer {status}): accept its licence on its page where it "
            f"has one, and {remedy} (docs/get-models.md)."
        )
    if status == 404:
        raise DownloadError(f"{host} has no such file (answer 404): check the name, or look for it on its page.")
    if status in (429, 503):
        wait = reply.headers.get("Retry-After", "")
        raise BusyError(
            f"{host} asks to wait{f' for {wait} s' if wait.isdigit() else ''} (answer {status}); try again later."
        )
    raise DownloadError(f"{host} answers {status}: try again later, or get the file in a browser.")


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
