"""`launch.py update`: by git or from an archive, a backup before it, and the way back. No network."""

import io
import json
import sqlite3
import subprocess
import tarfile
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pytest

from modules.setup import archive, update
from modules.setup.process import Outcome, Runner
from modules.system.atomic_files import write_atomic
from modules.system.folder_lock import FolderLock
from tests.setup.fakes import recording

FILES = {
    "launch.py": "old",
    "webui.py": "same",
    "requirements.txt": "a==1\n",
    "modules/version.py": 'VERSION = "0.1.0"\n',
    "modules/gone.py": "gone in the new version",
}
NEW = {
    **{name: text for name, text in FILES.items() if name != "modules/gone.py"},
    **{"launch.py": "new", "modules/version.py": 'VERSION = "0.2.0"\n', "modules/added.py": "added"},
}


def write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


def program(root: Path) -> dict[str, str]:
    """The program's files as they are now."""
    return {
        path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(root.rglob("*.py")) + sorted(root.glob("*.txt"))
        if ".git" not in path.parts
    }


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data folder with settings and a database in use."""
    folder = tmp_path / "data"
    write(folder, {"config.json": '{"samples_format": "webp"}', "styles.csv": "name,prompt,negative_prompt\nInk,x,\n"})
    with closing(sqlite3.connect(folder / "history.sqlite")) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE images (path TEXT)")
        db.execute("INSERT INTO images VALUES ('a.png')")
        db.commit()
    return folder


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The program's folder without git; pip freeze answers at once."""
    folder = tmp_path / "program"
    write(folder, FILES)
    real = Runner({"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}, lambda line: None)

    def run(command: list[str]) -> Outcome:
        return Outcome(0, "torch==2.13.0\n") if "pip" in command else real(command)

    monkeypatch.setattr(update, "ROOT", folder)
    monkeypatch.setattr(update, "Runner", lambda environ: run)
    return folder


def run(data: Path, *words: str) -> int:
    return update.main((*words, "--data-dir", str(data)))


def git(folder: Path, *words: str) -> None:
    who = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "init.defaultBranch=main")
    subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True)


def zipped(path: Path, files: Mapping[str, str], top: str = "featherweight-0.2.0/") -> Path:
    with zipfile.ZipFile(path, "w") as pack:
        for name, text in files.items():
            pack.writestr(top + name, text)
    return path


