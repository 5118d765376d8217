"""The ways to start: scripts that users of the reference UI know, the container, the installed command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from featherweight_command import home_of, prepare_environ
from modules.flags.flags import Flags, parse_flags
from modules.setup.launcher import parse_invocation
from modules.system.paths import resolve_paths
from tests.setup.batch import Batch

ROOT = Path(__file__).parents[2]
TELL = "import json, os, sys; print(json.dumps([sys.argv[1:], os.environ.get('COMMANDLINE_ARGS')]))"


@pytest.mark.skipif(os.name == "nt" or shutil.which("bash") is None, reason="scripts for Linux and macOS")
@pytest.mark.parametrize("script", ["webui.sh", "webui.command"])
def test_the_shell_scripts_read_what_the_user_set(tmp_path: Path, script: str) -> None:
    for name in ("webui.sh", "webui.command"):
        shutil.copy2(ROOT / name, tmp_path)
    (tmp_path / "launch.py").write_text(TELL, encoding="utf-8")
    words = f'export COMMANDLINE_ARGS="--listen --port 1"\npython_cmd="{sys.executable}"\n'
    (tmp_path / "webui-user.sh").write_text(words, encoding="utf-8")
    environ = {key: value for key, value in os.environ.items() if key != "COMMANDLINE_ARGS"}
    command = [str(tmp_path / script), "--port", "2 3"]
    done = subprocess.run(command, cwd="/", env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [["--port", "2 3"], "--listen --port 1"]


@pytest.mark.parametrize(
    ("python", "launcher", "code", "program"),
    [
        ("", True, 0, ["py", "-3"]),
        ("", False, 0, ["python"]),
        ("C:/Programs/Python 3.12/python.exe", True, 0, ["C:/Programs/Python 3.12/python.exe"]),
        ('"C:/Programs/Python 3.12/python.exe"', False, 1, ["C:/Programs/Python 3.12/python.exe"]),
        ("", True, -1073741819, ["py", "-3"]),
    ],
    ids=["launcher", "on the path", "named", "named in quotes, fails", "crashes"],
)
def test_the_batch_files_start_the_launcher(
    tmp_path: Path, python: str, launcher: bool, code: int, program: list[str]
) -> None:
    shutil.copy2(ROOT / "webui.bat", tmp_path)
    users = (ROOT / "webui-user.bat").read_bytes().replace(b"PYTHON=", b"PYTHON=" + python.encode())
    users = users.replace(b"COMMANDLINE_ARGS=", b"COMMANDLINE_ARGS=--listen --port 1")
    (tmp_path / "webui-user.bat").write_bytes(users)
    started: list[tuple[list[str], str]] = []

    def start(words: list[str], environ: dict[str, str]) -> int:
        if words[0] == "where":
            return 0 if launcher else 1
        started.append((words, environ["COMMANDLINE_ARGS"]))
        return code

    batch = Batch(start)
    assert batch.run(tmp_path / "webui-user.bat", '--port "2 3"') == code
    assert started == [([*program, "launch.py", "--port", "2 3"], "--listen --port 1")]
    assert batch.folder == f"{tmp_path}/", "launch.py is found wherever it was started from"
    assert batch.has_paused == (code != 0), "the window stays while there is something to read"
    for name in ("webui.bat", "webui-user.bat"):
        text = (ROOT / name).read_bytes()
        assert text.count(b"\n") == text.count(b"\r\n") > 3, "cmd.exe wants both characters at the end of a line"


def dockerfile() -> list[tuple[str, str]]:
    """Instructions with their words, lines that go on put together."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    whole = "\n".join(lines).replace("\\\n", " ")
    return [(line.partition(" ")[0], " ".join(line.partition(" ")[2].split())) for line in whole.splitlines()]


def test_the_container_runs_as_nobody_special_and_keeps_its_data() -> None:
    found = dockerfile()
    names = [name for name, _ in found]
    assert names[:3] == ["ARG", "FROM", "ARG"] and ("FROM", "${BASE}") in found
    assert names.index("USER") < names.index("ENTRYPOINT") and dict(found)["USER"].isdigit()
    assert ("VOLUME", "/data") in found and ("ENV", "FEATHERWEIGHT_DATA=/data") in found
    health, entry, command = (dict(found)[name] for name in ("HEALTHCHECK", "ENTRYPOINT", "CMD"))
    assert "/robots.txt" in health and "--start-period" in health, "an address that asks for no login"
    assert json.loads(entry) == ["python3", "launch.py"]
    flags = parse_flags(json.loads(command))
    assert flags.listen and flags.auth_file == "/data/users.json" and flags.skip_install
    for name, words in found:
        if name == "COPY":
            assert words.startswith("--chown=") and all((ROOT / word).exists() for word in words.split()[1:-1])
    set_up = next(words for name, words in found if name == "RUN" and "launch.py" in words)
    assert parse_invocation(set_up.replace('"${TORCH}"', "cuda").split()[2:], {}).flags.exit


def test_compose_has_a_service_for_each_base() -> None:
    found: Any = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    assert set(found["services"]) == {"cpu", "cuda"} and "data" in found["volumes"]
    for name, service in found["services"].items():
        assert service["profiles"] == [name] and service["volumes"] == ["data:/data"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), "strangers come through a proxy"
        assert service["build"]["args"]["TORCH"] == name and service["cap_drop"] == ["ALL"]
    assert "nvidia/cuda" in found["services"]["cuda"]["build"]["args"]["BASE"]


def test_the_installed_command_keeps_everything_in_the_users_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    environ: dict[str, str] = {}
    prepare_environ(environ)
    home = tmp_path / "featherweight"
    assert home.is_dir() and environ == {
        "FEATHERWEIGHT_DATA": str(home),
        "FEATHERWEIGHT_VENV": str(home / ".venv"),
    }
    assert home_of({"FEATHERWEIGHT_DATA": str(tmp_path / "x")}) == tmp_path / "x"
    monkeypatch.setenv("FEATHERWEIGHT_DATA", str(home))
    assert resolve_paths(Flags(), ROOT).data_dir == home
    assert resolve_paths(Flags(data_dir=str(tmp_path / "y")), ROOT).data_dir == tmp_path / "y"


def test_the_package_has_what_the_command_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    module, _, function = project["project"]["scripts"]["featherweight"].partition(":")
    assert (module, function) == ("featherweight.featherweight_command", "main")
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["sources"] == {"": "featherweight"} and project["project"]["dependencies"] == []
    for name in ("modules", "configs", "extensions-builtin", "models", "featherweight_command.py", "launch.py"):
        assert f"/{name}" in wheel["include"] and (ROOT / name).exists()
