"""launch.py: finding a Python, understanding the command line, going on in the environment, exit codes."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Self

import pytest

import launch
from modules.flags.flags import Flags, UsageError
from modules.setup import checks, launcher
from modules.setup.environment import Environment
from modules.setup.launcher import PREPARED, Invocation, parse_invocation
from modules.setup.prepare import Wanted
from modules.setup.process import SetupError
from tests.setup.fakes import make_environment, make_root, recording

ROOT = Path(__file__).parents[1]
LIMITS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["featherweight"]


@pytest.mark.parametrize(
    ("version", "suitable"), [((3, 10), False), ((3, 11), True), ((3, 13), True), ((3, 14), False), ((2, 7), False)]
)
def test_suitable_pythons(version: tuple[int, int], suitable: bool) -> None:
    assert launch.is_suitable(version) is suitable


def test_launch_file_parses_on_old_pythons() -> None:
    ast.parse((ROOT / "launch.py").read_text(encoding="utf-8"), feature_version=(3, 7))


@pytest.mark.parametrize("module", ["modules.setup.launcher", "modules.flags.flags"])
def test_the_set_up_imports_only_the_standard_library(module: str) -> None:
    code = f"import sys, {module}; print([m for m in sys.modules if m in ('torch', 'gradio', 'numpy', 'fastapi')])"
    assert subprocess.check_output([sys.executable, "-S", "-c", code], cwd=ROOT, text=True).strip() == "[]"


@pytest.mark.skipif(os.name == "nt", reason="shell scripts stand in for Pythons")
def test_a_python_that_does_not_start_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in (("python3.11", "exit 1"), ("python3.12", "echo 3 12; echo /opt/python3.12")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n", encoding="ascii")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert launch.find_python() == "/opt/python3.12"


def test_an_unsuitable_python_hands_over_or_explains(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(launch, "is_suitable", lambda version: False)
    monkeypatch.setattr(launch, "find_python", lambda: None)
    assert launch.main([]) == 1
    assert "needs Python 3.11, 3.12 or 3.13" in capsys.readouterr().err
    calls: list[list[str]] = []
    monkeypatch.setattr(launch, "find_python", lambda: "/opt/python3.12")
    monkeypatch.setattr(subprocess, "call", recording(calls, 7))
    assert launch.main(["--listen"]) == 7
    assert calls == [["/opt/python3.12", str(ROOT / "launch.py"), "--listen"]]


def test_invocations() -> None:
    assert parse_invocation(["--listen"], {}) == Invocation(Flags(listen=True))
    parsed = parse_invocation(["txt2img", "--prompt", "a", "--anything"], {"COMMANDLINE_ARGS": "--skip-install"})
    assert parsed == Invocation(Flags(skip_install=True), "txt2img", words=("--prompt", "a", "--anything"))
    parsed = parse_invocation(["--torch", "cpu", "--test", "-k", "flags"], {})
    assert parsed == Invocation(Flags(torch="cpu"), tests=True, words=("-k", "flags"))


def test_unknown_subcommand_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="Did you mean 'txt2img'"):
        parse_invocation(["text2img"], {})
    with pytest.raises(UsageError, match=r"it comes first: python launch\.py txt2img --data-dir a --prompt 'b c'$"):
        parse_invocation(["--data-dir", "a", "txt2img", "--prompt", "b c"], {})


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program folder with a prepared environment; preparing and replacing the process are forbidden."""

    def forbidden(*args: object, **keywords: object) -> None:
        raise AssertionError("must not happen")

    monkeypatch.setattr(launcher, "prepare", forbidden)
    monkeypatch.setattr(launcher, "replace_process", forbidden)
    make_environment(Environment(tmp_path / ".venv"))
    return make_root(tmp_path)