def taped(path: Path, files: Mapping[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tape:
        for name, text in files.items():
            info = tarfile.TarInfo(f"featherweight/{name}")
            info.size = len(text.encode())
            tape.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.fixture
def cloned(root: Path, tmp_path: Path) -> Path:
    """The program as a clone of a bare repository, which has one more commit."""
    bare, work = tmp_path / "bare.git", tmp_path / "work"
    git(tmp_path, "init", "-q", "--bare", str(bare))
    git(root, "init", "-q")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "Old")
    git(root, "push", "-q", str(bare), "HEAD:main")
    git(root, "remote", "add", "origin", str(bare))
    git(root, "fetch", "-q", "origin")
    git(root, "branch", "-q", "--set-upstream-to=origin/main")
    git(tmp_path, "clone", "-q", "-b", "main", str(bare), str(work))
    git(work, "rm", "-q", "modules/gone.py")
    write(work, NEW)
    git(work, "add", "-A")
    git(work, "commit", "-qm", "A better launch")
    git(work, "push", "-q", "origin", "HEAD:main")
    return root


def test_git_pull_with_a_backup_and_back(cloned: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(data) == 0
    assert program(cloned) == NEW
    out = capsys.readouterr().out
    assert "1 changes" in out and "A better launch" in out and "--undo" in out
    (backup,) = (data / "backups").iterdir()
    assert (backup / "requirements.lock").read_text(encoding="utf-8") == "torch==2.13.0\n"
    assert json.loads((backup / "config.json").read_text(encoding="utf-8")) == {"samples_format": "webp"}
    with closing(sqlite3.connect(backup / "history.sqlite")) as db:
        assert db.execute("SELECT path FROM images").fetchall() == [("a.png",)]
    assert run(data) == 0
    assert "is up to date" in capsys.readouterr().out and len(list((data / "backups").iterdir())) == 1
    assert run(data, "--undo") == 0
    assert program(cloned) == FILES
    assert run(data, "--undo") == 1
    assert "There is no update to undo" in capsys.readouterr().err


def test_a_pull_that_fails_changes_nothing(cloned: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cloned / "launch.py").write_text("mine", encoding="utf-8")
    assert run(data) == 1
    error = capsys.readouterr().err
    assert "git pull failed" in error and "git stash" in error
    assert program(cloned)["launch.py"] == "mine" and list((data / "backups").iterdir()) == []


def test_undo_refuses_where_something_was_committed_since(
    cloned: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data) == 0
    git(cloned, "commit", "-q", "--allow-empty", "-m", "Mine")
    assert run(data, "--undo") == 1
    assert "not where the update left it" in capsys.readouterr().err


@pytest.mark.parametrize("pack", [zipped, taped])
def test_an_archive_replaces_adds_removes_and_goes_back(root: Path, data: Path, tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    write(root, {"outputs/mine.txt": "mine", "models/x.txt": "mine"})
    ending = "zip" if pack is zipped else "tar.gz"
    theirs = ("outputs/mine.txt", "config.json", "Config.json", "OUTPUTS/x", ".GIT/hooks/x", "GIT~1/hooks/x")
    (root / "webui-user.sh").write_text("mine", encoding="utf-8")
    file = pack(tmp_path / f"new.{ending}", {**NEW, **dict.fromkeys((*theirs, "webui-user.sh"), "theirs")})
    assert run(data, str(file)) == 0
    assert program(root) == NEW
    assert (root / "outputs/mine.txt").read_text(encoding="utf-8") == "mine" and not (root / "config.json").exists()
    assert (root / "webui-user.sh").read_text(encoding="utf-8") == "mine"
    assert not [path for path in root.rglob("*") if path.is_file() and path.read_bytes() == b"theirs"]
    assert run(data, "--undo") == 0
    assert program(root) == FILES


def test_undo_puts_back_a_database_with_another_format(root: Path, data: Path, tmp_path: Path) -> None:
    assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 0
    with closing(sqlite3.connect(data / "history.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
        db.commit()
    (data / "config.json").write_text('{"samples_format": "jpg"}', encoding="utf-8")
    assert run(data, "--undo") == 0
    with closing(sqlite3.connect(data / "history.sqlite")) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (0,)
        assert db.execute("SELECT path FROM images").fetchall() == [("a.png",)]
    assert "jpg" in (data / "config.json").read_text(encoding="utf-8"), "the same format: the newer settings stay"
    (backup,) = (data / "backups").iterdir()
    assert (backup / "after" / "history.sqlite").exists()


def test_undo_puts_back_all_settings_where_asked(root: Path, data: Path, tmp_path: Path) -> None:
    assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 0
    (data / "config.json").write_text('{"samples_format": "jpg"}', encoding="utf-8")
    assert run(data, "--undo", "--with-settings") == 0
    assert "webp" in (data / "config.json").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["../out.py", "/out.py", "a/../../out.py", "C:/out.py", "..\\out.py"])
@pytest.mark.parametrize("pack", [zipped, taped])
def test_names_that_lead_out_are_refused(
    name: str, pack: object, root: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if pack is zipped:
        file = zipped(tmp_path / "bad.zip", {**NEW, name: "x"}, top="")
    else:
        with tarfile.open(tmp_path / "bad.tar.gz", "w:gz") as tape:
            tape.addfile(tarfile.TarInfo(name))
        file = tmp_path / "bad.tar.gz"
    assert run(data, str(file)) == 1
    assert "leads out of its folder" in capsys.readouterr().err
    assert program(root) == FILES and list((data / "backups").iterdir()) == []


def test_links_foreign_and_damaged_archives_are_refused(
    root: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(tmp_path / "link.tar.gz", "w:gz") as tape:
        info = tarfile.TarInfo("modules/out")
        info.type, info.linkname = tarfile.SYMTYPE, "/etc"
        tape.addfile(info)
    linked = zipfile.ZipInfo("modules/out")
    linked.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "link.zip", "w") as pack:
        pack.writestr(linked, "/etc")
    zipped(tmp_path / "other.zip", {"readme.txt": "x"})
    whole = zipped(tmp_path / "whole.zip", NEW).read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole.replace(b"new", b"NEW", 1))
    (tmp_path / "text.zip").write_text("no archive", encoding="utf-8")
    for name, words in (
        *(("link.tar.gz", "is a link"), ("link.zip", "is a link"), ("other.zip", "no archive of Featherweight")),
        *(("cut.zip", "cannot be unpacked"), ("text.zip", "no .zip and no .tar.gz"), ("gone.zip", "is no file")),
    ):
        assert run(data, str(tmp_path / name)) == 1
        assert words in capsys.readouterr().err
    assert program(root) == FILES


def test_an_error_on_the_way_puts_everything_back(
    root: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real, calls = write_atomic, 0

    def fail_once(path: Path, text: bytes, mode: int | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device", str(path))
        real(path, text, mode)

    monkeypatch.setattr(archive, "write_atomic", fail_once)
    assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 1
    assert "No space left on device. Everything was put back." in capsys.readouterr().err
    assert program(root) == FILES and list((data / "backups").iterdir()) == []


def test_what_cannot_be_put_back_stays_in_the_backup(
    root: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(path: Path, text: bytes, mode: int | None) -> None:
        raise OSError(28, "No space left on device", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(archive, "write_atomic", fail)
        assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 1
    assert "cannot be put back" in capsys.readouterr().err
    assert run(data, "--undo") == 0
    assert program(root) == FILES


def test_an_archive_too_large_is_refused(
    root: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(archive, "MAX_BYTES", 10)
    assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 1
    assert "unpacks to more than" in capsys.readouterr().err


def test_it_is_refused_while_a_server_runs_and_without_git(
    root: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(data) == 1
    assert "is no git repository. Download an archive" in capsys.readouterr().err
    lock = FolderLock(data, "port 7860")
    assert run(data) == 1
    assert "port 7860" in capsys.readouterr().err
    lock.close()


def test_packages_that_cannot_be_noted_do_not_stop_it(
    root: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(update, "Runner", lambda environ: recording([], Outcome(1, "no pip")))
    assert run(data, str(zipped(tmp_path / "new.zip", NEW))) == 0
    assert "could not be noted" in capsys.readouterr().out
