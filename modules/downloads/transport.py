"""HTTP for files: only to addresses that may be reached, in ranges, with errors that say what to do.

The host of each hop is resolved once, all of its addresses are checked, and the connection goes to one that was
checked, so that a name which changes its address in between (DNS rebinding) gains nothing. Only https, except where a
person typed an address of this machine; a redirect never leads from the Internet to a private address.
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import certifi
import httpx

from modules.errors import BusyError, FeatherweightError, InvalidValueError
from modules.system.public_addresses import Resolve, is_loopback, is_public, resolve
from modules.system.threads import start_loop
from modules.version import PROGRAM_VERSION

MAX_REDIRECTS = 5
MAX_URL_CHARS = 4096
PORTS = {"http": 80, "https": 443}
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
Cause = TypeVar("Cause", bound=BaseException)


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
    headers: Mapping[str, str]
    hops: tuple[Mapping[str, str], ...]
    host: str
    url: str
    address: str
    _body: Iterator[bytes]
    _pace: _Pace

    def header(self, name: str) -> str | None:
        """A header of the answer or of a redirect before it, the first that has it."""
        return next((found[name] for found in (*self.hops, self.headers) if name in found), None)

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes. Raises `GoneAwayError`, also where it ends before its announced length."""
        pace, announced = self._pace, self.headers.get("Content-Length", "")
        try:
            while True:
                with pace.waiting():
                    chunk = next(self._body, b"")
                if not chunk:
                    break
                pace.received += len(chunk)
                yield chunk
        except httpx.HTTPError as error:
            has_ended = isinstance(error, httpx.RemoteProtocolError) and announced.isdigit()
            left = f"{int(announced) - pace.received} bytes were still to come" if has_ended else _reason(error)
            raise pace.error(self.host) or GoneAwayError(
                f"The connection to {self.host} broke off ({left})."
            ) from error
        if pace.is_ended:  # the end of the body may be that of our patience
            raise pace.error(self.host) or AssertionError("ended for a reason")

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
        done = threading.Event()

        def watch() -> bool:
            tick = min(self._limits.window_s / 4, 5.0)
            if done.wait(0.5 if self.is_ended else min(tick, max(self._left(), 0.0))):
                return False
            if self.is_ended or self._left() <= 0 or self._is_too_slow():
                self.is_ended = True
                break_off()  # again, where it was not yet connected
            return True

        thread = start_loop("featherweight-download-pace", watch)
        try:
            yield
        finally:
            done.set()
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


class Connection:
    """The socket of one request, which another thread may break off."""

    _socket: socket.socket | None = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Learn of the socket when it is connected, before a handshake or a request; httpx calls this."""
        if event == "connection.connect_tcp.complete":
            # A descriptor of our own stays that of the connection where encryption wraps the first.
            self._socket = info["return_value"].get_extra_info("socket").dup()

    def break_off(self) -> None:
        """End it while another thread reads from it or writes to it."""
        if self._socket is not None:
            with suppress(OSError):  # the other side may have closed it, or this one
                self._socket.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def answered(self, request: httpx.Request, verify: ssl.SSLContext | bool) -> Iterator[httpx.Response]:
        """Send a request, and close all with the block. No proxies, cookies, redirects, retries or lines in the log,
        which a client of httpx would have. Raises `httpx.HTTPError`."""
        request.extensions["trace"] = self.trace
        try:
            with (
                httpx.HTTPTransport(verify=verify, trust_env=False) as transport,
                closing(transport.handle_request(request)) as response,
            ):
                yield response
        finally:
            if self._socket is not None:
                self._socket.close()


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
        self._open: set[Connection] = set()
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
        pace = _Pace(self._limits, None if within_s is None else time.monotonic() + within_s)
        hops: list[httpx.Headers] = []
        while True:
            place = _place(url)
            address, may_be_local = self._address(place, may_be_local)
            with self._connected(place, address, headers, pace) as response:
                if not response.has_redirect_location:
                    seen = (response.headers, tuple(hops), place.host, str(place), address)
                    yield Reply(response.status_code, *seen, response.iter_raw(), pace)
                    return
                hops.append(response.headers)
                if len(hops) > MAX_REDIRECTS:
                    raise DownloadError(f"{place.host} redirects more than {MAX_REDIRECTS} times, in a ring perhaps.")
                location = response.headers["Location"]
                try:
                    url = str(place.join(location))
                except httpx.InvalidURL as error:
                    raise InvalidValueError(f"The redirect to {location[:80]!r} cannot be read: {error}.") from error

    @contextmanager
    def _connected(
        self, place: httpx.URL, address: str, headers: Mapping[str, str], pace: _Pace
    ) -> Iterator[httpx.Response]:
        """Ask the checked address; the certificate is checked for the host's name."""
        host, is_secure, limits = place.host, place.scheme == "https", self._limits
        token = self._tokens.of(host) if is_secure else None
        own = {"Host": place.netloc.decode("ascii"), **headers}
        if token:
            own["Authorization"] = f"Bearer {token}"
        verify = is_secure and _certificates(os.environ.get(CERTIFICATES_VARIABLE, ""))
        timeout = httpx.Timeout(limits.silent_s, connect=limits.connect_s)
        connection = Connection()
        with self._lock:
            self._open.add(connection)
        try:
            with ExitStack() as stack:
                stack.enter_context(pace.watched(connection.break_off))
                try:
                    request = httpx.Request(
                        "GET",
                        place.copy_with(host=address),
                        headers=httpx.Headers(own, encoding="utf-8"),
                        extensions={"sni_hostname": place.raw_host.decode("ascii"), "timeout": timeout.as_dict()},
                    )
                    with pace.waiting():
                        response = stack.enter_context(connection.answered(request, verify))
                except (httpx.HTTPError, httpx.InvalidURL) as error:
                    raise pace.error(host) or self._unreached(host, error) from error
                yield response
        finally:
            with self._lock:
                self._open.discard(connection)

    def _unreached(self, host: str, error: Exception) -> DownloadError:
        refusal = _cause(error, ssl.SSLCertVerificationError)
        if refusal is not None:
            return DownloadError(
                f"The certificate of {host} is not trusted ({refusal.verify_message}), so nothing is taken from it. "
                f"Where a proxy of your network has a certificate of its own, name its file in {CERTIFICATES_VARIABLE}."
            )
        return GoneAwayError(
            f"{host} cannot be reached ({_reason(error)}): is this machine connected to the Internet? "
            f"{self._options.remedy}"
        )

    def _address(self, place: httpx.URL, may_be_local: bool) -> tuple[str, bool]:
        """The address to connect to, and whether it is this machine's, so that a redirect may lead there too."""
        host = place.host
        try:
            found = self._find(place.raw_host.decode("ascii"), place.port or PORTS[place.scheme])
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


def _place(text: str) -> httpx.URL:
    """A URL taken apart. Raises `InvalidValueError` for all but http(s) with a host and without a password."""
    text = text.strip()
    try:
        place = httpx.URL(text) if len(text) <= MAX_URL_CHARS else httpx.URL()
    except httpx.InvalidURL as error:
        raise InvalidValueError(f"{text[:80]!r} is no address that can be read: {error}.") from error
    if place.scheme not in PORTS or not place.host:
        raise InvalidValueError(f"{text[:80]!r} is no address of a file; it begins with https://.")
    if place.userinfo or any(sign.isspace() for sign in text):
        raise InvalidValueError("The address has a user name or blanks in it; leave them out.")
    return place


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


def _cause(error: BaseException | None, kind: type[Cause]) -> Cause | None:
    """Find an error of a kind among those that led to this one."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