def test_a_wrong_command_line_exits_with_2_before_any_set_up(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert launcher.launch(root, ["--lisen"], {}) == 2
    assert "did you mean --listen?" in capsys.readouterr().err


def test_a_failed_set_up_exits_with_1(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> None:
        raise SetupError("the disk is full")

    monkeypatch.setattr(launcher, "prepare", fail)
    assert launcher.launch(root, [], {}) == 1
    assert "the disk is full" in capsys.readouterr().err


def test_ctrl_c_during_the_set_up_exits_with_130(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(launcher, "prepare", interrupt)
    assert launcher.launch(root, [], {}) == 130


def test_exit_stops_after_preparing_what_was_asked_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Wanted] = []

    def note(root: Path, environment: Environment, wanted: Wanted, environ: Mapping[str, str]) -> None:
        seen.append(wanted)

    monkeypatch.setattr(launcher, "prepare", note)
    assert launcher.launch(root, ["--exit", "--torch", "cpu", "--reinstall-torch"], {"TORCH_INDEX_URL": "u"}) == 0
    assert seen[0].reinstall_torch and not seen[0].tests
    assert (seen[0].request.build, seen[0].request.index_url) == ("cpu", "u")


@pytest.mark.parametrize("flag", ["--skip-install", "--skip-prepare-environment"])
def test_skip_install_goes_straight_to_the_environment(flag: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone: list[tuple[Sequence[str], Mapping[str, str]]] = []

    def replace_process(command: Sequence[str], environ: Mapping[str, str]) -> int:
        gone.append((command, environ))
        return 0

    monkeypatch.setattr(launcher, "replace_process", replace_process)
    assert launcher.launch(root, [flag, "--listen"], {"HF_HUB_OFFLINE": "0"}) == 0
    command, environ = gone[0]
    assert command == [str(Environment(root / ".venv").python), str(root / "launch.py"), flag, "--listen"]
    assert environ[PREPARED] == str(root / ".venv")
    assert (environ["HF_HUB_OFFLINE"], environ["GRADIO_ANALYTICS_ENABLED"]) == ("0", "False")


def test_the_second_process_prepares_nothing_and_starts_the_server(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[tuple[Flags, str]] = []
    webui = SimpleNamespace(main=lambda flags, foreign: served.append((flags, foreign)) or 5)
    monkeypatch.setattr(launcher, "import_module", lambda name: webui)
    monkeypatch.setattr(Environment, "is_active", lambda self: True)
    environ = {PREPARED: str(root / ".venv")}
    assert launcher.launch(root, ["--deepdanbooru", "--reinstall-torch"], environ, lambda: "compat") == 5
    assert served == [(Flags(deepdanbooru=True, reinstall_torch=True), "compat")]
    assert PREPARED not in environ
    assert "--deepdanbooru is accepted and has no effect" in capsys.readouterr().out


def test_a_subcommand_gets_its_words(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[tuple[Sequence[str], str]] = []
    command = {"txt2img": lambda words, foreign: got.append((words, foreign)) or 4, "get": lambda words: 3}
    monkeypatch.setattr(launcher, "load_command", lambda name, words: command[name])
    monkeypatch.setattr(Environment, "is_active", lambda self: True)
    environ = {PREPARED: str(root / ".venv")}
    assert launcher.launch(root, ["txt2img", "--prompt", "x"], {**environ}, lambda: "compat") == 4
    assert got == [(("--prompt", "x"), "compat")]
    assert launcher.launch(root, ["get", "x"], {**environ}, lambda: "compat") == 3  # loads no extensions


class Beside:
    """mypy, which is started before the tests and read after them."""

    commands: ClassVar[list[list[str]]] = []
    returncode = 3

    def __init__(self, command: list[str], **keywords: object) -> None:
        self.commands.append(command)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def communicate(self) -> tuple[str, None]:
        assert self.commands[-1][2] == "pytest"
        return "Found 1 error\n", None


def run_with(
    monkeypatch: pytest.MonkeyPatch, codes: Mapping[str, int], words: tuple[str, ...], slowness: float = 1.0
) -> int:
    """The exit code of all checks with stand-ins for their commands, which `Beside.commands` lists, on a CPU that is so
    many times slower than the one that the budget was measured on."""
    Beside.commands.clear()

    def run(command: list[str], **keywords: object) -> SimpleNamespace:
        if command[2] == "tests.costs":
            return SimpleNamespace(stdout=f"{slowness * LIMITS['checks_yardstick_seconds']}\n")
        Beside.commands.append(command)
        return SimpleNamespace(returncode=codes[command[2]])

    monkeypatch.setattr("subprocess.run", run)
    monkeypatch.setattr("subprocess.Popen", Beside)
    return checks.run_checks(Path("python"), ROOT, words, {})


def test_checks_all_run_once_and_the_first_failure_is_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tests that fail get no second try."""
    assert run_with(monkeypatch, {"ruff": 0, "pytest": 1}, ("-k", "x")) == 3
    assert [command[2:] for command in Beside.commands] == [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["pytest", "-p", "hypothesispytest", "--costs", *checks.side_by_side(()), "-k", "x"],
    ]
    assert capsys.readouterr().out.endswith("== mypy\nFound 1 error\n== failed: mypy, pytest\n")


@pytest.mark.parametrize(
    ("share", "slowness", "code"), [(1.3, 1.0, 0), (1.4, 1.0, 1), (1.3, 0.5, 0), (2.6, 2.0, 0), (2.8, 2.0, 1)]
)
def test_all_tests_together_keep_to_the_budget_of_this_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], share: float, slowness: float, code: int
) -> None:
    budget_s = LIMITS["checks_cpu_seconds"]
    used = iter([5.0, 5.0 + share * budget_s])
    monkeypatch.setattr(checks, "_used_s", lambda: next(used))
    monkeypatch.setattr(Beside, "returncode", 0)
    assert run_with(monkeypatch, {"ruff": 0, "pytest": 0}, (), slowness) == code
    said = capsys.readouterr().out
    assert f"{share * budget_s:.0f} of {max(1.0, slowness) * budget_s:.0f}" in said
    assert ("== failed: cpu seconds" in said) == bool(code)


def test_some_tests_have_no_budget(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checks, "_used_s", iter([0.0, 1e9]).__next__)
    monkeypatch.setattr(Beside, "returncode", 0)
    assert run_with(monkeypatch, {"ruff": 0, "pytest": 0}, ("--thorough",)) == 0
    assert "cpu seconds" not in capsys.readouterr().out


def test_a_failed_test_says_what_it_holds_and_how_to_run_it_alone(tmp_path: Path) -> None:
    """The real pytest, with a test that fails in a process of pytest-xdist; what it cost is printed too."""
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        'def test_water_is_wet():\n    """Always."""\n    seen = "dry"\n    assert seen == "wet"\n'
    )
    words = ("-p", "xdist", "-n", "1", "--dist", "worksteal", "-p", "hypothesispytest", "--costs")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "--rootdir", str(tmp_path), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env=checks.tests_environ(environ),
        check=False,
    )
    said = done.stdout
    assert done.returncode == 1, said
    assert "'dry' == 'wet'" in said
    assert "Behavior: water is wet\nAlways.\nAlone: .venv/bin/python -m pytest test_it.py::test_water_is_wet" in said
    assert re.search(r"CPU seconds: \d+, of which \d+ in 1 tests", said)


def test_the_processes_of_the_tests_keep_what_is_compiled_and_load_few_plugins() -> None:
    environ = checks.tests_environ({"A": "b", "PYTHONDONTWRITEBYTECODE": "1"})
    assert environ == {"A": "b", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


@pytest.mark.parametrize(("cores", "processes"), [(1, "1"), (2, "2"), (64, "4")])
def test_tests_run_side_by_side_unless_xdist_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, cores: int, processes: str
) -> None:
    monkeypatch.setattr(checks, "usable_cores", lambda: range(cores))
    words = ("-p", "xdist", "-n", processes, "--dist", "worksteal")
    assert checks.side_by_side(("-n", "0")) == words  # what comes later wins
    assert checks.side_by_side(("-p", "no:xdist")) == checks.side_by_side(("-pno:xdist", "-x")) == ()


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
def test_ci_script_is_executable_and_calls_the_test_command() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "launch.py --test" in script.read_text(encoding="utf-8")
    assert subprocess.run(["bash", "-n", str(script)], check=False).returncode == 0


def test_help_and_usage_of_the_real_file() -> None:
    done = subprocess.run(
        [sys.executable, "launch.py", "--nope"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "unknown flag --nope" in done.stderr
