"""`launch.py user`: what it writes, that nobody else can read it, and what it says of a mistake."""

import io
import json
import os
import stat
from pathlib import Path

import pytest

from modules.access import passwords
from modules.access.auth_file import AuthFile, read_accounts
from modules.access.passwords import Cost
from modules.access.roles import Role, Sees
from modules.cli.user import main
from modules.errors import InvalidValueError


@pytest.fixture(autouse=True)
def cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passwords.hash_password, "__defaults__", (Cost(4, 1, 1),))


def run(monkeypatch: pytest.MonkeyPatch, file: Path, *words: str, typed: str = "") -> int:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return main([*words, "--auth-file", str(file)])


def test_a_user_is_added_changed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "new" / "users.json"
    assert run(monkeypatch, file, "add", "anna", "--role", "admin", typed="correct horse\n") == 0
    assert f"--auth-file {file}" in capsys.readouterr().out
    assert run(monkeypatch, file, "add", "ben", typed="battery staple\n") == 0
    assert "correct horse" not in file.read_text() and "battery" not in file.read_text()
    users = AuthFile(file)
    assert (found := users.check("anna", "correct horse")) and found.role is Role.ADMIN and found.has_folder
    assert users.check("anna", "battery staple") is None and users.check("nobody", "correct horse") is None

    assert run(monkeypatch, file, "passwd", "anna", typed="another one\n") == 0
    after = users.check("anna", "another one")
    assert after is not None and after.stamp != found.stamp  # a server that runs sees the change
    assert users.check("anna", "correct horse") is None
    assert run(monkeypatch, file, "role", "ben", "viewer", "--sees", "own") == 0
    assert (ben := users.find("ben")) and (ben.role, ben.sees) == (Role.VIEWER, Sees.OWN)
    assert run(monkeypatch, file, "remove", "ben") == 0
    assert users.find("ben") is None
    capsys.readouterr()
    assert run(monkeypatch, file, "list") == 0
    assert capsys.readouterr().out.startswith("anna\tadmin\tsees all images\tsince 20")


@pytest.mark.skipif(os.name != "posix", reason="permissions are those of POSIX")
def test_only_the_owner_may_read_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "users.json"
    run(monkeypatch, file, "add", "anna", "--role", "admin", typed="correct horse\n")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and AuthFile(file).notices == ()
    file.chmod(0o644)
    assert "chmod 600" in AuthFile(file).notices[0]


def test_a_key_is_shown_once_and_kept_as_a_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "users.json"
    run(monkeypatch, file, "add", "anna", typed="correct horse\n")
    capsys.readouterr()
    assert run(monkeypatch, file, "key", "anna", "--title", "plugin") == 0
    text = capsys.readouterr().out.strip()
    assert text not in file.read_text() and text.rpartition("_")[2] not in file.read_text()
    users = AuthFile(file)
    assert (found := users.by_key(text)) and found.name == "anna"
    assert users.by_key(text[:-1]) is None and users.by_key("") is None
    (key,) = read_accounts(file)["anna"].keys
    assert key.title == "plugin"
    assert run(monkeypatch, file, "key", "anna", "--remove", "zzz") == 1 and "Unknown key" in capsys.readouterr().err
    assert run(monkeypatch, file, "key", "anna", "--remove", key.id) == 0
    assert users.by_key(text) is None


@pytest.mark.parametrize(
    ("words", "typed", "sentence"),
    [
        (("add", "../etc"), "correct horse\n", "cannot be a user's name"),
        (("add", "con"), "correct horse\n", "cannot be a user's name"),
        (("add", "Anna"), "correct horse\n", "There is a user 'anna' already"),
        (("add", "ben"), "short\n", "5 characters"),
        (("passwd", "bna"), "correct horse\n", "Unknown user 'bna'"),
    ],
)
def test_mistakes_are_said_and_change_nothing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    typed: str,
    sentence: str,
) -> None:
    file = tmp_path / "users.json"
    run(monkeypatch, file, "add", "anna", typed="correct horse\n")
    before = file.read_bytes()
    assert run(monkeypatch, file, *words, typed=typed) == 1
    assert sentence in capsys.readouterr().err and file.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "cannot be read"),
        ("[]", "no file of users"),
        (json.dumps({"version": 99, "users": []}), "newer version"),
        (json.dumps({"version": 1, "users": []}), "names no user"),
        (json.dumps({"version": 1, "users": [{"name": "a", "role": "king", "password": "x"}]}), "no file of users"),
        (json.dumps({"version": 1, "users": [{"name": "a", "role": "user", "password": "plain"}]}), "no scrypt hash"),
        (
            json.dumps(
                {
                    "version": 1,
                    "users": [
                        {"name": "a", "role": "user", "password": "$scrypt$ln=20,r=32,p=1$AAAAAAAAAAA$AAAAAAAAAAA"}
                    ],
                }
            ),
            "at most 1 GB",
        ),
    ],
)
def test_a_file_that_holds_no_users_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    file = tmp_path / "users.json"
    file.write_text(text)
    with pytest.raises(InvalidValueError, match=sentence):
        AuthFile(file)


def test_while_the_server_runs_damage_changes_nothing_and_a_missing_file_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "users.json"
    run(monkeypatch, file, "add", "anna", typed="correct horse\n")
    users, before = AuthFile(file), file.read_bytes()
    file.write_text("{")
    assert users.check("anna", "correct horse") is not None
    file.unlink()
    assert users.check("anna", "correct horse") is None
    file.write_bytes(before)
    assert users.check("anna", "correct horse") is not None


def test_parameters_stand_in_each_entry() -> None:
    for cost in (Cost(4, 1, 1), Cost(5, 2, 2)):
        entry = passwords.hash_password("correct horse", cost)
        assert entry.startswith(f"$scrypt$ln={cost.log2_n},r={cost.r},p={cost.p}$")
        assert passwords.is_password("correct horse", entry) and not passwords.is_password("correct hors", entry)
    composed, apart = "p\u00e4sswort", "pa\u0308sswort"
    assert passwords.is_password(apart, passwords.hash_password(composed, Cost(4, 1, 1)))
