"""The file of --auth-file: users with hashed passwords, roles and hashed API keys, as JSON.

`launch.py user` writes it; a running server sees what has changed with its next request.
"""

import hashlib
import hmac
import json
import logging
import os
import re
import secrets
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modules.access.passwords import check_entry, is_password, waste_time
from modules.access.roles import DEFAULT_SEES, Identity, Role, Sees
from modules.errors import InvalidValueError, OutputError, UnknownNameError
from modules.system.atomic_files import write_atomic
from modules.system.bounded import read_json_file
from modules.system.file_names import check_name as check_file_name

log = logging.getLogger(__name__)

VERSION = 1
KEY_MARK = "fw_"
MAX_KEYS = 32  # of one user
MAX_REMEMBERED = 256
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,62}[A-Za-z0-9_]|[A-Za-z0-9_]")


@dataclass(frozen=True)
class ApiKey:
    """`digest` is the SHA-256 of the key in hexadecimal: a key is 256 random bits, which nobody guesses."""

    id: str
    digest: str
    title: str = ""
    created: str = ""  # date, ISO 8601


@dataclass(frozen=True)
class Account:
    """A user of the file. `password` is an entry of `modules.access.passwords`; `sees` None: what is usual for the
    role."""

    name: str
    role: Role
    password: str
    sees: Sees | None = None
    keys: tuple[ApiKey, ...] = ()
    created: str = ""

    def __repr__(self) -> str:
        return f"Account({self.name!r}, {self.role.value})"  # a log shows no hashes

    @property
    def identity(self) -> Identity:
        stamp = hashlib.sha256(self.password.encode()).hexdigest()[:16]
        return Identity(self.name, self.role, self.sees or DEFAULT_SEES[self.role], has_folder=True, stamp=stamp)


Accounts = Mapping[str, Account]
"""By name."""


def check_name(name: str) -> None:
    """Raise `InvalidValueError` for a name that cannot be that of a user and a folder."""
    try:
        is_name = bool(NAME.fullmatch(check_file_name(name)))
    except InvalidValueError:
        is_name = False
    if not is_name:
        raise InvalidValueError(
            f"{name!r} cannot be a user's name: 1 to 64 letters (a to z), digits, and _ . @ - inside, because images "
            "are saved in a folder of that name."
        )


def read_accounts(path: Path) -> dict[str, Account]:
    """The users of a file. Raises `InvalidValueError` for one that cannot be read, is of a newer version, or holds what
    is no user."""
    try:
        found = read_json_file(path)
    except (OSError, ValueError) as error:
        raise InvalidValueError(
            f"--auth-file: {path} cannot be read: {error}. Make it with: launch.py user add NAME --role admin."
        ) from error
    try:
        version, rows = int(found["version"]), found["users"]
        if version > VERSION:
            raise InvalidValueError(
                f"--auth-file: {path} was written by a newer version of this program (format {version}, this one knows "
                f"{VERSION}). Use that version, or another file."
            )
        accounts = [_account(row) for row in rows]
    except (LookupError, TypeError, ValueError) as error:
        raise InvalidValueError(f"--auth-file: {path} is no file of users: {error!r}.") from error
    taken: dict[str, str] = {}
    for account in accounts:
        check_name(account.name)
        _check_entry_of(account, path)
        if account.name.lower() in taken:
            raise InvalidValueError(
                f"--auth-file: {path} names {account.name!r} twice (as {taken[account.name.lower()]!r})."
            )
        taken[account.name.lower()] = account.name
    return {account.name: account for account in accounts}


def write_accounts(path: Path, accounts: Accounts) -> None:
    """Replace the file in one step, readable for its owner only. Raises `OutputError`."""
    rows = [_row(account) for account in accounts.values()]
    data = json.dumps({"version": VERSION, "users": rows}, indent=2).encode() + b"\n"
    try:
        write_atomic(path.resolve(), data, mode=0o600)
    except OSError as error:
        raise OutputError(f"The file of users {path} cannot be written: {error}.") from error


def new_key(account: Account, title: str = "") -> tuple[Account, str]:
    """The user with one more key, and the key itself, which is kept nowhere. Raises `InvalidValueError`."""
    if len(account.keys) >= MAX_KEYS:
        raise InvalidValueError(f"{account.name} has {MAX_KEYS} keys; remove one first.")
    number, secret = secrets.token_hex(4), secrets.token_urlsafe(32)
    text = f"{KEY_MARK}{number}_{secret}"
    key = ApiKey(number, _digest(text), title, time.strftime("%Y-%m-%d"))
    return replace(account, keys=(*account.keys, key)), text


