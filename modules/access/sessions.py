"""Logins on the page: a secret in a cookie, known here only by its hash, that ends unused, and in any case.

They are kept in memory: after a restart everybody logs in again.
"""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from modules.access.roles import Identity

MAX_SESSIONS = 4096
MAX_SESSIONS_OF_USER = 64
MAX_PAGES = 16384


@dataclass(frozen=True)
class Session:
    """Whose it is; `stamp` is `Identity.stamp` at the login. Times are of a monotonic clock, in seconds."""

    name: str
    stamp: str
    opened_at: float
    used_at: float


class Sessions:
    """The logins that have not ended. Safe to use from any thread."""

    def __init__(self, idle_s: float, longest_s: float, now: Callable[[], float] = time.monotonic) -> None:
        self.idle_s = idle_s
        self.longest_s = longest_s
        self._now = now
        self._lock = threading.Lock()
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._pages: OrderedDict[str, str] = OrderedDict()  # the page's own session ids, and whose they are

    def open(self, identity: Identity) -> str:
        """Begin a session; returns the secret that proves it."""
        secret = secrets.token_urlsafe(32)
        now = self._now()
        with self._lock:
            self._sessions[_key(secret)] = Session(identity.name, identity.stamp, now, now)
            own = [key for key, session in self._sessions.items() if session.name == identity.name]
            for key in own[:-MAX_SESSIONS_OF_USER]:
                del self._sessions[key]
            while len(self._sessions) > MAX_SESSIONS:
                self._sessions.popitem(last=False)
        return secret

    def find(self, secret: str, is_use: bool = True) -> Session | None:
        """The session of a secret, None for one that has ended. `is_use` False: the page only looks how far something
        is, which does not keep a session from ending."""
        key, now = _key(secret), self._now()
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                return None
            if now - session.used_at > self.idle_s or now - session.opened_at > self.longest_s:
                del self._sessions[key]
                return None
            if is_use:
                session = Session(session.name, session.stamp, session.opened_at, now)
                self._sessions[key] = session
            return session

    def close(self, secret: str) -> None:
        """End a session; nothing happens for one that has ended."""
        with self._lock:
            self._sessions.pop(_key(secret), None)

    def claims(self, page: str, name: str) -> bool:
        """Whether a page's own session id (its stream of events goes by it) is this user's: whoever used it first."""
        with self._lock:
            owner = self._pages.setdefault(page, name)
            self._pages.move_to_end(page)
            while len(self._pages) > MAX_PAGES:
                self._pages.popitem(last=False)
            return owner == name


def _key(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()
