"""HTTP for files: only to addresses that may be reached, in ranges, with errors that say what to do.

The host of each hop is resolved once, all of its addresses are checked, and the connection goes to one that was
checked, so that a name which changes its address in between (DNS rebinding) gains nothing. Only https, except where the
user names an address of this machine; a redirect never leads from the Internet to a private address.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

import httpx

from modules.errors import BusyError, FeatherweightError, InvalidValueError
from modules.public_addresses import Resolve, is_loopback, is_public, resolve
from modules.version import PROGRAM_VERSION

MAX_REDIRECTS = 5
MAX_URL_CHARS = 4096
PORTS = {"http": 80, "https": 443}
REDIRECTS = (301, 302, 303, 307, 308)
TOKEN_VARIABLES = {"huggingface.co": "HF_TOKEN", "civitai.com": "CIVITAI_TOKEN"}
"""The environment variables that hold the tokens of a host."""
BY_HAND = (
    "Without a network, get the file on another machine and put it into models/Stable-diffusion, models/VAE, "
    "models/text_encoder or models/Lora."
)
TOKENS_FILE = "tokens.txt"
"""In the data folder: lines of a host and its token."""


class DownloadError(FeatherweightError):
    """The other side does not give the file; the message says why and what to do."""

    status = 424  # what the request depends on has failed


class GoneAwayError(DownloadError):
    """The connection broke or stalled; what came is kept, and another try goes on from there."""


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
    """Seconds: until connected, and without a byte."""

    connect_s: float = 15.0
    silent_s: float = 30.0


@dataclass(frozen=True, eq=False)
class Reply:
    """An answer whose body has not been read; `hops` are the headers of the redirects before it."""

    status: int
    headers: httpx.Headers
    hops: tuple[httpx.Headers, ...]
    host: str
    response: httpx.Response

    def header(self, name: str) -> str | None:
        """A header of the answer or of a redirect before it, the first that has it."""
        return next((found[name] for found in (*self.hops, self.headers) if name in found), None)

    def chunks(self) -> Iterator[bytes]:
        """The body as it comes. Raises `GoneAwayError`."""
        try:
            yield from self.response.iter_raw()
        except httpx.HTTPError as error:
            raise GoneAwayError(f"The connection to {self.host} broke off ({_reason(error)}).") from error


class FileTransport:
    """Asks servers for files. One for a program; threads may share it."""

    def __init__(
        self, tokens: Tokens | None = None, find_addresses: Resolve = resolve, timeouts: Timeouts | None = None
    ) -> None:
        limits = timeouts or Timeouts()
        self._tokens = tokens or Tokens()
        self._find = find_addresses
        timeout = httpx.Timeout(limits.silent_s, connect=limits.connect_s)
        # No proxies and no certificates of the environment: they would connect to addresses that were not checked.
        self._client = httpx.Client(timeout=timeout, follow_redirects=False, trust_env=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    @contextmanager
    def get(
        self, url: str, begin: int | None = None, end: int | None = None, if_range: str | None = None
    ) -> Iterator[Reply]:
        """Ask for a file, or for its bytes from `begin` up to and with `end` (None: to its end), if it is still the one
        with the ETag `if_range`.

        Raises `InvalidValueError` for an address that must not be reached, `BusyError` where the other side asks to
        wait, and `DownloadError` for every other answer than 200, 206 and 416.
        """
        headers = {"User-Agent": PROGRAM_VERSION, "Accept": "*/*", "Accept-Encoding": "identity"}
        if begin is not None:
            headers["Range"] = f"bytes={begin}-{'' if end is None else end}"
            headers |= {"If-Range": if_range} if if_range else {}
        hops: list[httpx.Headers] = []
        may_be_local = True  # what the user typed may be this machine
        while True:
            place = _place(url)
            address, is_local = self._address(place, may_be_local)
            may_be_local = is_local
            try:
                response = self._client.send(self._request(place, address, headers), stream=True)
            except httpx.HTTPError as error:
                raise GoneAwayError(_unreachable(place, error)) from error
            try:
                if response.status_code in REDIRECTS and "Location" in response.headers:
                    hops.append(response.headers)
                    if len(hops) > MAX_REDIRECTS:
                        raise DownloadError(
                            f"{place.hostname} redirects more than {MAX_REDIRECTS} times, in a ring perhaps."
                        )
                    url = urljoin(url, response.headers["Location"])
                    continue
                _check(response, place)
                yield Reply(response.status_code, response.headers, tuple(hops), place.hostname or "", response)
                return
            finally:
                response.close()

    def _request(self, place: SplitResult, address: str, headers: Mapping[str, str]) -> httpx.Request:
        host = place.hostname or ""
        token = self._tokens.of(host) if place.scheme == "https" else None
        own = {**headers, "Host": place.netloc} | ({"Authorization": f"Bearer {token}"} if token else {})
        where = f"[{address}]" if ":" in address else address
        target = urlunsplit((place.scheme, f"{where}:{_port(place)}", place.path or "/", place.query, ""))
        return self._client.build_request("GET", target, headers=own, extensions={"sni_hostname": host})

    def _address(self, place: SplitResult, may_be_local: bool) -> tuple[str, bool]:
        """The address to connect to, and whether it is this machine's."""
        host = place.hostname or ""
        try:
            found = self._find(host, _port(place))
        except (OSError, UnicodeError) as error:
            raise GoneAwayError(
                f"The host {host} is not found ({error}): is this machine connected to the Internet? {BY_HAND}"
            ) from error
        if found and all(is_loopback(address) for address in found) and may_be_local:
            return found[0], True
        if place.scheme != "https":
            raise InvalidValueError(f"{host} is asked for over http; allowed is https, and http on this machine alone.")
        if not found or not all(is_public(address) for address in found):
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


def _port(place: SplitResult) -> int:
    return place.port or PORTS[place.scheme]


def _check(response: httpx.Response, place: SplitResult) -> None:
    status, host = response.status_code, place.hostname
    if status in (200, 206, 416):
        return
    if status in (401, 403):
        variable = next((name for known, name in TOKEN_VARIABLES.items() if str(host).endswith(known)), None)
        remedy = f"set {variable} to a token of your account" if variable else "add its token to tokens.txt"
        raise DownloadError(
            f"{host} gives this file to known users only (answer {status}): accept its licence on its page where it "
            f"has one, and {remedy} (docs/get-models.md)."
        )
    if status == 404:
        raise DownloadError(f"{host} has no such file (answer 404): check the name, or look for it on its page.")
    if status in (429, 503):
        wait = response.headers.get("Retry-After", "")
        raise BusyError(
            f"{host} asks to wait{f' for {wait} s' if wait.isdigit() else ''} (answer {status}); try again later."
        )
    raise DownloadError(f"{host} answers {status}: try again later, or get the file in a browser.")


def _unreachable(place: SplitResult, error: httpx.HTTPError) -> str:
    return (
        f"{place.hostname} cannot be reached ({_reason(error)}): is this machine connected to the Internet? {BY_HAND}"
    )


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__
