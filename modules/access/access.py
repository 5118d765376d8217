"""Who may use the page and the API: the users that flags name, and those of the file of --auth-file."""

import base64
import binascii
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

from modules.access.auth_file import AuthFile
from modules.access.roles import ANYBODY, Identity
from modules.access.sessions import Sessions
from modules.access.throttle import Throttle
from modules.errors import InvalidValueError
from modules.flags.flags import Flags
from modules.flags.options import parse_credentials

OPEN = (
    "This server is open: whoever reaches {host} can use it, change its settings and see every image "
    "(--i-know-this-is-open). Users (--auth-file, --gradio-auth) or a token (--access-token) close it."
)
IDLE_S, LONGEST_S = 12 * 3600.0, 7 * 24 * 3600.0


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

    @property
    def names(self) -> frozenset[str]:
        """Who they are."""
        return frozenset(name for name, _ in self.pairs)


def basic_credentials(header: str | None) -> tuple[str, str] | None:
    """Name and password in an Authorization header (RFC 7617, Basic); None for anything else."""
    scheme, _, encoded = (header or "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return None
    return (name, password) if colon else None


@dataclass(frozen=True)
class Access:
    """The users of the page and of the API. The API's are the page's where it has none of its own. Those of `file` are
    users of both; users that a flag names are admins."""

    page: Users = Users()
    api: Users = Users()
    token: str = field(default="", repr=False)  # what the address must carry; "": nothing
    is_local: bool = True  # only this machine can reach the server
    notices: tuple[str, ...] = ()
    file: AuthFile | None = None
    sessions: Sessions = field(default_factory=lambda: Sessions(IDLE_S, LONGEST_S), compare=False, repr=False)
    throttle: Throttle = field(default_factory=Throttle, compare=False, repr=False)

    @property
    def shares_users(self) -> bool:
        """Whether a user of the page may use the whole API."""
        return self.api == self.page

    @property
    def page_is_closed(self) -> bool:
        """Whether one has to log in on the page."""
        return bool(self.page) or self.file is not None

    @property
    def api_is_closed(self) -> bool:
        """Whether programs have to say who they are."""
        return bool(self.api) or self.file is not None

    def named(self, name: str) -> Identity | None:
        """A user of the page by name. Without users everybody is the admin without a name."""
        if not self.page_is_closed:
            return ANYBODY
        if name in self.page.names:
            return self._of_flag(name, of_page=True)
        return self.file.find(name) if self.file is not None else None

    def login(self, name: str, password: str) -> Identity | None:
        """The user of the page with this name and password. Slow: call it in a thread of its own."""
        if self.page.accepts(name, password):
            return self._of_flag(name, of_page=True)
        if name in self.page.names or self.file is None:
            return None
        return self.file.check(name, password)

    def by_password(self, name: str, password: str) -> Identity | None:
        """The user of the API with this name and password. Slow, as `login`."""
        if self.api.accepts(name, password):
            return self._of_flag(name)
        return self.file.check(name, password) if self.file is not None and name not in self.api.names else None

    def by_password_at_once(self, name: str, password: str) -> Identity | None:
        """Who has this name and password, without computing; None where a hash is needed, or it is wrong."""
        if self.api.accepts(name, password):
            return self._of_flag(name)
        return self.file.knows(name, password) if self.file is not None and name not in self.api.names else None

    def by_key(self, key: str) -> Identity | None:
        """The user whose API key this is."""
        return self.file.by_key(key) if self.file is not None else None

    def of_session(self, secret: str, is_use: bool = True) -> Identity | None:
        """Whose session this is: None where it has ended, the user is gone, or the password has changed since."""
        session = self.sessions.find(secret, is_use)
        identity = self.named(session.name) if session is not None else None
        if session is None or identity is None or identity.stamp != session.stamp:
            return None
        return identity

    def _of_flag(self, name: str, of_page: bool = False) -> Identity:
        return Identity(name, is_of_page=of_page and not self.shares_users)


def access_of(flags: Flags) -> Access:
    """The users that --gradio-auth, --gradio-auth-path, --api-auth and --auth-file name, and the token of
    --access-token.

    Raises InvalidValueError for a file that cannot be read or holds what is no user.
    """
    page = Users((*parse_credentials(flags.gradio_auth or ""), *_from_file(flags.gradio_auth_path)))
    api = Users(parse_credentials(flags.api_auth or "")) if flags.api_auth else page
    file = AuthFile(Path(flags.auth_file).expanduser().absolute()) if flags.auth_file else None
    token = secrets.token_urlsafe(16) if flags.access_token == "" else flags.access_token or ""
    is_local = is_loopback(flags.host)
    is_open = not is_local and not page and not token and file is None
    notices = (OPEN.format(host=flags.host),) if is_open else ()
    sessions = Sessions(flags.session_idle_hours * 3600.0, flags.session_hours * 3600.0)
    return Access(page, api, token, is_local, (*notices, *(file.notices if file else ())), file, sessions)


def check_protected(flags: Flags) -> None:
    """Refuse to answer other machines without anything that keeps strangers out. Raises `InvalidValueError`."""
    has_users = bool(
        flags.gradio_auth or flags.gradio_auth_path or flags.auth_file or (flags.nowebui and flags.api_auth)
    )
    if is_loopback(flags.host) or has_users or flags.access_token is not None or flags.i_know_this_is_open:
        return
    raise InvalidValueError(
        f"Other machines could reach this server at {flags.host}, and nothing would keep strangers out. Give users "
        "(--auth-file, or --gradio-auth user:password), or a token in the address (--access-token), or, in a network "
        "you trust, --i-know-this-is-open."
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