def without_key(account: Account, number: str) -> Account:
    """The user without one of the keys. Raises `UnknownNameError`."""
    if all(key.id != number for key in account.keys):
        raise UnknownNameError.of("key", number, [key.id for key in account.keys])
    return replace(account, keys=tuple(key for key in account.keys if key.id != number))


class AuthFile:
    """The users of a file that may change while the server runs. Safe to use from any thread.

    A file that somebody damages while the server runs changes nothing until it is right again; one that is taken away
    lets nobody in.
    """

    def __init__(self, path: Path) -> None:
        """Raises `InvalidValueError` as `read_accounts`, and for a file without users."""
        self.path = path
        self._lock = threading.Lock()
        self._accounts: Accounts = read_accounts(path)
        self._seen = _state(path)
        self._secret = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, str] = OrderedDict()  # passwords that were right, as a keyed hash
        if not self._accounts:
            # An empty file must not open a page that was meant to be closed.
            raise InvalidValueError(
                f"--auth-file: {path} names no user. Add one: launch.py user add NAME --role admin."
            )

    def __repr__(self) -> str:
        return f"AuthFile({self.path})"

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices for the user about the file."""
        mode = self.path.stat().st_mode if os.name == "posix" else 0
        if not mode & (stat.S_IRWXG | stat.S_IRWXO):
            return ()
        return (f"{self.path} can be read by other users of this machine; change that with: chmod 600 {self.path}",)

    def accounts(self) -> Accounts:
        """The users as the file now has them."""
        with self._lock:
            state = _state(self.path)
            if state != self._seen:
                self._seen = state
                self._accounts = self._read_again(state)
            return self._accounts

    def _read_again(self, state: tuple[int, ...] | None) -> Accounts:
        if state is None:
            log.error("%s is missing: nobody can log in until it is back.", self.path)
            return {}
        try:
            return read_accounts(self.path)
        except InvalidValueError as error:
            log.error("%s The users stay as they were.", error)
            return self._accounts

    def find(self, name: str) -> Identity | None:
        """A user by name."""
        account = self.accounts().get(name)
        return account.identity if account is not None else None

    def check(self, name: str, password: str) -> Identity | None:
        """The user with this name and password. Slow: call it in a thread of its own.

        What was right once is remembered for this run, hashed with a secret of it, because programs send their password
        with every request.
        """
        account = self.accounts().get(name)
        if account is None:
            waste_time(password)
            return None
        mark = hmac.digest(self._secret, f"{name}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        with self._lock:
            known = self._right.get(mark) == account.password
        if known:
            return account.identity
        if not is_password(password, account.password):
            return None
        with self._lock:
            self._right[mark] = account.password
            while len(self._right) > MAX_REMEMBERED:
                self._right.popitem(last=False)
        return account.identity

    def knows(self, name: str, password: str) -> Identity | None:
        """Whether the password is right, where that is remembered; else None. Takes no time."""
        account = self.accounts().get(name)
        mark = hmac.digest(self._secret, f"{name}\0{password}".encode("utf-8", "surrogatepass"), "sha256")
        with self._lock:
            return account.identity if account is not None and self._right.get(mark) == account.password else None

    def by_key(self, text: str) -> Identity | None:
        """The user whose API key this is."""
        given = _digest(text)
        found = None
        for account in self.accounts().values():
            for key in account.keys:
                if hmac.compare_digest(given, key.digest):
                    found = account.identity
        return found


def _state(path: Path) -> tuple[int, ...] | None:
    """Another one when the file has changed; None without a file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _check_entry_of(account: Account, path: Path) -> None:
    try:
        check_entry(account.password)
    except InvalidValueError as error:
        raise InvalidValueError(f"--auth-file: {path}, user {account.name}: {error}") from error


def _account(row: Mapping[str, Any]) -> Account:
    keys: Sequence[Mapping[str, Any]] = row.get("keys", [])
    return Account(
        name=str(row["name"]),
        role=Role(row["role"]),
        password=str(row["password"]),
        sees=Sees(row["sees"]) if row.get("sees") else None,
        keys=tuple(
            ApiKey(str(key["id"]), str(key["digest"]), str(key.get("title", "")), str(key.get("created", "")))
            for key in keys
        ),
        created=str(row.get("created", "")),
    )


def _row(account: Account) -> dict[str, Any]:
    keys = [{"id": key.id, "digest": key.digest, "title": key.title, "created": key.created} for key in account.keys]
    row = {"name": account.name, "role": account.role.value, "password": account.password, "created": account.created}
    return {**row, **({"sees": account.sees.value} if account.sees else {}), **({"keys": keys} if keys else {})}
