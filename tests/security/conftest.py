"""A program with users of all roles, whose passwords cost next to nothing to check."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from modules.access.auth_file import Account, new_key, write_accounts
from modules.access.passwords import Cost, hash_password
from modules.access.roles import Role, Sees
from modules.api.access.guard import install_guard
from modules.services import Services
from tests.fakes import fake_services, mounted_page

CHEAP = Cost(4, 1, 1)
BASE = "http://127.0.0.1:7860"
PASSWORDS = {"ada": "admin password", "ben": "user password", "cleo": "user password too", "vic": "viewer password"}
ROLES = {"ada": Role.ADMIN, "ben": Role.USER, "cleo": Role.USER, "vic": Role.VIEWER}


def account(name: str, sees: Sees | None = None) -> Account:
    return Account(name, ROLES[name], hash_password(PASSWORDS[name], CHEAP), sees)


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    """By name, filled by `users_file`."""
    return {}


@pytest.fixture(scope="module")
def users_file(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Path:
    file = tmp_path_factory.mktemp("users") / "users.json"
    accounts = {}
    for name in PASSWORDS:
        accounts[name], keys[name] = new_key(account(name), "test")
    write_accounts(file, accounts)
    return file


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, users_file: Path) -> Iterator[Services]:
    found = fake_services(tmp_path_factory.mktemp("data"), auth_file=str(users_file), api_server_stop=True)
    yield found
    found.dispatcher.close()


@pytest.fixture(scope="module")
def app(services: Services) -> FastAPI:
    """Page and API with everything in front of them, as they are served."""
    app = mounted_page(services)
    install_guard(app, services.flags, services.access)
    return app


@pytest.fixture(scope="module")
def clients(app: FastAPI) -> Iterator[dict[str, TestClient]]:
    """A client for each user, logged in on the page; "" is nobody."""
    found = {name: TestClient(app, base_url=BASE) for name in ("", *PASSWORDS)}
    for name, password in PASSWORDS.items():
        reply = found[name].post("/login", data={"username": name, "password": password})
        assert reply.status_code == 200, reply.text
    yield found
    for client in found.values():
        client.close()
