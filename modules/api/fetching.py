"""Images that a caller of the API names by URL: fetched only where a setting allows it, and never from this machine or
its network unless another setting allows that too.

A host name is resolved once, all of its addresses are checked, and the connection goes to one that was checked, so that
a name which changes its address in between (DNS rebinding) gains nothing. Redirects are followed by the same rules.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import SplitResult, urljoin, urlsplit

from modules.errors import InvalidValueError
from modules.public_addresses import Resolve, is_public, resolve
from modules.settings.values import Settings
from modules.version import PROGRAM_VERSION

MAX_BYTES = 64 * 1024 * 1024
MAX_SECONDS = 30.0
MAX_REDIRECTS = 5
MAX_URL_CHARS = 2048
CHUNK_BYTES = 64 * 1024
PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)


@dataclass(frozen=True)
class FetchLimits:
    """What one image may take, redirects included."""

    size_bytes: int = MAX_BYTES
    seconds: float = MAX_SECONDS


def is_url(text: str) -> bool:
    """Whether a field that holds an image names one by URL."""
    return text.lstrip()[:8].lower().startswith(("http://", "https://"))


def fetch(
    url: str, what: str, settings: Settings, find_addresses: Resolve = resolve, limits: FetchLimits | None = None
) -> bytes:
    """The bytes behind a URL. Raises `InvalidValueError`, beginning with `what`, where URLs are not allowed, for an
    address that must not be reached, and for anything that goes wrong on the way."""
    options, limits = settings.api, limits or FetchLimits()
    if not options.api_enable_requests:
        raise InvalidValueError(
            f"{what} is an address; images are not fetched. Send the file itself as base64 text, or switch on "
            "api_enable_requests in Settings > API."
        )
    deadline = time.monotonic() + limits.seconds
    url = url.strip()
    for _ in range(MAX_REDIRECTS + 1):
        place = _place(url, what)
        address = _address(place, what, options.api_forbid_local_requests, find_addresses)
        try:
            found = _answer(place, address, options.api_useragent or PROGRAM_VERSION, deadline, limits.size_bytes)
        except TimeoutError as error:
            raise InvalidValueError(
                f"{what} took longer than {limits.seconds:g} s to fetch. Send the file itself as base64 text."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            raise InvalidValueError(f"{what} cannot be fetched from {place.hostname}: {error}.") from error
        match found:
            case bytes():
                return found
            case str():
                url = urljoin(url, found)
            case _:
                raise InvalidValueError(
                    f"{what} is larger than {limits.size_bytes} bytes. Make it smaller first."
                    if found == _TOO_LARGE
                    else f"{what} cannot be fetched: {place.hostname} answers {found}."
                )
    raise InvalidValueError(f"{what} is redirected more than {MAX_REDIRECTS} times. Give the address of the file.")


_TOO_LARGE = -1


def _place(url: str, what: str) -> SplitResult:
    """A URL taken apart. Raises `InvalidValueError` for all but http(s) with a host and without a password."""
    try:
        place = urlsplit(url)
        _ = place.port
    except ValueError as error:
        raise InvalidValueError(f"{what} is no address that can be read: {error}.") from error
    if place.scheme.lower() not in PORTS or not place.hostname or len(url) > MAX_URL_CHARS:
        raise InvalidValueError(f"{what} leads to {url[:80]!r}; allowed are addresses with http:// or https://.")
    if place.username is not None or any(ord(sign) <= 32 or ord(sign) == 127 for sign in url):
        raise InvalidValueError(f"{what} is an address with a user name or blanks in it; leave them out.")
    return place


def _address(place: SplitResult, what: str, forbids_local: bool, find_addresses: Resolve) -> str:
    """The address to connect to. Raises `InvalidValueError` for a host that is not found, or whose addresses are not
    all public."""
    host = place.hostname or ""
    try:
        found = find_addresses(host, _port(place))
    except (OSError, UnicodeError) as error:
        raise InvalidValueError(f"{what}: the host {host} is not found ({error}).") from error
    if not found:
        raise InvalidValueError(f"{what}: the host {host} is not found.")
    if forbids_local and not all(is_public(address) for address in found):
        raise InvalidValueError(
            f"{what} leads to {host}, which is this machine or one of its network; that is not allowed. Send the file "
            "itself as base64 text."
        )
    return found[0]


def _port(place: SplitResult) -> int:
    return place.port or PORTS[place.scheme.lower()]


def _answer(place: SplitResult, address: str, agent: str, deadline: float, max_bytes: int) -> bytes | str | int:
    """The body, the address of a redirect, or the status of an error (`_TOO_LARGE`: the body is). Raises
    `TimeoutError` at the deadline, however slowly the other side sends."""
    connection = _Connection(place, address, deadline)
    try:
        path = f"{place.path or '/'}{f'?{place.query}' if place.query else ''}"
        connection.request("GET", path, headers={"User-Agent": agent, "Accept": "image/*", "Host": place.netloc})
        reply = connection.getresponse()
        if reply.status in REDIRECTS:
            return reply.headers.get("Location") or reply.status
        if reply.status != 200:
            return reply.status
        body = bytearray()
        while chunk := reply.read1(CHUNK_BYTES):
            body += chunk
            if len(body) > max_bytes:
                return _TOO_LARGE
        _left(deadline)  # else the end of the body may be that of our patience
        return bytes(body)
    except (OSError, http.client.HTTPException):
        _left(deadline)
        raise
    finally:
        connection.end()


def _left(deadline: float) -> float:
    """Seconds until then. Raises `TimeoutError` where there are none."""
    seconds = deadline - time.monotonic()
    if seconds <= 0:
        raise TimeoutError
    return seconds


class _Connection(http.client.HTTPConnection):
    """A connection to one address of a host that was checked, which is cut at the deadline; the certificate is checked
    for the host's name."""

    def __init__(self, place: SplitResult, address: str, deadline: float) -> None:
        super().__init__(place.hostname or "", _port(place), timeout=_left(deadline))
        self._address = address
        self._is_secure = place.scheme.lower() == "https"
        self._own: socket.socket | None = None  # a response takes the other reference along
        self._cut = threading.Timer(_left(deadline), self._shut)
        self._cut.daemon = True

    def connect(self) -> None:
        self._own = self.sock = socket.create_connection((self._address, self.port), self.timeout)
        self._cut.start()
        if self._is_secure:
            context = ssl.create_default_context()
            secure = context.wrap_socket(self.sock, server_hostname=self.host, do_handshake_on_connect=False)
            self._own = self.sock = secure
            secure.do_handshake()

    def end(self) -> None:
        """Close it, and the socket under a response as well."""
        self._cut.cancel()
        self.close()
        if self._own is not None:
            self._own.close()

    def _shut(self) -> None:
        with suppress(OSError):  # the other side may have closed it
            if self._own is not None:
                self._own.shutdown(socket.SHUT_RDWR)
