"""Who may use the page and the API: one list of users for each, read once from the flags."""

import base64
import binascii
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.flags.options import parse_credentials

OPEN = (
    "This server is open: whoever reaches {host} can use it, change its settings and see every image "
    "(--i-know-this-is-open). A login (--gradio-auth) or a token (--access-token) closes it."
)


@dataclass(frozen=True)
class Users:
    """User names with their passwords. No users: everybody may enter."""

    pairs: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.pairs)

    def __repr__(self) -> str:
        return f"Users({len(self.pairs)})"  # a log never shows a password

    def accepts(self, user: str, password: str) -> bool:
        """Whether this is one of the users, in a time that does not depend on which one was nearly right."""
        given = f"{user}:{password}".encode()
        matches = [secrets.compare_digest(given, f"{name}:{secret}".encode()) for name, secret in self.pairs]
        return any(matches)

    def accepts_header(self, header: str | None) -> bool:
        """Whether an Authorization header (RFC 7617, Basic) carries one of the users."""
        return self.user_of(header) is not None

    def user_of(self, header: str | None) -> str | None:
        """The user whose name and password an Authorization header carries; None for anything else."""
        scheme, _, encoded = (header or "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            user, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, ValueError):
            return None
        return user if colon and self.accepts(user, password) else None


@dataclass(frozen=True)
class Access:
    """The users of the page and of the API. The API's are the page's where it has none of its own."""

    page: Users = Users()
    api: Users = Users()
    token: str = field(default="", repr=False)  # what the address must carry; "": nothing
    is_local: bool = True  # only this machine can reach the server
    notices: tuple[str, ...] = ()

    @property
    def shares_users(self) -> bool:
        """Whether a user of the page may use the whole API."""
        return self.api == self.page


def access_of(flags: Flags) -> Access:
    """The users that --gradio-auth, --gradio-auth-path and --api-auth name, and the token of --access-token.

    Raises InvalidValueError for a file that cannot be read or has a line that is not `user:password`.
    """
    page = Users((*parse_credentials(flags.gradio_auth or ""), *_from_file(flags.gradio_auth_path)))
    api = Users(parse_credentials(flags.api_auth or "")) if flags.api_auth else page
    token = secrets.token_urlsafe(16) if flags.access_token == "" else flags.access_token or ""
    is_local = is_loopback(flags.host)
    is_open = not is_local and not page and not token
    return Access(page, api, token, is_local, (OPEN.format(host=flags.host),) if is_open else ())


def check_protected(flags: Flags) -> None:
    """Refuse to answer other machines without anything that keeps strangers out. Raises `InvalidValueError`."""
    has_users = bool(flags.gradio_auth or flags.gradio_auth_path or (flags.nowebui and flags.api_auth))
    if is_loopback(flags.host) or has_users or flags.access_token is not None or flags.i_know_this_is_open:
        return
    raise InvalidValueError(
        f"Other machines could reach this server at {flags.host}, and nothing would keep strangers out. Give a login "
        "(--gradio-auth user:password), or a token in the address (--access-token), or, in a network you trust, "
        "--i-know-this-is-open."
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server at this address or name."""
    name = host.strip("[]").lower()
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


def _from_file(path: str | None) -> tuple[tuple[str, str], ...]:
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, ValueError) as error:
        raise InvalidValueError(f"--gradio-auth-path: {path} cannot be read: {error}.") from error
    users: list[tuple[str, str]] = []
    for number, line in enumerate(lines, 1):
        found = parse_credentials(line)
        if any(not user for user, _ in found) or (line.strip(" \t,") and not found):
            raise InvalidValueError(f"--gradio-auth-path: line {number} of {path} is not user:password.")
        users.extend(found)
    if not users:
        # An empty file must not open a page that was meant to be closed.
        raise InvalidValueError(f"--gradio-auth-path: {path} names no user. Write one user:password a line.")
    return tuple(users)
